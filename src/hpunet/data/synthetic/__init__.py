"""Generated data with known ground truth. Start reading at source.py."""
