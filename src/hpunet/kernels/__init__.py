"""Fused GPU kernels (Triton) for training and sampling. The rest of the package imports only dispatch.py."""
