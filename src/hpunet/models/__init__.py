"""The models: the HPU-Net and its baseline, behind one protocol."""
