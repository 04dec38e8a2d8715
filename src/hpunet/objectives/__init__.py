"""What training minimises. Start reading at loss.py."""
