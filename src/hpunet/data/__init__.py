"""Sources of images and labels, augmentation, and packs."""
