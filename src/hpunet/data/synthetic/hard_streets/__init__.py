"""Street scenes in which background looks like cars. Start reading at scene.py."""
