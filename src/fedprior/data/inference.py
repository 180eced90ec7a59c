"""The kinds of a raw table's columns, inferred from their values."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprior.data.columns import KINDS, WORDS, Column, Kind, Series, mapped, numbers, place, text
from fedprior.data.target import NUMBERS, Classes, Number
from fedprior.errors import FedpriorError, unknown

FEW = 20
"""A numeric target with more distinct values is a number; integers can be a key from this many rows on."""
ROWS = 5
"""From this many rows on, text that never repeats is taken as an identifier."""
LEVELS = 100
"""The largest number of levels that a category may have."""
DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([T ]\d.*)?\s*")
KEY = re.compile(r"(.*[\W_])?(id|index|key)|unnamed: \d+", re.IGNORECASE)
PERSON = re.compile(
    r"(.*[\W_])?(patient|person|pupil|student|subject|participant|case|record|row)s?([\W_]?(no|nr|num|number|code))?",
    re.IGNORECASE,
)
"""Names of numbers that are given out at each site."""
COMMA = re.compile(r"\s*[-+]?\d+(,\d+)?\s*")

Judgement = tuple[Kind, str]  # the kind, and why the column is left out


def column(
    name: str,
    given: Series[Any],
    kind: str | None = None,
    where: str = "the table",
    site: Series[Any] | None = None,
) -> Column:
    """A column of the given kind, or of the one that its values suggest; `site` has the site of every row."""
    if kind is not None and kind not in KINDS:
        raise unknown("kind", kind, KINDS, f"column '{name}'")
    chosen, note = judged(name, given, where, site) if kind is None else (kind, _told(kind))
    levels = tuple(_levels(given)) if chosen == "category" else ()
    made = Column(name, chosen, levels, bool(given.isna().any()), note)
    if kind is not None and chosen in ("number", "yes/no"):
        made.values(given, where)  # declared by the user: check it now
    return made


def judged(name: str, given: Series[Any], where: str, site: Series[Any] | None = None) -> Judgement:
    """The kind of a column, in this order.

    A column with one value is a constant. 0 and 1, true and false, yes and no are yes/no. Other numbers are numbers,
    also when written as text; whole ones that are all distinct are an identifier if the name says so (`id`, `key`) or
    if they count 20 rows or more without a gap, and so are whole ones that are distinct at each `site`, with five rows
    or more on average, if the name says so (`id`, `patient`, `student_no`). Dates are dates. Other text is a category,
    or an identifier if it is all distinct in 5 rows or more, if more than half of its values, and more than 20, are
    distinct, or if it has more than 100 levels. Text among numbers is refused, but for a few recurring levels such as
    `3+`.
    """
    known = given.dropna()
    if pd.api.types.is_datetime64_any_dtype(known) or pd.api.types.is_timedelta64_dtype(known):
        return "date", _told("date")
    values = numbers(known)
    if not isinstance(known.dtype, pd.CategoricalDtype) and not np.isnan(values).any():
        return _numeric(name, values, None if site is None else site[given.notna()])
    return _worded(name, given, pd.unique(mapped(known, text, "")), where)


def _worded(name: str, given: Series[Any], distinct: NDArray[Any], where: str) -> Judgement:
    if len(distinct) <= 1:
        return "constant", _same(len(distinct))
    words = {level.strip().lower() for level in distinct}
    if any(words <= set(pair) for pair in WORDS):
        return "yes/no", ""
    if isinstance(given.dtype, pd.CategoricalDtype):
        return "category", ""
    return _textual(name, given, distinct, where)


def _numeric(name: str, values: NDArray[np.float64], site: Series[Any] | None) -> Judgement:
    n, distinct = len(values), np.unique(values)
    if len(distinct) <= 1:
        return "constant", _same(len(distinct))
    if distinct.tolist() == [0, 1]:
        return "yes/no", ""
    if len(distinct) == n and _whole(values) and (KEY.fullmatch(name) or (n >= FEW and np.ptp(values) == n - 1)):
        return "identifier", "whole numbers that identify rows"
    if site is not None and (KEY.fullmatch(name) or PERSON.fullmatch(name)) and _whole(values):
        rows = pd.DataFrame({"site": site.to_numpy(), "value": values})
        if n >= max(FEW, ROWS * rows["site"].nunique()) and not rows.duplicated().any():
            return "identifier", "whole numbers that identify the rows of a site"
    return "number", ""


def _same(levels: int) -> str:
    return "the same in every row" if levels else "empty in every row"


def _whole(values: NDArray[np.float64]) -> bool:
    return bool((np.floor(values) == values).all())


def _textual(name: str, given: Series[Any], distinct: NDArray[Any], where: str) -> Judgement:
    known = int(given.notna().sum())
    if all(DATE.fullmatch(level) for level in distinct):
        return "date", _told("date")
    _refuse_commas(name, given, distinct, where)
    odd = given.notna().to_numpy(np.bool_) & np.isnan(numbers(given))
    if 2 * odd.sum() <= known:
        if _open_ended(given[odd], len(distinct), known):
            return "category", ""
        raise FedpriorError(
            f"column '{name}' of {where} has numbers but also text, first in {place(given, odd)}: correct or "
            f"clear these cells, or declare the column a category (data.kinds.{name}=category)."
        )
    many = len(distinct) > FEW and 2 * len(distinct) > known
    if many or len(distinct) > LEVELS or (len(distinct) == known >= ROWS):
        return "identifier", f"text with {len(distinct)} different values in {known} rows"
    return "category", ""


def _refuse_commas(name: str, given: Series[Any], distinct: NDArray[Any], where: str) -> None:
    """Refuse numbers with decimal commas, also with some text among them: they would count as levels."""
    written = {level for level in distinct if COMMA.fullmatch(level)}
    if not any("," in level for level in written):
        return
    if len(written) == len(distinct):
        raise FedpriorError(f"column '{name}' of {where} has decimal commas: write its numbers with a point instead.")
    if len(written) > FEW and 2 * len(written) > len(distinct):
        odd = mapped(given, lambda value: text(value) not in written, False).astype(np.bool_)
        raise FedpriorError(
            f"column '{name}' of {where} has numbers with decimal commas but also text, first in {place(given, odd)}: "
            f"correct or clear these cells, or declare the column a category (data.kinds.{name}=category)."
        )


def _open_ended(odd: Series[Any], levels: int, known: int) -> bool:
    """Whether text among numbers is a level such as `3+` or `>90`: it has a digit, recurs, and levels are few."""
    written = all(re.search(r"\d", str(level)) for level in odd.unique())
    return written and levels <= FEW and 5 * levels <= known and bool((odd.value_counts() > 1).all())


def _told(kind: str) -> str:
    notes = {"date": "a date: give the days from one event to another instead", "constant": "declared a constant"}
    return notes.get(kind, "declared an identifier" if kind == "identifier" else "")


def _levels(given: Series[Any]) -> list[str]:
    """The levels that occur, in their order: declared, of numbers, or of text."""
    if isinstance(given.dtype, pd.CategoricalDtype):
        return list(dict.fromkeys(text(level) for level in given.cat.categories))
    known = given.dropna()
    if pd.api.types.is_numeric_dtype(known):
        return list(dict.fromkeys(text(level) for level in np.sort(known.unique())))
    levels = sorted({str(level) for level in mapped(known, text, "")})
    values = numbers(pd.Series(levels, dtype=object))
    return levels if np.isnan(values).any() else [levels[k] for k in np.argsort(values, kind="stable")]


def target(
    name: str,
    given: Series[Any],
    kind: Literal["auto", "classes", "number", "count"] = "auto",
    where: str = "the table",
) -> Classes | Number:
    """What a target column is: a number if it has fractions or more than 20 distinct numbers, else classes.

    A count is never inferred: it must be declared. Classes are in the order of their numbers or names, each called by
    its name.
    """
    known = given.dropna()
    if kind in NUMBERS or (kind == "auto" and _continuous(known)):
        made = NUMBERS.get(kind, Number)()
        if len(known) < len(given) or known.nunique() < 2 or np.isnan(numbers(known)).any():
            raise FedpriorError(
                f"column '{name}' of {where} needs a number in every row, and at least two different ones."
            )
        if (odd := ~made.holds(numbers(known))).any():
            raise FedpriorError(
                f"column '{name}' of {where}, which is to be predicted, needs {made.aim} in every row, but has "
                f"something else, first in row {int(odd.argmax()) + 1}: correct or drop such rows."
            )
        return made
    levels = _levels(given)
    if len(levels) < 2 or len(known) < len(given):
        raise FedpriorError(f"column '{name}' of {where} needs a class in every row, and at least two classes.")
    return Classes(tuple(levels))


def _continuous(known: Series[Any]) -> bool:
    if isinstance(known.dtype, pd.CategoricalDtype):
        return False
    values = np.unique(numbers(known))
    return not np.isnan(values).any() and (len(values) > FEW or not _whole(values))
