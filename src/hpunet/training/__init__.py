"""Training: start reading at `loop.py`, then `step.py`."""
