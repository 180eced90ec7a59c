"""One data set before it is spread over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Recipe = Mapping[str, Mapping[str, Any]]
"""The `model` and the `train` section that suit a data set."""


@dataclass(frozen=True)
class Table:
    """All examples, in one order."""

    x: NDArray[Any]  # [n, ...]  as stored; images are uint8
    y: NDArray[np.int64]  # [n]
    classes: int
    recipe: Recipe
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # what partitions by column may use
    standardise: bool = False  # by each client's own training examples
    impute: bool = False  # missing values: the median of the client's own training examples
    prepare: Callable[[NDArray[Any]], NDArray[Any]] | None = None  # from x to what a model takes
    official: NDArray[np.bool_] | None = None  # [n]  which examples the data set's authors test on
    coarse: NDArray[np.int64] | None = None  # [n]  superclasses, which `partition=superclass` makes the labels

    def select(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The inputs of some examples, ready for a model."""
        chosen = self.x[rows]
        return chosen if self.prepare is None else self.prepare(chosen)
