"""What every other package may use: files, keyed random numbers, tensor checks, distributed training, pictures."""
