"""Which examples each client has, and on which it is tested: a table, a partition and the sizes of the splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedprior.data.official import official_tests
from fedprior.data.partition.base import groups
from fedprior.data.partition.view import Indices, Parts, View
from fedprior.data.table import Table
from fedprior.data.target import Classes, Target
from fedprior.errors import FedpriorError
from fedprior.options import STRICT, check_truths, check_values, plain_errors
from fedprior.rng import Key


def _test(value: Any) -> Any:
    if value in ("official", "shared"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError("give a share above 0 and below 1, or official, or shared")
    return float(value)


class Shares(BaseModel):
    """Which part of every client's examples is held out, and how."""

    model_config = ConfigDict(**STRICT, frozen=True)

    validation: Annotated[float, Field(ge=0, lt=1, description="share held out for choosing settings")] = 0.1
    test: Annotated[
        float | Literal["official", "shared"],
        BeforeValidator(_test),
        Field(description="share held out for testing; or the official test set, divided among clients or shared"),
    ] = 0.2
    split: Annotated[
        Literal["stratified", "random"] | None,
        Field(
            description="keep each client's label proportions in every part, or split at random; by default as the "
            "data set says"
        ),
    ] = None
    turn: Annotated[int, Field(ge=0, lt=2**31, description="successive turns test on different examples")] = 0
    keep: Annotated[float, Field(gt=0, le=1, description="share of every client's training examples to use")] = 1.0

    def arguments(self) -> dict[str, Any]:
        """For `from_arrays`."""
        return self.model_dump(exclude={"test", "split"}) | ({} if self.official else {"test": self.test})

    @property
    def official(self) -> bool:
        """Whether clients are tested on examples of the official test set."""
        return isinstance(self.test, str)


class Limits(BaseModel):
    """How much of a data set is used."""

    model_config = ConfigDict(**STRICT, frozen=True)

    examples: Annotated[int | None, Field(ge=1, description="total number to use, equally many per class")] = None
    test_cap: Annotated[
        int | None, Field(ge=1, description="with test=shared: largest number of test examples of one kind per client")
    ] = None


class Assignment(NamedTuple):
    """The examples of every client, as row numbers of the table."""

    rows: dict[str, Indices]
    labels: dict[str, NDArray[Any]]  # of `rows`
    tests: dict[str, Indices] | None  # None: to be split off `rows`
    y: NDArray[Any]  # [n]  the labels of all examples
    target: Target


def checked(model: type[Any], options: Mapping[str, Any]) -> Any:
    """The options of `options` that `model` has, checked."""
    check_values("data", options)
    check_truths("data", model, options)
    with plain_errors("data"):
        return model(**{k: v for k, v in options.items() if k in model.model_fields})


def assign_examples(
    name: str, table: Table, partition: Callable[[View], Parts], limits: Limits, shares: Shares, key: Key
) -> Assignment:
    """Distribute the examples among clients; with an official test set, only the training examples."""
    everything = _view(name, table, key.fold("partition").numpy())
    pool = _pool(name, table, limits, shares)
    if limits.examples is not None:
        pool = pool[_few(everything.labels[pool], limits.examples, key.fold("examples").numpy())]
    parts = partition(everything.at(pool))
    y, target = _predicted(everything, table, parts)
    rows = {client: pool[part] for client, part in parts.clients.items()}
    labels = {client: y[own] for client, own in rows.items()} | dict(parts.mislabelled or {})
    tests = None
    if shares.official and table.official is not None:
        kinds, cap = parts.kinds(everything), limits.test_cap
        tests = official_tests(str(shares.test), kinds, rows, table.official, cap, key.fold("test"))
    return Assignment(rows, labels, tests, y, target)


def _view(name: str, table: Table, rng: np.random.Generator) -> View:
    """All examples of a table; a partition sees a numeric target as ranges."""
    strata = table.target.binned(table.y)[1]
    return View(strata, rng, table.coarse, table.columns, table.select, table.features, name)


def _pool(name: str, table: Table, limits: Limits, shares: Shares) -> Indices:
    """The examples to distribute among clients."""
    if not shares.official:
        if limits.test_cap is not None:
            raise FedpriorError("test_cap applies to test=shared only: leave it out.")
        return np.arange(len(table.y))
    if table.official is None:
        raise FedpriorError(f"{name} has no official test set: give data.test a share, such as 0.2.")
    return np.flatnonzero(~table.official)


def _predicted(everything: View, table: Table, parts: Parts) -> tuple[NDArray[Any], Target]:
    """The labels of all examples and the target they belong to, after partitioning."""
    if parts.mislabelled is not None and not isinstance(table.target, Classes):
        raise FedpriorError(
            f"{everything.data} has a numeric target, and only classes can be mislabelled: leave that option out."
        )
    if parts.labels is None:
        return table.y, table.target
    y = parts.labels(everything)
    return y, Classes.numbered(int(y.max()) + 1)


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
