"""Scoring a model on a whole split: start reading at `run.py`, then `scorer.py`."""
