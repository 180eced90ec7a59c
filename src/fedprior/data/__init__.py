"""Federations: load one by name, or make one from arrays or a DataFrame."""

from fedprior.data.client import Batch, Budget, ClientData, fold
from fedprior.data.datasets import DATASETS, load
from fedprior.data.federation import Federation, from_arrays
from fedprior.data.frames import from_frame

__all__ = ["DATASETS", "Batch", "Budget", "ClientData", "Federation", "fold", "from_arrays", "from_frame", "load"]
