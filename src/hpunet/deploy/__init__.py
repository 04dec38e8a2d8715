"""Models as files that other software runs: ONNX."""
