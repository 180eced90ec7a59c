"""A comparison over repeated splits, and what it says: which method to use, and what federation does for each site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprior.data.federation import Federation
from fedprior.experiment.comparison import Comparison
from fedprior.experiment.references import references
from fedprior.experiment.verdict import Effect, Interval, SiteVerdict, Verdict
from fedprior.experiment.wording import sentences
from fedprior.metrics import SELECTS, metrics_of
from fedprior.metrics.judging import Differences, Estimate, discoveries, estimates
from fedprior.metrics.metric import Metric
from fedprior.metrics.reliability import NORMAL

LEAST = 10
"""Test rows, or groups, below which nothing is said of a site."""
LOCAL = "local"
SHOWN = ("nll", "accuracy", "auroc", "rmse")
"""The metrics of a verdict, if the target has them."""
Array = NDArray[Any]


class Assessment(Mapping[str, Comparison]):
    """A comparison that was repeated over several splits of the same rows: what `fedprior.assess` returns.

    `verdict` answers in words and numbers, `table` has one row per method, `best` is the recommended method, and
    `report(path)` writes a page. It is a mapping from the splits (`split-1`, `split-2`, ...) to their comparisons, so
    `assessment.first["fedmap"].model("va")` is a site's personal model of the first split.
    """

    def __init__(self, splits: Mapping[str, Comparison]) -> None:
        self.splits = dict(splits)

    def __getitem__(self, name: str) -> Comparison:
        return self.splits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def federation(self) -> Federation:
        """The sites with their rows, as in the first split."""
        return next(iter(self.first.values())).federation

    @property
    def first(self) -> Comparison:
        """The comparison of the first split."""
        return next(iter(self.values()))

    @cached_property
    def validation(self) -> dict[str, float]:
        """Method -> its cross-fitted validation NLL, a mean over sites and splits; nan if a model diverged."""
        return {name: float(np.mean([split.validation(name) for split in self.values()])) for name in self.first}

    @property
    def best(self) -> str | None:
        """The method with the lowest validation NLL; test rows have no say.

        A method that has already used the validation rows, to mix models or to choose a penalty, looks better on them
        than it is: it is chosen only where there is no other.
        """
        return self._lowest(list(self.first))

    @property
    def judged(self) -> str | None:
        """The method whose gains are shown: the best but Local, which has none over itself."""
        return self._lowest([name for name in self.first if name != LOCAL])

    def _lowest(self, names: list[str]) -> str | None:
        known = [name for name in names if not np.isnan(self.validation[name])]
        fair = [name for name in known if not self.first[name].method.uses_validation]
        return min(fair or known, key=self.validation.__getitem__, default=None)

    @cached_property
    def methods(self) -> dict[str, dict[str, float]]:
        """Method or reference -> metric -> its mean over sites and splits on the test rows."""
        known = [name for name in SHOWN if name in metrics_of(self.federation.target)]
        found = {name: {m: _mean([s[name].mean(m) for s in self.values()]) for m in known} for name in self.first}
        beside = [references(next(iter(split.values())).federation) for split in self.values()]
        for name in beside[0]:
            found[name] = {m: _mean([split[name].summary[m]["mean"] for split in beside]) for m in known}
        return found

    @property
    def table(self) -> pd.DataFrame:
        """One row per method or reference: its validation NLL, and the mean of each metric on the test rows."""
        frame = pd.DataFrame(self.methods).T.rename_axis("method")
        frame.insert(0, "validation", pd.Series(self.validation))
        return frame

    @cached_property
    def verdict(self) -> Verdict:
        """The answer in words and numbers: `recommended`, `text`, `methods`, `sites` and `mean_gain_nll`."""
        sites = self._sites()
        compared = self.judged is not None and LOCAL in self.first
        mean = self.mean_gain(str(self.judged)) if compared else None
        text = sentences(self.best, self.judged, self.methods, sites, mean)
        return Verdict(self.best, text, self.methods, sites, mean)

    def _sites(self) -> dict[str, SiteVerdict]:
        if self.judged is None or LOCAL not in self.first:
            nothing, names = Interval(np.nan, np.nan, np.nan), self.federation.clients
            return {name: SiteVerdict("cannot tell", self.tested(name), nothing) for name in names}
        return self.gains(self.judged)

    def gains(self, method: str) -> dict[str, SiteVerdict]:
        """What a method does for each site, compared with Local, over all splits.

        Args:
            method: Its name, such as "fedmap".

        Returns:
            Site -> its verdict ("helps", "harms", "no difference" or "cannot tell"), the number of its test rows, and
            its gains with 95 % intervals; positive gains are better.
        """
        known = metrics_of(self.federation.target)
        primary = estimates(self._differences(known[SELECTS], method))
        clear = discoveries({name: found.p for name, found in primary.items() if found.units >= LEAST})
        others = {m: estimates(self._differences(known[m], method)) for m in SHOWN[1:] if m in known}
        return {
            name: SiteVerdict(
                _effect(primary[name], clear=name in clear),
                self.tested(name),
                _interval(primary[name]),
                {metric: _interval(found[name]) for metric, found in others.items()},
            )
            for name in self.federation.clients
        }

    def tested(self, site: str) -> int:
        """The number of rows that a site was tested on, over all splits.

        Args:
            site: Its name.

        Returns:
            The number of different rows (or groups, if rows are grouped), but at least the most that any one split has.
        """
        rows = [_units(next(iter(split.values())).federation, site) for split in self.values()]
        distinct = len(np.unique(np.concatenate(rows)))
        return max(distinct, *(len(own) for own in rows)) if rows else 0

    def _differences(self, metric: Metric, method: str) -> dict[str, Differences]:
        scores = [
            (split[method].example_scores(metric.name), split[LOCAL].example_scores(metric.name))
            for split in self.values()
        ]
        federations = [next(iter(split.values())).federation for split in self.values()]
        found = {}
        for site in self.federation.clients:
            places = [data.row(site) for data in federations]
            pairs = zip(places, scores, strict=True)
            values = [_minus(ours[i], theirs[i]) for i, (ours, theirs) in pairs]
            units = [_units(data, site)[: len(own)] for data, own in zip(federations, values, strict=True)]
            found[site] = Differences(values, units)
        return found

    def mean_gain(self, method: str) -> Interval:
        """The mean gain of a method over Local in NLL, each site counting the same.

        Args:
            method: Its name, such as "fedmap".

        Returns:
            The mean with its 95 % interval, which holds for these sites and says nothing about others; nan if no site
            has a gain.
        """
        found = estimates(self._differences(metrics_of(self.federation.target)[SELECTS], method))
        known = [site for site in found.values() if not np.isnan(site.mean)]
        if not known:
            return Interval(np.nan, np.nan, np.nan)
        mean = float(np.mean([site.mean for site in known]))
        width = NORMAL * float(np.sqrt(np.sum([site.error**2 for site in known]))) / len(known)
        return Interval(mean, mean - width, mean + width)

    def report(self, path: str | Path) -> Path:
        """Write the report of this comparison: one HTML page that opens offline.

        Args:
            path: The file to write, such as "report.html".

        Returns:
            Its path.
        """
        from fedprior.report.page.writing import write

        return write(self, Path(path))

    def __repr__(self) -> str:
        return f"Assessment({len(self)} splits, {len(self.federation)} sites: {self.verdict.text})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.verdict.text)}</p>{self.table.to_html(float_format='{:.3f}'.format)}"


def _minus(ours: Array, theirs: Array) -> Array:
    """Paired differences; none where either is undefined: a model that diverged has values, and they are nan."""
    if len(ours) != len(theirs):
        return np.full(max(len(ours), len(theirs)), np.nan)
    return ours.astype(np.float64) - theirs.astype(np.float64)


def _units(federation: Federation, site: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The row or the group of each test row of a site."""
    return np.asarray(federation.tested[federation.row(site)])


def _mean(values: Sequence[float | None]) -> float:
    """Over the splits that have it."""
    known = [value for value in values if value is not None and not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _interval(found: Estimate) -> Interval:
    return Interval(found.mean, found.low, found.high)


def _effect(found: Estimate, *, clear: bool) -> Effect:
    if found.units < LEAST or np.isnan(found.p):
        return "cannot tell"
    if not clear:
        return "no difference"
    return "helps" if found.mean > 0 else "harms"
