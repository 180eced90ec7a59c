"""One column of a raw table: its kind, and how its values become inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprior.errors import FedpriorError
from fedprior.names import is_text

Kind = Literal["number", "category", "yes/no", "constant", "identifier", "date"]
KINDS: tuple[Kind, ...] = get_args(Kind)
USED: tuple[Kind, ...] = ("number", "category", "yes/no")
"""The kinds that become inputs; columns of other kinds are left out."""
WORDS = (("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("0", "1"))
"""Spellings of no and yes, in upper or lower case."""
MEANING = {word: float(k) for pair in WORDS for k, word in enumerate(pair)}
LARGEST = float(np.finfo(np.float32).max)

Series = pd.Series  # of anything


@dataclass(frozen=True)
class Column:
    """A column's name, its kind, the levels of a category, whether values may be missing, and why it is left out."""

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()
    missing: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        """Its name and those of its levels are text."""
        check_text("column", [self.name])
        check_text("level", self.levels)

    @property
    def used(self) -> bool:
        """Whether it becomes inputs."""
        return self.kind in USED

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs: one, or of a category one for each level but the first."""
        if self.kind == "category":
            return tuple(f"{self.name}={level}" for level in self.levels[1:])
        return (self.name,) if self.used else ()

    def values(self, given: Series[Any], where: str = "the table") -> NDArray[np.float64]:
        """Its inputs [n, inputs]: NaN where the value is missing, zeros for an unknown level."""
        if self.kind == "category":
            return self._one_hot(given)
        if (odd := self.odd(given)).any():
            told = "yes and no" if self.kind == "yes/no" else "finite numbers"
            raise FedpriorError(
                f"column '{self.name}' of {where} has something other than {told}, first in {place(given, odd)}: "
                "correct or clear these cells."
            )
        return self._plain(given)[:, None]

    def odd(self, given: Series[Any]) -> NDArray[np.bool_]:
        """Where a value is not of this kind: not a finite number, neither yes nor no, or an unknown level [n]."""
        known = given.notna().to_numpy(np.bool_)
        if self.kind == "category":
            return known & (self._codes(given) < 0)
        return known & ~(np.abs(self._plain(given)) <= LARGEST)

    def codes(self, given: Series[Any]) -> NDArray[np.float64]:
        """Its values as numbers [n]: a category's as the position of the level, -1 for others; NaN where missing."""
        if self.kind != "category":
            return self.values(given)[:, 0]
        return np.where(given.isna().to_numpy(np.bool_), np.nan, self._codes(given).astype(np.float64))

    def document(self) -> dict[str, Any]:
        """As JSON, without what is empty."""
        plain = {**asdict(self), "levels": list(self.levels)}
        return {key: value for key, value in plain.items() if value or key == "name"}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """The inverse of `document`."""
        if document["kind"] not in KINDS:
            raise ValueError(f"there is no kind '{document['kind']}'")
        return cls(**{**document, "levels": tuple(str(level) for level in document.get("levels", ()))})

    def _plain(self, given: Series[Any]) -> NDArray[np.float64]:
        return numbers(given) if self.kind == "number" else truths(given)

    def _codes(self, given: Series[Any]) -> NDArray[np.int64]:
        """The number of each value's level [n]; -1 where it is missing or unknown."""
        place = {level: k for k, level in enumerate(self.levels)}
        return mapped(given, lambda value: place.get(text(value), -1), -1).astype(np.int64)

    def _one_hot(self, given: Series[Any]) -> NDArray[np.float64]:
        codes = self._codes(given)
        coded = (codes[:, None] == np.arange(1, len(self.levels))).astype(np.float64)
        return np.where(given.isna().to_numpy(np.bool_)[:, None], np.nan, coded)


def text(value: Any) -> str:
    """A value as the name of a level: 1, 1.0 and "1" are the same level, however a file was read."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return str(value)
    number = value.item() if isinstance(value, np.number) else value
    return str(int(number)) if number == number // 1 and abs(number) < np.inf else repr(number)


def mapped(given: Series[Any], function: Callable[[Any], Any], missing: Any) -> NDArray[Any]:
    """`function` of every value, called once for each distinct one [n]."""
    try:
        codes, distinct = pd.factorize(given)
    except TypeError:  # lists and the like
        raise FedpriorError(f"column '{given.name}' holds neither numbers nor text: convert or drop it.") from None
    results = np.array([*(function(value) for value in distinct), missing], dtype=object)
    return np.asarray(results[codes])  # -1, where a value is missing, is the last


def numbers(given: Series[Any]) -> NDArray[np.float64]:
    """Values as numbers, also if written as text; NaN where they are missing or not numbers [n]."""
    if is_number(given):
        return given.to_numpy(np.float64, na_value=np.nan)
    return mapped(given, _number, np.nan).astype(np.float64)


def is_number(given: Series[Any]) -> bool:
    """Whether a column is stored as real numbers or booleans."""
    return pd.api.types.is_numeric_dtype(given) and not pd.api.types.is_complex_dtype(given)


def truths(given: Series[Any]) -> NDArray[np.float64]:
    """1 for yes and 0 for no, in any spelling; NaN for everything else [n]."""
    return mapped(given, lambda value: MEANING.get(text(value).strip().lower(), np.nan), np.nan).astype(np.float64)


def repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs twice, if any."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def check_text(kind: str, names: Iterable[str]) -> None:
    """Refuse a name of that kind that is not text: files could not hold it, as would be found after training."""
    if (odd := next((name for name in names if not is_text(name)), None)) is not None:
        raise FedpriorError(f"the {kind} name '{odd}' is not text that a file can hold: rename it.")


def _number(value: Any) -> float:
    if not isinstance(value, str | int | float | np.integer | np.floating) or (isinstance(value, str) and "_" in value):
        return float("nan")
    try:
        return float(value)
    except (ValueError, OverflowError, TypeError):
        return float("nan")


def place(given: Series[Any], odd: NDArray[np.bool_]) -> str:
    """The first odd row, counted from 1, with its file where the index names one."""
    first = int(odd.argmax())
    label = given.index[first]
    return f"row {label[1] + 1} of '{label[0]}'" if isinstance(label, tuple) else f"row {first + 1}"
