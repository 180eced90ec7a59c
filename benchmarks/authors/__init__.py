"""fedprior beside the authors' released code, on the same work."""
