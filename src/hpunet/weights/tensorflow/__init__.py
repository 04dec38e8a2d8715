"""The authors' TensorFlow checkpoints, read without TensorFlow. Start reading at convert.py."""
