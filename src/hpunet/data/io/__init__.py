"""Readers of image, volume and archive files, bounded in size; every failure is a `DataError` naming the file."""
