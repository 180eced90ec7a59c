"""The registry of data sets by name. Each has a file in `fedprior.data.sets`, which registers it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fedprior.data.store.record import RECORDS, Record
from fedprior.data.table import Drawing, Table

Read = TypeVar("Read", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set: how it is read, where it comes from, and its default partition."""

    name: str
    read: Callable[..., Table | Drawing]  # its parameters are the data set's options
    partition: str | None  # None: it is generated client by client
    images: bool  # can be corrupted
    stored: tuple[str, ...]  # what must have been fetched or imported: itself, or what it is made of

    @property
    def about(self) -> str:
        """One line."""
        return first_line(self.read)


DATASETS: dict[str, Dataset] = {}
"""Every data set by name."""


def register_dataset(
    name: str | None = None,
    *,
    record: Record | None = None,
    partition: str | None = "dirichlet",
    images: bool = False,
    made_of: tuple[str, ...] = (),
) -> Callable[[Read], Read]:
    """Register a function that reads a `Table` as a data set; its parameters are the data set's options.

    Args:
        name: Its name; by default that of the record, or of the function.
        record: Where its files come from, and their checksums: it can then be fetched or imported.
        partition: The default partition; None for data that are generated client by client.
        images: Whether it consists of images, which can be corrupted.
        made_of: Names of other stored data sets that it is read from.

    Returns:
        A decorator that leaves the function as it is.

    Examples:
        >>> import numpy as np, fedprior
        >>> from fedprior.data.registry import register_dataset
        >>> from fedprior.data.table import Table
        >>> from fedprior.data.target import Classes
        >>> @register_dataset(partition="iid")
        ... def coins(n: int = 100) -> Table:
        ...     '''Coins that are thrown by somebody.'''
        ...     x = np.random.default_rng(0).normal(size=(n, 2))
        ...     return Table(x, (x[:, 0] > 0).astype(int), Classes.numbered(2), {})
        >>> fedprior.data.load("coins", n=60, clients=3).train.size
        (14, 14, 14)
    """

    def add(read: Read) -> Read:
        called = name or (record.name if record else read.__name__)
        if record is not None:
            RECORDS[called] = record
        stored = made_of or ((called,) if record else ())
        DATASETS[called] = Dataset(name=called, read=read, partition=partition, images=images, stored=stored)
        return read

    return add


def first_line(thing: Any) -> str:
    """Of its docstring."""
    return (thing.__doc__ or "").strip().splitlines()[0]
