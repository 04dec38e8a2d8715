"""`hpunet bench`: speed of this machine."""
