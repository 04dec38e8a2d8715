"""From a model to segmentations: hypotheses of an image, tiling, instances. Start reading at sample.py."""
