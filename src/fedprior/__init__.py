"""fedprior: one personal model per site, by sharing a prior."""

__version__ = "0.1.0"
