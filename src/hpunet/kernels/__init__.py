"""Fused GPU kernels (Triton), each beside its plain-torch twin. Import nothing from here where Triton is missing."""
