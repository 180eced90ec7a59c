"""What a partition is given, and what it gives back: a view of the examples in, named clients out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError
from fedprior.options import call, names, pick

Indices = NDArray[np.int64]


def _no_inputs(rows: Indices) -> NDArray[Any]:
    """The inputs of `rows`, in a view that has none."""
    raise FedpriorError("the inputs are not available: choose a partition by label or by column.")


@dataclass(frozen=True)
class View:
    """n examples, as a partition sees them.

    Args:
        labels: Classes, or ranges of a numeric target, [n].
        rng: The generator that a partition draws from.
        coarse: The superclass of each example, if there are superclasses, [n].
        columns: Writers, sites and other attributes by name, each [n].
        select: From row numbers to the inputs of these rows.
        features: Names of the inputs, if they have names.
        data: The name of the data set in messages.
    """

    labels: Indices
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    coarse: Indices | None = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    select: Callable[[Indices], NDArray[Any]] = _no_inputs
    features: tuple[str, ...] = ()
    data: str = "the data"

    def __len__(self) -> int:
        return len(self.labels)

    def column(self, name: str | None = None) -> NDArray[Any]:
        """A column of the data set, such as the writer or the site of every example.

        Args:
            name: Its name; by default the first column.

        Returns:
            Values [n].

        Raises:
            FedpriorError: If the data set has no such column.
        """
        if not self.columns:
            raise FedpriorError(
                f"{self.data} has no column that names clients: choose a partition by label, such as dirichlet."
            )
        return pick("column", self.columns, next(iter(self.columns)) if name is None else name)

    def inputs(self) -> NDArray[Any]:
        """The model's inputs, [n, ...]; read on demand."""
        return self.select(np.arange(len(self)))

    def at(self, rows: Indices, rng: np.random.Generator | None = None) -> View:
        """A view of some of the examples: `rows` [m] of this one, with its generator or another `rng`."""
        return replace(
            self,
            labels=self.labels[rows],
            rng=rng or self.rng,
            coarse=None if self.coarse is None else self.coarse[rows],
            columns={name: values[rows] for name, values in self.columns.items()},
            select=lambda some: self.select(rows[some]),
        )


def labels_of(view: View) -> Indices:
    """The kind of every example of `view` is its label."""
    return view.labels


@dataclass(frozen=True)
class Parts:
    """Each client's examples, and what else a partition decides.

    `labels` and `kinds` are functions, since they are also applied to examples of an official test set.

    Args:
        clients: Sorted row numbers of the view, by client.
        labels: The labels to predict, if not the data's own.
        mislabelled: The labels of each client's rows, if not what `labels` says.
        kinds: The kind of each example; a client is tested on official test examples of the kinds it trains on.
    """

    clients: Mapping[str, Indices]
    labels: Callable[[View], Indices] | None = None
    mislabelled: Mapping[str, Indices] | None = None
    kinds: Callable[[View], Indices] = labels_of


PARTITIONS: dict[str, Callable[..., Any]] = {}
"""Every partition by name: a function of a `view` and options, or a class of options whose instances take a view."""

P = TypeVar("P", bound=Callable[..., Any])


def register_partition(name: str) -> Callable[[P], P]:
    """Register a partition.

    It is a function of a `View` and of options, or a class of options whose instances take a view (a `Partitioner`); it
    returns the names of the clients with their sorted rows, or `Parts`.

    Args:
        name: What `fedprior.data.load(..., partition=name)` calls it.

    Returns:
        A decorator that leaves the function or class as it is.

    Examples:
        >>> import numpy as np, fedprior
        >>> from fedprior.data.partition import View, register_partition
        >>> @register_partition("halves")
        ... def halves(view: View, first: int = 100) -> dict[str, np.ndarray]:
        ...     return {"first": np.arange(first), "rest": np.arange(first, len(view))}
        >>> fedprior.data.load("digits", partition="halves", first=97).clients
        ('first', 'rest')
    """

    def add(partition: P) -> P:
        PARTITIONS[name] = partition
        return partition

    return add


def partition_options(name: str) -> list[str]:
    """The options of a partition."""
    return [option for option in names(pick("partition", PARTITIONS, name)) if option != "view"]


def spread(name: str, options: Mapping[str, Any], view: View) -> Parts:
    """Distribute the examples among clients by the partition `name`, which returns names and rows or `Parts`."""
    partition = pick("partition", PARTITIONS, name)
    if isinstance(partition, type):
        parts = call("partition", PARTITIONS, name, options)(view)
    else:
        parts = call("partition", PARTITIONS, name, options, view=view)
    return parts if isinstance(parts, Parts) else Parts(parts)


def numbered(parts: list[Indices], prefix: str = "client") -> dict[str, Indices]:
    """client-00, client-01, ...: names that sort in their order."""
    width = len(str(len(parts) - 1))
    return {f"{prefix}-{i:0{width}d}": rows for i, rows in enumerate(parts)}
