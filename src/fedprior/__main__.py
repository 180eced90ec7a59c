"""`python -m fedprior` is the command `fedprior`."""

from fedprior.cli.main import main

main()
