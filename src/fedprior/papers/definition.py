"""A table of a paper as a file: `papers/<paper>/<table>.toml`.

title, paper, seeds, minutes     what it is, and how long all its seeds take on two cores
unknown                          unspecified settings, and the values used here
[run]                            a run as `fedprior run --config` takes it, without a method
[columns.NAME]                   what a column changes in the run; `among` selects the clients to average over
[rows.NAME]                      a method, what it changes in the run, and the published numbers by column
[quick]                          what `--scale quick` changes, and the columns and rows it is limited to
[figure]                         what is drawn of the runs, if it is a figure, see `parts.Figure`
[search]                         how `--search` chooses unspecified settings, see `papers.search`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

import fedprior
from fedprior.data import DATASETS, store
from fedprior.errors import FedpriorError, unknown
from fedprior.experiment import config as configs
from fedprior.experiment.config import Section
from fedprior.metrics import METRICS
from fedprior.options import plain_errors
from fedprior.papers.cell import Cell, merged, unfolded
from fedprior.papers.parts import Column, Figure, Quick, Row, Search

Scale = Literal["paper", "quick"]
COSTS = ("seconds", "time_share", "parameters")
"""`seconds` is the median round, `time_share` its % of row `whole`; `parameters` are what a client is sent: no run."""


def _metric(name: str) -> str:
    known = (*(metric.name for metric in METRICS), *COSTS)
    if name not in known:
        raise ValueError(f"it is none of {', '.join(dict.fromkeys(known))}")
    return name


Metric = Annotated[str, AfterValidator(_metric)]
"""What a cell holds: any metric, or a cost."""


class Table(BaseModel):
    """One table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    paper: str
    run: Section
    columns: dict[str, Column]
    rows: dict[str, Row]
    quick: Quick = Quick()
    search: Search | None = None
    figure: Figure | None = None
    metric: Metric = "accuracy"
    unit: Annotated[float, Field(gt=0, description="the paper's unit in terms of ours")] = 0.01
    per: Annotated[Literal["client", "example"], Field(description="unit of the paper's mean; for accuracy")] = "client"
    at: Annotated[Literal["last", "best"], Field(description="the round whose test results the paper reports")] = "last"
    plus_minus: Annotated[
        Literal["seeds", "clients"],
        Field(description="the paper's ±: the standard error over seeds, or the deviation over clients"),
    ] = "seeds"
    whole: Annotated[str, Field(description="of `time_share`: the row whose seconds are 100 %")] = ""
    seeds: Annotated[int, Field(ge=1)] = 1
    minutes: float = 0.0
    unknown: list[str] = []
    stand_in: Annotated[str, Field(description="how this differs from the paper")] = ""
    path: Path = Path()

    @property
    def name(self) -> str:
        """`pfedvem/table1-fmnist`."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def needs(self) -> list[str]:
        """Data sets that must be in the data directory."""
        return self.needed(self.columns)

    def needed(self, columns: Iterable[str]) -> list[str]:
        """Those for some columns."""
        runs = (
            merged(self.run, self.columns[c].run, row.run, self.quick.run)
            for c in columns
            for row in self.rows.values()
        )
        used = {s if isinstance(s, str) else s.get("name", "") for s in (run.get("data", {}) for run in runs)}
        return sorted({name for data in used for name in PARTS.get(data, (data,)) if name in store.RECORDS})

    @property
    def missing(self) -> list[str]:
        """Those that are not stored."""
        return [name for name in self.needs if store.status(name).state != "stored"]

    def refuse(self, columns: Iterable[str]) -> None:
        """Raise an error if data that some columns need are missing."""
        missing = [found for name in self.needed(columns) if (found := store.status(name)).state != "stored"]
        if missing:
            how = (f"fetch {data.name}" if data.fetchable else f"import {data.name} FILE..." for data in missing)
            told = " and ".join(f"`fedprior data {words}`" for words in how)
            raise FedpriorError(f"{self.name} needs data that are not stored: run {told}.")

    def results(self, scale: Scale) -> Path:
        """Path of the results beside the table, without a suffix."""
        return self.path.parent / "results" / (self.path.stem if scale == "paper" else f"{self.path.stem}-quick")

    def has_results(self, scale: Scale) -> bool:
        """Whether it was run at this scale."""
        stem = self.results(scale)
        return (stem.parent / f"{stem.name}.json").exists()

    @property
    def state(self) -> str:
        """`run` once it has results at the paper's scale, else whether it can be run."""
        if self.has_results("paper"):
            return "run"
        return "data missing" if self.missing else "runnable"

    def tries(self, row: str) -> list[Section]:
        """The settings that a search tries for a row."""
        own = self.rows[row].tries
        return own if own is not None else self.search.tries if self.search else []

    @property
    def choices(self) -> Path:
        """Path of the outcome of the search."""
        stem = (self.search.like if self.search else "") or self.path.stem
        return self.path.parent / "search" / f"{stem}.json"

    @cached_property
    def chosen(self) -> dict[str, Section]:
        """Row -> the setting that a search chose; empty before the first search."""
        if self.search is None or not self.choices.exists():
            return {}
        try:
            found = json.loads(self.choices.read_text(encoding="utf-8"))["rows"]
            chosen = {row: dict(found[row]["chosen"]) for row in self.rows if row in found}
        except (ValueError, KeyError, TypeError):
            raise FedpriorError(f"'{self.choices}' is damaged: search again with --search.") from None
        for row, setting in chosen.items():
            if not self.search.like and setting not in self.tries(row):
                raise FedpriorError(
                    f"'{self.choices}' was made for other settings of '{row}': search again with --search."
                )
        return chosen

    def count(self, scale: Scale, seeds: int | None = None) -> int:
        """How many seeds to run: as asked for, or the scale's own."""
        return seeds or (self.quick.seeds if scale == "quick" else self.seeds)

    def limited(self, scale: Scale, columns: list[str] | None, rows: list[str] | None) -> tuple[list[str], list[str]]:
        """The columns and rows to run."""
        quick = self.quick if scale == "quick" else Quick()
        return (
            _chosen("column", columns or quick.columns, self.columns, self.name),
            _chosen("row", rows or quick.rows, self.rows, self.name),
        )

    def cells(self, scale: Scale, columns: list[str], rows: list[str], seeds: int) -> Iterator[Cell]:
        """Every run of the table; seeds vary slowest, so that a table fills evenly."""
        quick = self.quick.run if scale == "quick" else {}
        for seed in range(seeds):
            for column in columns:
                held = self.search is None or self.search.columns is None or column in self.search.columns
                for row in rows:
                    yield self.cell(row, column, seed, self.chosen.get(row, {}) if held else {}, quick)

    def cell(self, name: str, column: str, seed: int, setting: Section, over: Section) -> Cell:
        """One run: the row's in this column, with a setting, and the changes of a scale or a search."""
        row, nested = self.rows[name], unfolded(setting)
        method = row.method | nested.pop("method", {}) | row.columns.get(column, {})
        parts = (self.run, self.columns[column].run, row.run, nested, over, {"method": method, "seed": seed})
        return Cell(name, column, seed, configs.parse(merged(*parts)))


