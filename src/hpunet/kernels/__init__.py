"""Fused GPU kernels (Triton) for the HPU-Net. Where Triton is missing, import nothing from here but `choice`."""
