"""Your own images in a folder or archive. Start reading at source.py."""
