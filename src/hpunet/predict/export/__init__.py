"""Results as files that other programs open. Start reading at registry.py."""
