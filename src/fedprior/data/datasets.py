"""Federations by name: generated, shipped with a dependency, or stored by `fedprior data fetch` and `import`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

import fedprior.data.sets  # noqa: F401 - registers them
from fedprior.data.assignment import Limits, Shares, assign_examples, checked
from fedprior.data.featureskew import Corruptions, corrupted, pairs
from fedprior.data.federation import Federation, check_seed, from_arrays
from fedprior.data.partition import PARTITIONS, Indices
from fedprior.data.partition.view import partition_options, spread
from fedprior.data.registry import DATASETS, Dataset, first_line
from fedprior.data.table import Clients, Drawing, Table
from fedprior.errors import FedpriorError
from fedprior.options import call, check_names, check_values, current, names, pick
from fedprior.options import defaults as option_defaults
from fedprior.rng import Key
from fedprior.room import check_room

__all__ = ["DATASETS", "LazyClients", "catalogue", "defaults", "from_table", "load", "option_names"]

SPLIT_OPTIONS = tuple(Shares.model_fields)


def load(name: str, *, seed: int = 0, **options: Any) -> Federation:
    """A federation by name.

    Args:
        name: One of `fedprior data list`.
        seed: Determines the partition and the splits.
        options: Those of the data set, of its partition, and of the splits (`validation`, `test`, `keep`, ...).

    Returns:
        Every client's training, validation and test examples.

    Raises:
        FedpriorError: If the name or an option is unknown, or the data set has not been fetched.

    Examples:
        >>> import fedprior
        >>> federation = fedprior.data.load("digits", partition="labels", clients=5, labels=3)
        >>> len(federation), federation.shape
        (5, (1, 8, 8))
    """
    dataset = pick("dataset", DATASETS, name)
    check_values(f"data '{name}'", options)
    partition = _partition(dataset, options)
    given = options if partition is None else current(PARTITIONS[partition], options)
    check_names(_where(name, partition), given, option_names(name, options))
    check_seed(seed)
    shares: Shares = checked(Shares, given)
    clients = _clients(dataset, partition, given, shares, Key.from_seed(seed))
    return _federation(clients, shares, seed, name, options)


def from_table(table: Table, *, seed: int = 0, name: str = "custom", **options: Any) -> Federation:
    """The federation of a table by its column of sites; options are those of the partition `column` and of splits."""
    check_values("data", options)
    check_names("data", options, [*partition_options("column"), *SPLIT_OPTIONS, *Limits.model_fields])
    check_seed(seed)
    shares: Shares = checked(Shares, options)
    return _federation(_cut(name, table, "column", options, shares, Key.from_seed(seed)), shares, seed, name, options)


def _federation(clients: Clients, shares: Shares, seed: int, name: str, options: Mapping[str, Any]) -> Federation:
    return from_arrays(
        clients.examples,
        tests=clients.tests,
        target=clients.target,
        seed=seed,
        standardise=clients.standardise,
        impute=clients.impute,
        scaling=clients.scaling,
        scaler=clients.scaler,
        schema=clients.schema,
        split=shares.split or clients.split,
        units=clients.units if shares.split is None else None,
        name=name,
        options=options,
        recipe=clients.recipe,
        **shares.arguments(),
    )


def _where(name: str, partition: str | None) -> str:
    return f"data '{name}'" + (f" with partition '{partition}'" if partition is not None else "")


def _clients(dataset: Dataset, partition: str | None, given: Mapping[str, Any], shares: Shares, key: Key) -> Clients:
    """Every client's examples: cut from a table, or drawn one by one."""
    own = {k: v for k, v in given.items() if k in names(dataset.read)}
    made: Table | Drawing = call("dataset", {dataset.name: dataset.read}, dataset.name, own)
    if isinstance(made, Table):
        return _cut(dataset.name, made, str(partition), given, shares, key)
    if shares.official:
        raise FedpriorError(f"{dataset.name} has no official test set: give data.test a share, such as 0.2.")
    return made.drawn(key.fold(dataset.name).numpy())


