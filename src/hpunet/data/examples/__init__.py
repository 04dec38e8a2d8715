"""Small real images with their gradings, shipped in the package: `hpunet.example("lidc")`."""
