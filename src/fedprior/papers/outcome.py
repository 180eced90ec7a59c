"""The outcome of a table, beside the paper's numbers."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

from fedprior.metrics.classes import METRICS
from fedprior.papers.definition import Scale

Kind = Literal["personal", "global"]
TIMES = ("seconds", "time_share")
COSTS = (*TIMES, "parameters")
"""Costs that a table may hold instead of a metric."""
NORMAL = 1.96
"""Standard errors to either side of a 95 % interval."""
LESS = (*COSTS, *(metric.name for metric in METRICS if metric.better == "lower"))
"""Quantities where less is better."""


class Number(NamedTuple):
    """A cell of the table in the paper's unit."""

    paper: float | None
    values: list[float]  # one per seed
    by_client: tuple[float, ...] = ()  # the same with every client counting equally, where the paper's mean is another
    paper_error: float | None = None  # the paper's ±
    spread: tuple[float, ...] = ()  # the deviation over clients, where the paper's ± is that

    @property
    def ours(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean over seeds; nan for one seed, or if a value is not finite."""
        n = len(self.values)
        known = n > 1 and math.isfinite(self.ours)
        return statistics.stdev(self.values) / math.sqrt(n) if known else math.nan

    @property
    def delta(self) -> float:
        """Ours minus the paper's."""
        return math.nan if self.paper is None else self.ours - self.paper


class Pair(NamedTuple):
    """Two methods of which the paper says that the first is better."""

    better: str
    worse: str
    verdict: Literal["holds", "level", "reversed"]


@dataclass
class Outcome:
    """A table as far as it has been run."""

    name: str
    title: str
    paper: str
    scale: Scale
    metric: str
    per: str
    at: str
    columns: list[str]
    rows: list[str]
    seeds: int
    cells: dict[Kind, dict[str, dict[str, Number]]] = field(default_factory=dict)  # kind -> row -> column
    missing: list[tuple[str, str, int]] = field(default_factory=list)  # row, column, seed: the gaps of --so-far
    about: dict[str, Any] = field(default_factory=dict)  # date, commit, version, seconds
    unknown: list[str] = field(default_factory=list)
    stand_in: str = ""
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)  # row -> what a search on validation data chose
    quick: dict[str, Any] = field(default_factory=dict)  # what the quick scale changes in every run, such as train.lr
    plus_minus: str = "seeds"  # what the paper's ± is over
    figure: dict[str, Any] = field(default_factory=dict)  # what is drawn, for a figure
    drawn: list[dict[str, Any]] = field(default_factory=list)  # its data, see `papers.figures`

    def number(self, kind: Kind, row: str, column: str) -> Number | None:
        """One cell."""
        return self.cells.get(kind, {}).get(row, {}).get(column)

    def seeds_of(self, row: str, column: str) -> int:
        """How many seeds of a cell were run."""
        found = (self.number(kind, row, column) for kind in self.cells)
        return max((len(number.values) for number in found if number is not None), default=0)

    def ranking(self, kind: Kind, column: str) -> list[Pair]:
        """The paper's order of the methods in a column, pair by pair."""
        found = {row: columns[column] for row, columns in self.cells.get(kind, {}).items() if column in columns}
        return ranking(found, ascending=self.metric in LESS, errors=self.plus_minus == "seeds")

    def document(self) -> dict[str, Any]:
        """As JSON."""
        kinds: tuple[Kind, ...] = ("personal", "global")
        document = asdict(self)
        document["cells"] = {
            kind: {
                row: {
                    column: {"paper": n.paper, "ours": n.ours, "delta": n.delta, "error": n.error, "values": n.values}
                    | ({"by_client": list(n.by_client)} if n.by_client else {})
                    | ({"paper_error": n.paper_error} if n.paper_error is not None else {})
                    | ({"spread": list(n.spread)} if n.spread else {})
                    for column, n in columns.items()
                }
                for row, columns in self.cells.get(kind, {}).items()
            }
            for kind in kinds
        }
        document["ranking"] = {
            kind: {column: [pair._asdict() for pair in self.ranking(kind, column)] for column in self.columns}
            for kind in kinds
        }
        return document


def ranking(numbers: Mapping[str, Number], *, ascending: bool = False, errors: bool = True) -> list[Pair]:
    """Every pair of methods that differ in the paper: whether ours are in that order, level, or reversed.

    Methods that diverged are left out, and so are pairs that do not differ beyond the paper's own standard errors, if
    it has them (`errors`): there the paper has no order to hold.
    """
    pairs = []
    known = {row: n for row, n in numbers.items() if n.paper is not None and not math.isnan(n.ours)}
    for a, b in itertools.combinations(known, 2):
        gap = (known[a].paper or 0.0) - (known[b].paper or 0.0)
        if gap == 0 or (errors and abs(gap) <= own_noise(known[a], known[b])):
            continue
        better, worse = (a, b) if (gap > 0) != ascending else (b, a)
        ours = known[better].ours - known[worse].ours
        if level(known[a], known[b]):
            pairs.append(Pair(better, worse, "level"))
        else:
            pairs.append(Pair(better, worse, "holds" if (ours > 0) != ascending else "reversed"))
    return pairs


def own_noise(a: Number, b: Number) -> float:
    """The half width of the 95 % interval of the paper's difference, by its standard errors; 0 where it has none."""
    known = [e for e in (a.paper_error, b.paper_error) if e is not None]
    return NORMAL * math.hypot(*known) if len(known) == 2 else 0.0


def level(a: Number, b: Number) -> bool:
    """Whether two methods are equal as printed, or their difference has a 95 % interval that includes zero.

    Seeds pair them: both saw the same clients and initial weights. The interval is Student's, of the differences seed
    by seed. With one seed there is no interval, and every difference counts.
    """
    if f"{a.ours:.1f}" == f"{b.ours:.1f}":
        return True
    count = len(a.values)
    if count != len(b.values) or count < 2:
        return False
    gaps = np.subtract(a.values, b.values)
    noise = float(gaps.std(ddof=1)) / math.sqrt(count)
    return abs(float(gaps.mean())) <= float(stats.t.ppf(0.975, count - 1)) * noise
