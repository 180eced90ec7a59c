"""Which examples each client has, and on which it is tested: a table, a partition and the sizes of the splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedprior.data.partition import BY_COLUMN, PARTITIONERS, Indices, LogNormal
from fedprior.data.partition.base import groups
from fedprior.data.table import Table
from fedprior.errors import FedpriorError
from fedprior.options import call, names, pick, plain_errors
from fedprior.rng import Key

PARTITIONS: dict[str, Callable[..., Any]] = {**PARTITIONERS, **BY_COLUMN}
GIVEN = ("values", "labels", "rng")  # what partitions by column get from us


def _test(value: Any) -> Any:
    if value in ("official", "shared"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError("give a share above 0 and below 1, or official, or shared")
    return float(value)


class Shares(BaseModel):
    """What part of every client's examples is held back, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    validation: Annotated[float, Field(ge=0, lt=1, description="share for choosing among settings")] = 0.1
    test: Annotated[
        float | Literal["official", "shared"],
        BeforeValidator(_test),
        Field(description="share for the final numbers; or the official test set, dealt out or shared"),
    ] = 0.2
    split: Annotated[
        Literal["stratified", "random"], Field(description="parts with the client's label proportions, or as they fall")
    ] = "stratified"
    keep: Annotated[float, Field(gt=0, le=1, description="share of every client's training examples to use")] = 1.0

    def arguments(self) -> dict[str, Any]:
        """For `from_arrays`."""
        return self.model_dump(exclude={"test"}) | ({} if self.official else {"test": self.test})

    @property
    def official(self) -> bool:
        """Whether clients are tested on examples of the official test set."""
        return isinstance(self.test, str)


