"""`python -m hpunet` is the `hpunet` command."""

from hpunet.cli.start import main

if __name__ == "__main__":
    main()
