"""The `hpunet` command: one file per command, shared options, progress. Start reading at main.py."""
