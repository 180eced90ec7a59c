"""Split one labelled data set over clients, in the ways the papers do.

A partitioner is its options; calling it gives one sorted index array per client, each with at least `min_size`
examples. Every example goes to exactly one client, except that `MajorMinor` may use one twice and that it, `Mixture`
and `LogNormal` may leave some out. Those by column are functions that also name the clients.
"""

from collections.abc import Callable

from fedprior.data.partition.base import Alpha, Indices, MinSize, Partitioner
from fedprior.data.partition.column import by_column, domains, merged
from fedprior.data.partition.dealt import LabelsPerClient, MajorMinor, Shards
from fedprior.data.partition.lognormal import LogNormal
from fedprior.data.partition.slicing import RandomSlicing, Superclass
from fedprior.data.partition.spread import Dirichlet, Iid, Mixture, Quantity

__all__ = [
    "BY_COLUMN",
    "PARTITIONERS",
    "Alpha",
    "Dirichlet",
    "Iid",
    "Indices",
    "LabelsPerClient",
    "LogNormal",
    "MajorMinor",
    "MinSize",
    "Mixture",
    "Partitioner",
    "Quantity",
    "RandomSlicing",
    "Shards",
    "Superclass",
    "by_column",
    "domains",
    "merged",
]

PARTITIONERS: dict[str, type[Partitioner]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "mixture": Mixture,
    "labels": LabelsPerClient,
    "shards": Shards,
    "quantity": Quantity,
    "slicing": RandomSlicing,
    "superclass": Superclass,
    "major": MajorMinor,
    "lognormal": LogNormal,
}
"""Partitions by label."""

BY_COLUMN: dict[str, Callable[..., dict[str, Indices]]] = {"column": by_column, "merged": merged, "domains": domains}
"""Partitions by a column of the data; `values`, `labels` and `rng` are given to those that take them."""
