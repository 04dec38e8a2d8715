"""What training minimises: start reading at `loss.py`."""
