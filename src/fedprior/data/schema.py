"""The schema of a table: its columns in order, what they are, the target and the site.

It is inferred from a table, or declared in a file that every site checks its table against (`problems`), so that all
sites derive the same inputs without exchanging data.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import tomli_w
from numpy.typing import NDArray

from fedprior.data import inference
from fedprior.data import target as targets
from fedprior.data.columns import Column, Series, mapped, numbers, repeated, text
from fedprior.data.target import Classes, Number, Target
from fedprior.errors import FedpriorError, no_column, unknown
from fedprior.files import write_text

TARGETS: dict[str, Literal["auto", "classes", "number", "count"]] = {
    "auto": "auto",
    "classes": "classes",
    "category": "classes",
    "yes/no": "classes",
    "number": "number",
    "count": "count",
}
"""The possible kinds of a target."""


@dataclass(frozen=True)
class Schema:
    """Columns in order (neither the target nor the site), the target, and the column that names the site.

    With `indicators`, each column that may have missing values gets one more input, 1 where its value is missing.
    """

    columns: tuple[Column, ...]
    target: Target
    target_name: str
    site: str | None = None
    indicators: bool = False

    def __post_init__(self) -> None:
        if (name := repeated((*self.inputs, self.target_name))) is not None:
            raise FedpriorError(f"two inputs, or an input and the target, are called '{name}': rename a column.")

    @classmethod
    def inferred(
        cls,
        frame: pd.DataFrame,
        *,
        target: str,
        site: str | None = None,
        kinds: Mapping[str, str] | None = None,
        indicators: bool = False,
        where: str = "the table",
    ) -> Self:
        """From a table, by the rules of `inference.judged` and `inference.target`, which `kinds` overrides by name."""
        table, told = by_name(frame, where), dict(kinds or {})
        for name in [target, *([] if site is None else [site]), *told]:
            if name not in table:
                raise no_column(where, name, table)
        if not len(frame):
            raise FedpriorError(f"{where} has a header but no rows: add some.")
        kind = told.get(target, "auto")
        if kind not in TARGETS:
            raise unknown("kind", kind, TARGETS, f"column '{target}', the target")
        inputs = [name for name in table if name not in (target, site)]
        at = None if site is None else table[site]
        columns = tuple(inference.column(name, table[name], told.get(name), where, at) for name in inputs)
        return cls(columns, inference.target(target, table[target], TARGETS[kind], where), target, site, indicators)

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that become inputs."""
        return tuple(column for column in self.columns if column.used)

    @property
    def left_out(self) -> dict[str, str]:
        """The columns that do not, and why."""
        return {column.name: column.note for column in self.columns if not column.used}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of a model's inputs, in order: `age`, `stage=2`, and `age missing` for indicators."""
        own = [name for column in self.used for name in column.inputs]
        return (*own, *(f"{column.name} missing" for column in self._gaps))

    @property
    def truths(self) -> NDArray[np.bool_]:
        """Which inputs are 0 or 1: yes/no, levels and indicators [inputs]."""
        own = [column.kind != "number" for column in self.used for _ in column.inputs]
        return np.array([*own, *(True for _ in self._gaps)], dtype=np.bool_)

    @property
    def hash(self) -> str:
        """SHA-256 of the document: equal where schemas are."""
        return hashlib.sha256(json.dumps(self.document(), sort_keys=True).encode()).hexdigest()

    @property
    def _gaps(self) -> list[Column]:
        return [column for column in self.used if column.missing and self.indicators]

    def matrix(self, frame: pd.DataFrame, where: str = "the table") -> NDArray[np.float64]:
        """The inputs of every row [n, inputs], not yet scaled, NaN where missing; columns may be in any order.

        A level that the schema does not have is coded as the first level is, by zeros: `unknown` counts such rows.
        """
        table = self._table(frame)
        own = [column.values(table[column.name], where) for column in self.used]
        gaps = [table[column.name].isna().to_numpy(np.float64)[:, None] for column in self._gaps]
        return np.concatenate([np.empty((len(frame), 0)), *own, *gaps], axis=1)

    def labels(self, frame: pd.DataFrame) -> NDArray[Any]:
        """The target of every row [n]: class numbers, or numbers."""
        given = by_name(frame).get(self.target_name)
        if given is None:
            raise FedpriorError(f"the table has no column '{self.target_name}', the target: add it.")
        if (n := int(self._unlabelled(given).sum())) > 0:
            raise FedpriorError(
                f"column '{self.target_name}', the target, has {n} rows without {self._aim}: correct or drop them."
            )
        return self._codes(given) if isinstance(self.target, Classes) else numbers(given)

    def unknown(self, frame: pd.DataFrame) -> dict[str, int]:
        """For each category that has any: the number of rows with a level that the schema does not have."""
        table = self._table(frame)
        counts = {c.name: int(c.odd(table[c.name]).sum()) for c in self.used if c.kind == "category"}
        return {name: n for name, n in counts.items() if n}

    def problems(self, frame: pd.DataFrame) -> list[str]:
        """Why a site's table does not fit, naming columns and counts but no values; [] if it fits.

        Columns that the schema does not have are ignored.
        """
        try:
            table = by_name(frame)
        except FedpriorError:
            return ["two columns have the same name: rename one"]
        found = [] if len(frame) else ["the table has no rows"]
        found += [told for column in self.used for told in _misfits(column, table.get(column.name))]
        if self.target_name not in table:
            return [*found, f"there is no column '{self.target_name}', the target"]
        if (n := int(self._unlabelled(table[self.target_name]).sum())) > 0:
            found.append(f"column '{self.target_name}', the target: {n} rows without {self._aim}")
        return found

    def document(self) -> dict[str, Any]:
        """As JSON; what a target learns from the data is not part of a schema."""
        plain = {"kind": self.target.kind, "name": self.target_name}
        own = self.target.document()
        plain |= {key: own[key] for key in ("levels", "unit") if key in own}
        site = {} if self.site is None else {"site": self.site}
        columns = [column.document() for column in self.columns]
        return {"target": plain, **site, "indicators": self.indicators, "columns": columns}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `document`."""
        given = dict(document["target"])
        target = targets.from_document({"unit": "", "mean": 0.0, "deviation": 1.0, **given})
        columns = tuple(Column.from_document(column) for column in document["columns"])
        site = document.get("site")
        return cls(columns, target, str(given["name"]), site, bool(document.get("indicators", False)))

    def write(self, path: Path) -> None:
        """Write it as TOML, or as JSON if the name ends in .json."""
        as_json = path.suffix == ".json"
        write_text(path, json.dumps(self.document(), indent=2) + "\n" if as_json else tomli_w.dumps(self.document()))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a schema written by `write` or by hand."""
        if not path.is_file():
            raise FedpriorError(f"there is no file '{path}': give the path of a schema file.")
        try:
            content = path.read_text("utf-8")
            return cls.from_document(json.loads(content) if path.suffix == ".json" else tomllib.loads(content))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FedpriorError(f"'{path}' is not a schema that can be read: {_why(error)}.") from None

    @property
    def _aim(self) -> str:
        return self.target.aim if isinstance(self.target, Number) else "a class that the schema has"

    def _table(self, frame: pd.DataFrame) -> dict[str, Series[Any]]:
        table = by_name(frame)
        if lacking := [column.name for column in self.used if column.name not in table]:
            names = ", ".join(f"'{name}'" for name in lacking)
            raise FedpriorError(f"the table lacks {names}: give every column that the model was trained on.")
        return table

    def _codes(self, given: Series[Any]) -> NDArray[np.int64]:
        levels = self.target.levels if isinstance(self.target, Classes) else ()
        place = {level: k for k, level in enumerate(levels)}
        return mapped(given, lambda value: place.get(text(value), -1), -1).astype(np.int64)

    def _unlabelled(self, given: Series[Any]) -> NDArray[np.bool_]:
        if isinstance(self.target, Number):
            return ~self.target.holds(numbers(given))
        return np.asarray(self._codes(given) < 0)


def by_name(frame: pd.DataFrame, where: str = "the table") -> dict[str, Series[Any]]:
    """A table's columns by their names."""
    names = [str(name) for name in frame.columns]
    if (name := repeated(names)) is not None:
        raise FedpriorError(f"{where} has two columns '{name}': rename one.")
    return {name: frame.iloc[:, k] for k, name in enumerate(names)}


def _misfits(column: Column, given: Series[Any] | None) -> list[str]:
    """What is wrong with a column of a site's table."""
    name = f"column '{column.name}' ({column.kind})"
    if given is None:
        return [f"there is no {name}"]
    odd, gaps = column.odd(given), int(given.isna().sum())
    told = []
    if odd.any():
        levels = f"{odd.sum()} rows with {given[odd].nunique()} levels that the schema does not have"
        told.append(f"{name}: {levels if column.kind == 'category' else f'{odd.sum()} rows hold something else'}")
    if gaps and not column.missing:
        told.append(f"{name}: {gaps} rows are empty, which the schema does not allow")
    return told


def _why(error: Exception) -> str:
    return f"it lacks '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
