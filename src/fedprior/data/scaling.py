"""Scaling and imputation of a site's inputs, fitted to its own training examples or to everyone's."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprior.data.sums import Sums

COIN = 0.5
"""What inputs of 0 and 1 are divided by: the largest deviation they can have. By its own, a rare 1 lies far out."""
Truths = NDArray[np.bool_] | None
"""Which inputs are 0 or 1; None: nobody says."""
UNKNOWN = 1e30
"""The deviation of an input without any in training, where it is shared: whatever its value will be, it counts as 0."""


class Scaler(NamedTuple):
    """(x - mean) / std, with `fill` where a value is missing (NaN). One number per feature, or one for all of them."""

    fill: NDArray[np.float64] | None  # None: nothing is filled in
    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @classmethod
    def fitted(
        cls, own: NDArray[np.floating[Any]], *, standardise: bool, impute: bool, truths: Truths = None
    ) -> Self | None:
        """Fitted to a site's training examples [n, ...]; None when there is nothing to do."""
        if not (standardise or impute):
            return None
        own = own.astype(np.float64)
        fill = np.zeros(own.shape[1:])
        if impute:
            known = ~np.isnan(own).all(0)
            fill[known] = np.nanmedian(own[:, known], axis=0)  # 0 where no value is known
            own = np.where(np.isnan(own), fill, own)
        constant = (np.ptp(own, axis=0) == 0) | (own.std(0) == 0)  # rounding gives 1e-17 for 0, underflow 0 for 1e-200
        mean = np.where(constant, own[0], own.mean(0)) if standardise else np.zeros_like(fill)
        std = np.where(constant, 1.0, _deviation(own.std(0), truths)) if standardise else np.ones_like(fill)
        return cls(fill if impute else None, mean, std)

    @classmethod
    def from_sums(cls, sums: Sums, *, standardise: bool, impute: bool, truths: Truths = None) -> Self | None:
        """Fitted to all sites' training examples, of which only sums are shared; None when there is nothing to do.

        Mean and deviation are those of the known values; missing values become the mean. An input that is the same
        everywhere, or that nobody knows, has no effect: no weight of it was ever trained.
        """
        if not (standardise or impute):
            return None
        deviation = np.sqrt(sums.square / np.maximum(sums.n, 1))
        mean = sums.mean if standardise else np.zeros_like(sums.mean)
        known = np.where(deviation == 0, UNKNOWN, _deviation(deviation, truths))
        std = known if standardise else np.ones_like(deviation)
        return cls(sums.mean if impute else None, mean, std)

    @classmethod
    def idle(cls, shape: tuple[int, ...]) -> Self:
        """One that leaves inputs as they are."""
        return cls(None, np.zeros(shape), np.ones(shape))

    def __call__(self, x: ArrayLike) -> NDArray[np.float64]:
        """Inputs as they are measured -> as the model takes them."""
        known = np.asarray(x) if self.fill is None else np.where(np.isnan(np.asarray(x)), self.fill, np.asarray(x))
        scaled: NDArray[np.float64] = (known - self.mean) / self.std
        return scaled

    def document(self) -> dict[str, Any]:
        """As JSON, which keeps every digit."""
        return {name: None if part is None else part.tolist() for name, part in self._asdict().items()}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """The inverse of `document`."""
        parts = (document[name] for name in cls._fields)
        return cls(*(None if part is None else np.asarray(part, dtype=np.float64) for part in parts))  # type: ignore[arg-type]


def _deviation(found: NDArray[np.float64], truths: Truths) -> NDArray[np.float64]:
    if truths is None or truths.shape != found.shape:  # of another table: the encoder refuses it
        return found
    return np.where(truths, COIN, found)
