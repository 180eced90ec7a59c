"""fedprior and its peers on the same work, side by side."""
