"""`python -m fedprior` is the command `fedprior`."""

from fedprior.cli.start import main

if __name__ == "__main__":
    main()
