"""Images and labels: sources, packs, batches and augmentation. Start reading at types.py, then open.py."""
