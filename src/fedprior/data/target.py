"""What is predicted: one of several classes, a number, or a count. The data package knows it only through this module.

A target checks labels, says how they are stored and grouped, and how unequal clients are in them. A network
models it by a likelihood (`models.likelihood`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedprior.data.columns import check_text
from fedprior.data.heterogeneity import label_spread, value_spread
from fedprior.errors import FedpriorError, shown, unknown

Values = NDArray[Any]  # [n]
Codes = NDArray[np.int64]  # [n]

MOST = 10**6
"""Classes: a label beyond is an identifier, or a number to predict."""
BINS = 10
"""Groups that numbers are counted in, where classes are counted one by one."""
STRATA = 5
"""Groups of a client's own numbers that a stratified split keeps in proportion."""


class Target(Protocol):
    """What the data package needs of a target."""

    @property
    def kind(self) -> str:
        """`classes`, `number` or `count`."""

    @property
    def dtype(self) -> torch.dtype:
        """How labels are stored; numbers follow the precision of the inputs."""

    def check(self, client: str, y: Values) -> Values:
        """A client's labels in their own type, or an error that says what is wrong with them."""

    def fitted(self, labels: Sequence[Values], training: Sequence[Values]) -> Target:
        """The target with what it takes from every client: the labels that occur, and sums over those in training."""

    def strata(self, y: Values) -> Codes:
        """The group of each of a client's labels that a stratified split keeps in proportion, [n]."""

    def binned(self, y: Values) -> tuple[list[str], Codes]:
        """The groups in which labels are counted: their names, and the group of each label [n]."""

    def spread(self, labels: Sequence[Values]) -> dict[str, float]:
        """How unequal the clients' labels are, in a few numbers."""

    def document(self) -> dict[str, Any]:
        """As JSON; `from_document` is the inverse."""


@dataclass(frozen=True)
class Classes:
    """One of several classes, numbered from 0 in the order of `levels`; no levels: as many as occur."""

    kind: ClassVar[Literal["classes"]] = "classes"

    levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Their names are text."""
        check_text("class", self.levels)

    @classmethod
    def numbered(cls, count: int) -> Classes:
        """Classes without names."""
        if type(count) is not int or not 1 <= count <= MOST:
            raise FedpriorError(f"there cannot be {shown(count)} classes: give a whole number from 1 to {MOST:,}.")
        return cls(tuple(str(k) for k in range(count)))

    @property
    def count(self) -> int:
        """The number of classes."""
        return len(self.levels)

    @property
    def dtype(self) -> torch.dtype:
        """Class numbers."""
        return torch.int64

    def check(self, client: str, y: Values) -> Codes:
        """Whole numbers from 0."""
        if not np.isfinite(y).all() or not np.equal(np.mod(y, 1), 0).all() or y.min() < 0:
            raise FedpriorError(
                f"client '{client}' has labels other than 0, 1, 2, …: encode the classes as integers, or pass "
                "target='number' for a regression."
            )
        return y.astype(np.int64)

    def fitted(self, labels: Sequence[Values], training: Sequence[Values]) -> Classes:
        """As many classes as the largest label implies, unless they are known."""
        largest = max(1 + int(y.max()) for y in labels)
        if self.levels and largest > self.count:
            raise FedpriorError(
                f"a label is {largest - 1} but the federation has {self.count} classes: raise `classes`."
            )
        return self if self.levels else Classes.numbered(largest)

    def strata(self, y: Values) -> Codes:
        """The classes."""
        return y

    def binned(self, y: Values) -> tuple[list[str], Codes]:
        """The classes."""
        return list(self.levels), y

    def spread(self, labels: Sequence[Values]) -> dict[str, float]:
        """Distances between label distributions."""
        return label_spread(labels, self.count)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind, "levels": list(self.levels)}


@dataclass(frozen=True)
class Number:
    """A real number in some unit. `mean` and `deviation` are those of all clients' training labels, from sums."""

    kind: ClassVar[Literal["number", "count"]] = "number"
    aim: ClassVar[str] = "a finite number"
    """What every row must have."""

    unit: str = ""
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def dtype(self) -> torch.dtype:
        """Single precision, until the federation is moved to another."""
        return torch.float32

    def holds(self, y: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of these can be predicted, [n]: finite numbers that single precision can hold."""
        return np.asarray(np.abs(y) <= np.finfo(np.float32).max)

    def check(self, client: str, y: Values) -> NDArray[np.float64]:
        """Finite numbers that single precision can hold."""
        if not self.holds(y).all():
            raise FedpriorError(f"client '{client}' has a missing or infinite target: fill in or drop such rows first.")
        return y.astype(np.float64)

    def fitted(self, labels: Sequence[Values], training: Sequence[Values]) -> Number:
        """Mean and deviation of all training labels: every client sends n, Σy and then Σ(y - mean)², and no label."""
        n = sum(len(y) for y in training)
        mean = sum(float(y.sum()) for y in training) / n
        square = sum(float(np.square(y - mean).sum()) for y in training) / n
        return replace(self, mean=mean, deviation=square**0.5 or 1.0)

    def strata(self, y: Values) -> Codes:
        """Fifths of the client's own labels."""
        return np.searchsorted(np.quantile(y, np.arange(1, STRATA) / STRATA), y)

    def binned(self, y: Values) -> tuple[list[str], Codes]:
        """Tenths of the given labels."""
        inner = np.unique(np.quantile(y, np.arange(1, BINS) / BINS))
        ends = [float(y.min()), *inner.tolist(), float(y.max())]
        names = [f"{a:.4g} – {b:.4g}" for a, b in itertools.pairwise(ends)]
        return names, np.searchsorted(inner, y).astype(np.int64)

    def spread(self, labels: Sequence[Values]) -> dict[str, float]:
        """How much of the variance lies between clients."""
        return value_spread(labels)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind, "unit": self.unit, "mean": self.mean, "deviation": self.deviation}


@dataclass(frozen=True)
class Count(Number):
    """A number of events: 0, 1, 2, … It is a number in all but its distribution, which starts at 0."""

    kind: ClassVar[Literal["number", "count"]] = "count"
    aim: ClassVar[str] = "a whole number from 0 on"

    def holds(self, y: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of these are 0, 1, 2, …"""
        return np.asarray(super().holds(y) & (y >= 0) & (np.floor(y) == y))

    def check(self, client: str, y: Values) -> NDArray[np.float64]:
        """Whole numbers from 0 on."""
        if not self.holds(y).all():
            raise FedpriorError(
                f"client '{client}' has targets other than 0, 1, 2, …: correct or drop such rows, or pass "
                "target='number'."
            )
        return y.astype(np.float64)


NUMBERS: dict[str, type[Number]] = {"number": Number, "count": Count}
"""The targets that are numbers, by kind."""
KINDS = ("classes", *NUMBERS)


def from_document(document: Mapping[str, Any]) -> Classes | Number:
    """The inverse of `document`."""
    kind = str(document["kind"])
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS, "the description of the target")
    if kind == "classes":
        return Classes(tuple(str(level) for level in document["levels"]))
    return NUMBERS[kind](str(document["unit"]), float(document["mean"]), float(document["deviation"]))
