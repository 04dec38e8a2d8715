"""From images to samples, instances and pictures. Start reading at predictor.py."""
