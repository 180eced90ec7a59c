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
    """All examples of a data set, in one order, before they are partitioned.

    Args:
        x: Inputs as they are stored, [n, ...]; images are uint8.
        y: Labels, [n].
        target: What a label is: `Classes.numbered(10)`, `Number()` or `Count()`.
        recipe: The `model` and the `train` section that suit the data set.
        columns: Attributes [n] by name, such as writer or site, for partitions by column.
        standardise: Whether inputs are scaled to mean 0 and deviation 1, by training examples.
        impute: Whether missing values are filled in, by training examples too.
        prepare: From stored inputs to what a model takes.
        official: Which examples the data set's authors test on, [n].
        coarse: Superclasses, which `partition=superclass` makes the labels, [n].
        features: Names of the inputs, for `partition=features`.
        schema: Of the columns that `x` was made of.
        scaling: Whose training examples inputs are standardised by: each client's "own", or sums that are "shared".
        split: How examples are split by default.
        units: The group or the time of each example, for such splits, [n].
        scaler: What is done to all inputs, whatever they are.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    target: Target
    recipe: Recipe
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    standardise: bool = False
    impute: bool = False
    prepare: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    official: NDArray[np.bool_] | None = None
    coarse: NDArray[np.int64] | None = None
    features: tuple[str, ...] = ()
    schema: Schema | None = None
    scaling: Scaling = "own"
    split: Split = "stratified"
    units: NDArray[Any] | None = None
    scaler: Scaler | None = None

    def select(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The inputs of the examples `rows`, ready for a model."""
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
