"""Saved weights: checkpoints, published weights, TensorFlow checkpoints. Start reading at load.py."""
