"""From image files to samples, instances and pictures. Start reading at samples.py."""
