"""The `fedprior` command."""
