"""Split one data set among clients, as the papers do. Importing this package registers them all.

A partition is a function of a view of the examples (`View`) and of options, or a class of options whose instances take
the view. It returns each client's name and sorted rows, or more if needed (`Parts`). Every example goes to exactly
one client, except that `MajorMinor` may use one twice and that it, `Mixture` and `LogNormal` may leave some out.
"""

import importlib
import pkgutil

from fedprior.data.partition.base import Alpha, ByLabel, MinSize, Partitioner
from fedprior.data.partition.column import by_column, domains, merged
from fedprior.data.partition.dealt import LabelsPerClient, MajorMinor, Shards
from fedprior.data.partition.features import Features
from fedprior.data.partition.lognormal import LogNormal
from fedprior.data.partition.slicing import RandomSlicing, Superclass
from fedprior.data.partition.spread import Dirichlet, Iid, Mixture, Quantity
from fedprior.data.partition.view import PARTITIONS, Indices, Parts, View, register_partition

__all__ = [
    "PARTITIONS",
    "Alpha",
    "ByLabel",
    "Dirichlet",
    "Features",
    "Iid",
    "Indices",
    "LabelsPerClient",
    "LogNormal",
    "MajorMinor",
    "MinSize",
    "Mixture",
    "Partitioner",
    "Parts",
    "Quantity",
    "RandomSlicing",
    "Shards",
    "Superclass",
    "View",
    "by_column",
    "domains",
    "merged",
    "register_partition",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