def _cut(name: str, table: Table, partition: str, given: Mapping[str, Any], shares: Shares, key: Key) -> Clients:
    limits: Limits = checked(Limits, given)
    own = {k: v for k, v in given.items() if k in partition_options(partition)}
    found = assign_examples(name, table, lambda view: spread(partition, own, view), limits, shares, key)
    numbers = math.prod(table.x.shape[1:]) * sum(
        len(rows) for part in (found.rows, found.tests or {}) for rows in part.values()
    )
    check_room(f"data '{name}' with this partition", 2 * 4 * numbers, "use data.examples, data.keep or data.test_cap")
    skew = dict(zip(found.rows, pairs(checked(Corruptions, given), len(found.rows)), strict=True))

    def inputs(what: str, client: str, rows: Indices) -> NDArray[Any]:
        return corrupted(table, rows, skew[client], key.fold("corruption", what, client))

    def test(client: str) -> tuple[NDArray[Any], NDArray[Any]]:
        rows = (found.tests or {})[client]
        return inputs("test", client, rows), found.y[rows]

    return Clients(
        LazyClients(found.rows, lambda client: (inputs("own", client, found.rows[client]), found.labels[client])),
        found.target,
        table.recipe,
        None if found.tests is None else LazyClients(found.tests, test),
        table.standardise,
        table.impute,
        table.schema,
        table.scaling,
        table.split,
        None if table.units is None else {client: table.units[rows] for client, rows in found.rows.items()},
        table.scaler,
    )


class LazyClients(Mapping[str, tuple[Any, Any]]):
    """Every client's examples, made on demand: making all at once would need twice the memory."""

    def __init__(self, clients: Iterable[str], make: Callable[[str], tuple[Any, Any]]) -> None:
        self.clients, self.make = tuple(clients), make

    def __getitem__(self, client: str) -> tuple[Any, Any]:
        return self.make(client)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


def _partition(dataset: Dataset, options: Mapping[str, Any]) -> str | None:
    """The partition chosen by the options; None for a data set without partitions."""
    if dataset.partition is None:
        return None
    chosen = options.get("partition", dataset.partition)
    pick("partition", PARTITIONS, chosen)
    return str(chosen)


def _general(dataset: Dataset) -> list[str]:
    """The options that do not depend on the partition."""
    if dataset.partition is None:
        return [*names(dataset.read), *SPLIT_OPTIONS]
    skew = Corruptions.model_fields if dataset.images else ()
    return [*names(dataset.read), "partition", *SPLIT_OPTIONS, *Limits.model_fields, *skew]


def option_names(name: str, options: Mapping[str, Any]) -> list[str]:
    """All options of `load(name, **options)`, given the partition they choose."""
    dataset = pick("dataset", DATASETS, name)
    partition = _partition(dataset, options)
    return [*_general(dataset), *(() if partition is None else partition_options(partition))]


def defaults(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a data set that have defaults, spelled out, given the partition that `options` choose."""
    dataset = pick("dataset", DATASETS, name)
    partition = _partition(dataset, options)
    if partition is None:
        return option_defaults(dataset.read)
    own = option_defaults(PARTITIONS[partition])
    for option in current(PARTITIONS[partition], options).keys() - options.keys():
        own.pop(option, None)  # given under its former name
    return {"partition": partition} | option_defaults(dataset.read) | own


def catalogue() -> list[dict[str, Any]]:
    """Every data set with its options; those of a partition are listed with it."""
    entries: list[dict[str, Any]] = [
        {"name": name, "about": dataset.about, "options": _general(dataset)} for name, dataset in DATASETS.items()
    ]
    for name, thing in PARTITIONS.items():
        options = partition_options(name)
        entries.append({"name": f"partition={name}", "about": first_line(thing), "options": options})
    return entries
