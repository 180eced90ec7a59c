"""What the cells say together: figures per federation, and mean ranks with intervals over federations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprior.benchmark.lines import Line
from fedprior.benchmark.suite import PLACES

POINT = 0.01
"""A site is harmed if its accuracy is further below Local's than this."""
LEVEL = {"accuracy": 0.01, "nll": 0.02}
"""A method is level with the best if it is no further from it than this."""
DRAWS = 2000
FIGURES = ("accuracy", "nll", "ece", "worst", "harmed", "cpu_seconds", "bytes", "validation")
BETTER = {"accuracy": "higher", "worst": "higher"}
KINDS = {
    "alike": "sites alike",
    "labels": "sites differ in their labels",
    "inputs": "sites differ in their inputs",
    "sizes": "sites differ in size",
    "tables": "tables with few columns",
}


class Ranking(NamedTuple):
    """The outcome of a benchmark."""

    figures: pd.DataFrame  # index (federation, method): means over seeds, and `seeds`
    ranks: pd.DataFrame  # index method: rank, low, high, federations, figures' means, level, wins
    refused: dict[str, str]  # method -> why, where it ran nowhere


def ranking(lines: Iterable[Line], metric: str = "nll", kind: str | None = None) -> Ranking:
    """Mean ranks by a metric, over all federations or those of one kind. Only seeds that all methods have count."""
    known = [line for line in lines if line.federation in PLACES]
    chosen = [line for line in known if kind is None or PLACES[line.federation].kind == kind]
    figures = _figures(chosen)
    ran = {line.method for line in chosen if line.refused is None}
    refused = {line.method: line.refused for line in chosen if line.refused is not None and line.method not in ran}
    return Ranking(figures, _ranks(figures, metric), refused)


def _figures(lines: Sequence[Line]) -> pd.DataFrame:
    cells: dict[tuple[str, int], dict[str, Line]] = defaultdict(dict)
    for line in lines:
        if line.refused is None:
            cells[line.federation, line.seed][line.method] = line
    seeds: dict[tuple[str, str], set[int]] = defaultdict(set)
    for (federation, seed), found in cells.items():
        for method in found:
            seeds[federation, method].add(seed)
    rows = []
    for (federation, method), own in sorted(seeds.items()):
        common = set.intersection(own, *(s for (f, _), s in seeds.items() if f == federation)) or own
        values = [_figures_of(cells[federation, seed], method) for seed in sorted(common)]
        means = {name: float(np.mean([v[name] for v in values])) for name in FIGURES}
        rows.append({"federation": federation, "method": method, "seeds": len(common), **means})
    columns = ["federation", "method", "seeds", *FIGURES]
    return pd.DataFrame(rows, columns=columns).set_index(["federation", "method"])


def _figures_of(cell: Mapping[str, Line], method: str) -> dict[str, float]:
    """The figures of one method in a cell; nan where its model diverged."""
    line = cell[method]
    found = {name: _number(getattr(line, name)) for name in FIGURES if name != "harmed"}
    local = cell.get("local")
    found["harmed"] = np.nan if local is None else _harmed(line, local)
    return found


def _harmed(line: Line, local: Line) -> float:
    ours, theirs = (np.array([_number(v) for v in each.sites]) for each in (line, local))
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    return float((ours[both] < theirs[both] - POINT).mean()) if both.any() else np.nan


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _ranks(figures: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Ranks from 1 within each federation, equal ones sharing theirs; a model that diverged comes last."""
    table = figures[metric].unstack("method")
    sign = -1 if BETTER.get(metric) == "higher" else 1
    there = pd.DataFrame(
        {m: [(f, m) in figures.index for f in table.index] for m in table.columns}, index=table.index, dtype=bool
    )
    ranks = (sign * table).fillna(np.inf).where(there).rank(axis=1)
    best = (sign * table).min(axis=1)
    level = (sign * table).le(best + LEVEL.get(metric, 0.0), axis=0) & there
    rows = []
    for method in table.columns:
        own = ranks[method].dropna().to_numpy()
        low, high = _interval(own)
        theirs = figures.xs(method, level="method")
        means = {name: float(theirs[name].mean()) for name in FIGURES}
        federations = {"federations": len(own), "wins": int((own == 1).sum()), "level": int(level[method].sum())}
        rows.append({"method": method, "rank": own.mean(), "low": low, "high": high, **federations, **means})
    columns = ["method", "rank", "low", "high", "federations", "wins", "level", *FIGURES]
    return pd.DataFrame(rows, columns=columns).set_index("method").sort_values("rank", kind="stable")


def _interval(ranks: NDArray[np.float64]) -> tuple[float, float]:
    """95 % of the means of federations drawn with replacement; nan for a single one."""
    if len(ranks) < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(0)
    means = rng.choice(ranks, (DRAWS, len(ranks))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