PARTS: Mapping[str, tuple[str, ...]] = {name: data.stored for name, data in DATASETS.items() if data.stored}
"""Federations that are made of several stored data sets."""


def _chosen(what: str, wanted: list[str] | None, known: Mapping[str, Any], where: str) -> list[str]:
    for name in wanted or []:
        if name not in known:
            raise unknown(what, name, known, where)
    return [name for name in known if wanted is None or name in wanted]


def folder() -> Path:
    """Where the tables are: in the package, or beside it in a source tree."""
    package = Path(fedprior.__file__).parent
    for place in (package / "papers" / "tables", package.parents[1] / "papers"):
        if place.is_dir():
            return place
    raise FedpriorError("the papers' tables are not installed: use a source tree.")


def listing(place: Path | None = None) -> list[Table]:
    """All tables, by name."""
    return [read(path) for path in sorted((place or folder()).glob("*/*.toml"))]


def find(name: str, place: Path | None = None) -> Table:
    """A table by its name."""
    place = place or folder()
    names = [f"{path.parent.name}/{path.stem}" for path in sorted(place.glob("*/*.toml"))]
    if name not in names:
        raise unknown("table", name, names)
    return read(place / f"{name}.toml")


def read(path: Path) -> Table:
    """A table from its file; rows may only refer to existing columns."""
    content = configs.read(path)
    if "path" in content:
        raise FedpriorError(f"'{path}': `path` is set automatically: leave it out.")
    with plain_errors(f"'{path}'"):
        table = Table(**content, path=path)
    for name, row in table.rows.items():
        for column in (*row.paper, *row.paper_global, *row.error, *row.error_global, *row.columns):
            if column not in table.columns:
                raise FedpriorError(f"'{path}': row '{name}' refers to a column '{column}' that does not exist.")
    if table.per == "example" and table.metric != "accuracy":
        raise FedpriorError(f"'{path}': {table.metric} is averaged per client: leave out `per`.")
    if (table.metric == "time_share") != bool(table.whole):
        raise FedpriorError(f"'{path}': `whole` names the row that shares of time refer to: give both or neither.")
    _chosen("row", [table.whole] if table.whole else None, table.rows, f"'{path}'")
    _chosen("column", table.quick.columns, table.columns, f"'{path}'")
    _chosen("row", table.quick.rows, table.rows, f"'{path}'")
    _check_search(table)
    return table


def _check_search(table: Table) -> None:
    """Check that a search is fair: equally many settings for every row, judged on validation data."""
    if table.search is None:
        if any(row.tries for row in table.rows.values()):
            raise FedpriorError(f"'{table.path}': rows have `tries`, but there is no [search] section.")
        return
    _chosen("column", table.search.columns, table.columns, f"'{table.path}'")
    if table.search.like:
        return
    _chosen("column", [table.search.column], table.columns, f"'{table.path}'")
    if not table.search.run.get("data", {}).get("validation"):
        raise FedpriorError(f"'{table.path}': a search needs `run.data.validation`, the share of data used to choose.")
    counts = {row: len(table.tries(row)) for row in table.rows if table.tries(row)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{row} {count}" for row, count in counts.items())
        raise FedpriorError(f"'{table.path}': every row must try equally many settings or none, not {told}.")
