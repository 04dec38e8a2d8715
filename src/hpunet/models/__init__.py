"""The HPU-Net and the Probabilistic U-Net behind one protocol. Start reading at hpunet.py."""
