"""`hpunet demo`: both models against a known distribution."""
