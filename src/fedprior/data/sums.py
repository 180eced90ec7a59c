"""All that a site shares about its inputs: how many values are known, their mean and their spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError

Float = NDArray[np.float64]


LEAST = 5
"""Known values of an input below which a site says nothing of it: the mean of one value is the value."""


class Sums(NamedTuple):
    """Sums over a site's rows in a form that does not cancel: Σx as n and the mean, Σx² as Σ(x - mean)².

    Four float64 numbers for each input: a message of 32 bytes per input, whatever the number of rows.
    """

    n: Float  # known values
    mean: Float  # Σx / n, 0 where nothing is known
    square: Float  # Σ(x - mean)²
    missing: Float  # values that are missing

    @classmethod
    def of(cls, x: NDArray[np.floating[Any]]) -> Self:
        """Of a site's rows [n, ...], where NaN is a missing value."""
        known = ~np.isnan(x)
        n = known.sum(0).astype(np.float64)
        first = _first(x.astype(np.float64), known)
        shifted = np.where(known, x - first, 0.0)  # a constant becomes 0 exactly, and its spread too
        shift = shifted.sum(0) / np.maximum(n, 1)
        centred = np.where(known, shifted - shift, 0.0)
        rest = centred.sum(0) / np.maximum(n, 1)  # 0 except for rounding
        square = np.maximum(np.square(centred).sum(0) - n * rest**2, 0.0)
        return cls(n, first + (shift + rest), square, len(x) - n)

    @classmethod
    def of_all(cls, sites: Mapping[str, Sums]) -> Sums:
        """Those of all sites' rows together; added in the order of names, whatever the order of arrival."""
        total, *others = (sites[name] for name in sorted(sites))
        for other in others:
            total = total + other
        if total.n.size and not total.n.any():
            raise FedpriorError(
                f"no client has {LEAST} training examples, and the sums of fewer would give them away: use scaling=own."
            )
        return total

    def guarded(self, least: int = LEAST) -> Sums:
        """Without inputs of which too few values are known to be hidden in their sums; nor how many are missing."""
        told = self.n >= least
        return Sums(*(np.where(told, part, 0.0) for part in self))

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        """Of both sites' rows together (Chan, Golub and LeVeque, 1979)."""
        n = self.n + other.n
        apart = other.mean - self.mean
        share = other.n / np.maximum(n, 1)
        mean = np.where(self.n == 0, other.mean, self.mean + apart * share)
        square = self.square + other.square + np.square(apart) * self.n * share
        return Sums(n, mean, square, self.missing + other.missing)

    @property
    def nbytes(self) -> int:
        """The size of the message."""
        return sum(part.nbytes for part in self)


def _first(x: Float, known: NDArray[np.bool_]) -> Float:
    """The first known value of each input, 0 where there is none."""
    if not len(x):
        return np.zeros(x.shape[1:])
    value = np.take_along_axis(x, known.argmax(0)[None], 0)[0]
    return np.where(known.any(0), value, 0.0)