class Limits(BaseModel):
    """How much of a data set is used."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    examples: Annotated[int | None, Field(ge=1, description="use so many in all, equally many of each class")] = None
    test_cap: Annotated[
        int | None, Field(ge=1, description="with test=shared: most test examples of one kind at a client")
    ] = None


class Allotment(NamedTuple):
    """The examples of every client, as row numbers of the table."""

    rows: dict[str, Indices]
    labels: dict[str, Indices]  # of `rows`
    tests: dict[str, Indices] | None  # None: to be split off `rows`
    y: Indices  # [n]  the labels of all examples
    classes: int


def partition_options(name: str) -> list[str]:
    """The options of a partition."""
    if name in BY_COLUMN:
        return ["column", *(option for option in names(BY_COLUMN[name]) if option not in GIVEN)]
    return names(pick("partition", PARTITIONS, name))


def checked(model: type[Any], options: Mapping[str, Any]) -> Any:
    """The options of `options` that `model` has, checked."""
    with plain_errors("data"):
        return model(**{k: v for k, v in options.items() if k in model.model_fields})


def allot(name: str, table: Table, partition: str, options: Mapping[str, Any], shares: Shares, key: Key) -> Allotment:
    """Deal the examples out; with an official test set, only those meant for training."""
    limits: Limits = checked(Limits, options)
    own = {k: v for k, v in options.items() if k in partition_options(partition)}
    y, fine, classes = _labels(name, table, partition)
    kinds = y if fine is None else fine
    pool = np.arange(len(y))
    if shares.official:
        if table.official is None:
            raise FedpriorError(f"{name} has no official test set: give data.test a share, such as 0.2.")
        pool = np.flatnonzero(~table.official)
    elif limits.test_cap is not None:
        raise FedpriorError("test_cap is for test=shared: leave it out.")
    if limits.examples is not None:
        pool = pool[_few(kinds[pool], limits.examples, key.fold("examples").numpy())]
    column: NDArray[Any] | None = None
    if partition in BY_COLUMN:
        column = _column(name, table, own.pop("column", None))
        given = {"values": column[pool], "labels": y[pool], "rng": key.fold("partition").numpy()}
        taken = {k: v for k, v in given.items() if k in names(BY_COLUMN[partition])}
        parts = call("partition", BY_COLUMN, partition, own, **taken)
        labels = {client: y[pool[rows]] for client, rows in parts.items()}
        # a writer's own test examples, whatever their labels; of a domain, those with the client's labels
        kinds = _codes(column) if partition != "domains" else _codes(column) * classes + y
    else:
        split = call("partition", PARTITIONERS, partition, own)
        found = split(y[pool], key.fold("partition").numpy(), None if fine is None else fine[pool])
        width = len(str(len(found) - 1))
        parts = {f"client-{i:0{width}d}": rows for i, rows in enumerate(found)}
        relabelled = split.relabelled(y[pool], found) if isinstance(split, LogNormal) else None
        labels = dict(zip(parts, relabelled or [y[pool[rows]] for rows in found], strict=True))
    rows = {client: pool[part] for client, part in parts.items()}
    tests = None
    if shares.official and table.official is not None:
        spare = groups(kinds[table.official])
        spare = {kind: np.flatnonzero(table.official)[where] for kind, where in spare.items()}
        held = {client: groups(kinds[own_rows]) for client, own_rows in rows.items()}
        counts = {client: {kind: len(where) for kind, where in kinds_of.items()} for client, kinds_of in held.items()}
        deal = _dealt if shares.test == "official" else _shared
        tests = deal(counts, spare, limits.test_cap, key.fold("test"))
    return Allotment(rows, labels, tests, y, classes)


def _labels(name: str, table: Table, partition: str) -> tuple[Indices, Indices | None, int]:
    """Labels, the finer classes that they group or None, and how many labels there are."""
    if partition != "superclass":
        return table.y, None, table.classes
    if table.coarse is None:
        raise FedpriorError(f"{name} has no superclasses: partition 'superclass' is for cifar100.")
    return table.coarse, table.y, int(table.coarse.max()) + 1


def _column(name: str, table: Table, given: Any) -> NDArray[Any]:
    if not table.columns:
        raise FedpriorError(f"{name} has no column that names clients: choose a partition by label, such as dirichlet.")
    return pick("column", table.columns, str(next(iter(table.columns)) if given is None else given))


def _codes(values: NDArray[Any]) -> Indices:
    """Distinct values as numbers from 0."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _few(kinds: Indices, n: int, rng: np.random.Generator) -> Indices:
    """The first n / C examples of each class after a shuffle (pFedVEM's |D|); a remainder goes to the first classes."""
    classes = groups(kinds)
    each = np.full(len(classes), n // len(classes)) + (np.arange(len(classes)) < n % len(classes))
    chosen = []
    for (label, rows), m in zip(classes.items(), each, strict=True):
        if m > len(rows):
            raise FedpriorError(
                f"examples={n} takes {m} of each class, but class {label} has {len(rows)}: use a smaller number."
            )
        chosen.append(rng.permutation(rows)[:m])
    return np.sort(np.concatenate(chosen))


Counts = Mapping[str, Mapping[Any, int]]  # client -> kind -> training examples


def _dealt(counts: Counts, spare: Mapping[Any, Indices], cap: int | None, key: Key) -> dict[str, Indices]:
    """Deal the test examples of each kind out in proportion to the clients' training examples of it.

    Each is used once, at most (kinds that nobody trains on are left); shares are rounded at random, without bias.
    """
    if cap is not None:
        raise FedpriorError("test_cap is for test=shared: with test=official every test example is used once.")
    rng = key.numpy()
    tests: dict[str, list[Indices]] = {client: [] for client in counts}
    for kind, rows in spare.items():
        takers = [client for client, held in counts.items() if kind in held]
        if not takers:
            continue
        share = np.array([counts[client][kind] for client in takers], dtype=np.float64)
        ends = np.floor(np.cumsum(share / share.sum()) * len(rows) + rng.random() - 1e-9).astype(np.int64)
        ends[-1] = len(rows)
        for client, piece in zip(takers, np.split(rng.permutation(rows), ends[:-1]), strict=True):
            tests[client].append(piece)
    return {client: _joined(client, pieces) for client, pieces in tests.items()}


def _shared(counts: Counts, spare: Mapping[Any, Indices], cap: int | None, key: Key) -> dict[str, Indices]:
    """Every client is tested on all test examples of the kinds it trains on, or on `cap` random ones of each."""
    tests = {}
    for client, held in counts.items():
        rng = key.fold(client).numpy()
        pieces = [rng.permutation(spare[kind])[:cap] for kind in held if kind in spare]
        tests[client] = _joined(client, pieces)
    return tests


def _joined(client: str, pieces: list[Indices]) -> Indices:
    rows = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *pieces]))
    if not len(rows):
        raise FedpriorError(
            f"no official test example is left for client '{client}': use test=shared, a share such as test=0.2, or "
            "fewer clients."
        )
    return rows
