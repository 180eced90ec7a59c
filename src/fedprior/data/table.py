"""A data set as its file reads it: one table before partitioning, or clients that are generated one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprior.data.scaling import Scaler
from fedprior.data.schema import Schema
from fedprior.data.target import Target

Recipe = Mapping[str, Mapping[str, Any]]
"""The `model` and the `train` section that suit a data set; for repeated splits also `settings` and `methods`."""
Split = Literal["stratified", "random", "grouped", "time"]
"""How examples are split, see `splits.HOW`."""
Scaling = Annotated[
    Literal["own", "shared"], Field(description="standardise by each site's own rows, or by sums over all sites")
]
SGD: Mapping[str, Any] = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4}
"""pFedFDA's training, for recipes."""


@dataclass(frozen=True)
class Table:
    """All examples, in one order."""

    x: NDArray[Any]  # [n, ...]  as stored; images are uint8
    y: NDArray[Any]  # [n]
    target: Target
    recipe: Recipe
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # what partitions by column may use
    standardise: bool = False  # by training examples
    impute: bool = False  # missing values: by training examples too
    prepare: Callable[[NDArray[Any]], NDArray[Any]] | None = None  # from x to what a model takes
    official: NDArray[np.bool_] | None = None  # [n]  which examples the data set's authors test on
    coarse: NDArray[np.int64] | None = None  # [n]  superclasses, which `partition=superclass` makes the labels
    features: tuple[str, ...] = ()  # names of the inputs, which `partition=features` takes
    schema: Schema | None = None  # of the columns that x was made of
    scaling: Scaling = "own"  # whose training examples inputs are standardised by
    split: Split = "stratified"  # by default
    units: NDArray[Any] | None = None  # [n]  the group or the time of each example, for such splits
    scaler: Scaler | None = None  # what is done to all inputs, whatever they are

    def select(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The inputs of some examples, ready for a model."""
        chosen = self.x[rows]
        return chosen if self.prepare is None else self.prepare(chosen)


Examples = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]
"""x [n, ...] and y [n] of each client."""


@dataclass(frozen=True)
class Clients:
    """Examples assigned to clients."""

    examples: Examples
    target: Target
    recipe: Recipe
    tests: Examples | None = None  # None: to be split off `examples`
    standardise: bool = False
    impute: bool = False
    schema: Schema | None = None
    scaling: Scaling = "own"
    split: Split = "stratified"
    units: Mapping[str, NDArray[Any]] | None = None
    scaler: Scaler | None = None


class Drawing(Protocol):
    """A data set that is generated client by client, without a partition."""

    def drawn(self, rng: np.random.Generator) -> Clients:
        """Every client's examples."""
