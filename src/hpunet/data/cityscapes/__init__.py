"""Cityscapes with car instances. Start reading at scenes.py."""
