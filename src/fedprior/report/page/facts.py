"""What a report tells, gathered from results in memory or from the files of a run that is still going on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w

from fedprior.data.federation import Federation
from fedprior.experiment import Comparison, Result
from fedprior.experiment.assessment import LEAST
from fedprior.experiment.config import data_section
from fedprior.experiment.journal import Event, Journal
from fedprior.experiment.seal import CLIENTS, LOGS
from fedprior.experiment.selection import compared_by
from fedprior.experiment.verdict import Interval, SiteVerdict
from fedprior.metrics import METRICS, SELECTS, Gain, Metric, main_metric, metrics_of
from fedprior.metrics.reliability import Point, reliability

BESIDE = ("accuracy", "mae")
"""Metrics whose gains stand beside those in NLL, if the target has them."""
OWN = ("csv", "table")
"""Data sets that are files of one's own."""
COUNTS = ("evaluated", "diverged")
"""What an evaluation says beside metrics."""


@dataclass(frozen=True)
class RunFacts:
    """One run of one method, finished or not."""

    name: str
    title: str
    journal: Journal
    rounds: int
    config: str = ""  # as TOML
    summary: Mapping[str, Any] | None = None  # None: it is still going on
    sites: Mapping[str, SiteVerdict] = field(default_factory=dict)  # gains over Local, if it was run
    mean: Mapping[str, Interval] = field(default_factory=dict)  # the mean gain over sites, by metric
    reliability: tuple[Point, ...] = ()
    scores: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # split -> metric, over repeats
    table: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # site -> its test metrics, over repeats

    @cached_property
    def evaluations(self) -> list[Event]:
        """What was seen of the cohort, by round."""
        return [event for event in self.journal.events if event["kind"] == "evaluation"]

    @cached_property
    def trained(self) -> list[Event]:
        """The rounds that are done."""
        return [event for event in self.journal.events if event["kind"] == "round"]

    @property
    def selected(self) -> int | None:
        """The round that validation chose, so far."""
        if self.summary is not None:
            return int(self.summary["selected"]["round"])
        return int(self.evaluations[-1]["selected"]) if self.evaluations else None

    @property
    def length(self) -> str:
        """How many rounds it has, and whether it ended before them."""
        done = self.trained[-1]["round"] if self.trained else self.rounds
        early = self.summary is not None and done < self.rounds
        return f"converged after {done:,} of {self.rounds:,} rounds" if early else f"{self.rounds:,} rounds"

    def score(self, metric: str, split: str = "test") -> float | None:
        """A mean over sites, of the selected models; None: nobody has it, or one diverged.

        The validation NLL of a finished run is the cross-fitted one, by which methods are compared.
        """
        if self.scores:
            found: float | None = self.scores[split].get(metric)
        elif (split, metric) == ("validation", SELECTS) and self.summary is not None:
            found = compared_by(self.summary)
        else:
            chosen = [event for event in self.evaluations if event["round"] == self.selected]
            found = chosen[0]["personal"][split].get(metric, {}).get("mean") if chosen else None
        return None if found is None or math.isnan(found) else float(found)

    def diverged(self) -> bool:
        """Whether a client's selected model is not finite."""
        chosen = [event for event in self.evaluations if event["round"] == self.selected]
        return bool(chosen and chosen[0]["personal"]["test"].get("diverged"))

    def values(self) -> Mapping[str, Mapping[str, Any]]:
        """Each site's number of test examples and its metrics, with the selected models."""
        return self.table or {
            row["client"]: row
            for row in self.journal.read(CLIENTS, self.selected or 0)
            if (row["split"], row["model"]) == ("test", "personal")
        }

    def logs(self) -> list[Event]:
        """What the method logged of each site's last update before the selected round."""
        return list(self.journal.read(LOGS, self.selected or 0))

    def sent(self, way: str) -> float:
        """Bytes per round, `up` or `down`: a mean over those that are done."""
        return sum(e[f"bytes_{way}"] for e in self.trained) / len(self.trained) if self.trained else 0.0


@dataclass(frozen=True)
class Story:
    """All that a report tells."""

    title: str
    runs: Mapping[str, RunFacts]
    text: str = ""  # the verdict
    recommended: str | None = None
    judged: str | None = None  # the method whose gains the text speaks of, if that is another
    data: Federation | None = None
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what no federation could have
    splits: int = 1
    place: Path | None = None

    @property
    def finished(self) -> bool:
        """Whether every run is complete."""
        return all(run.summary is not None for run in self.runs.values())

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The metrics that the runs have, by name, the main one first."""
        if self.data is not None:
            return metrics_of(self.data.target)
        seen = {name for run in self.runs.values() for e in run.evaluations for name in e["personal"]["test"]}
        return {metric.name: metric for metric in reversed(METRICS) if metric.name in seen - set(COUNTS)}

    @property
    def main(self) -> Metric | None:
        """The metric that is shown first."""
        if self.data is not None:
            return main_metric(self.data.target)
        return next((self.metrics[name] for name in ("accuracy", "rmse") if name in self.metrics), None)

    @property
    def shown(self) -> str:
        """The method that is shown first: the one that the text speaks of, else the last."""
        wanted = self.judged or self.recommended
        return wanted if wanted is not None and wanted in self.runs else list(self.runs)[-1]


def data_name(name: str, options: Mapping[str, Any]) -> str:
    """A data set as a title calls it: a table of one's own by its file."""
    return Path(str(options["path"])).name if name in OWN and "path" in options else name


def story(found: Result | Comparison) -> Story:
    """What a finished run or comparison tells."""
    if isinstance(found, Result):
        runs = ([] if found.reference is None else [found.reference]) + [found]
        names = {result.name: facts(result) for result in runs}
        title = f"{found.method.about.title} on {data_name(found.federation.name, found.federation.options)}"
        return Story(title, names, _run_text(found), found.name, data=found.federation, place=found.journal.folder)
    first = next(iter(found.values()))
    place = None if first.journal.folder is None else first.journal.folder.parent
    names = {name: facts(result) for name, result in found.items()}
    title = f"{len(found)} methods on {data_name(first.federation.name, first.federation.options)}"
    return Story(title, names, _text(found, names), found.best, data=first.federation, place=place)


def _text(found: Comparison, runs: Mapping[str, RunFacts]) -> str:
    """What validation recommends, and for whom the test examples say that it helps."""
    if found.best is None:
        return "No method has a validation NLL to be chosen by."
    best = runs[found.best]
    said = f"{best.title} has the lowest validation NLL of {len(found)} methods."
    if not best.sites:
        return said
    return f"{said} Its models, {_count(best.sites)}."


def _run_text(result: Result) -> str:
    """A single run recommends nothing."""
    about = f"{result.method.about.title}: the personal models of round {result.selected} ({facts(result).length})"
    if result.reference is None:
        return f"{about}. Without Local beside it, nothing can be said of what federation gains each site."
    return f"{about}, {_count(_sites(result))}."


def _count(sites: Mapping[str, SiteVerdict]) -> str:
    helps, harms, unknown = (
        sum(site.verdict == effect for site in sites.values()) for effect in ("helps", "harms", "cannot tell")
    )
    few = f"; {unknown} have fewer than {LEAST} test examples, too few to tell" if unknown else ""
    return f"compared with training alone, clearly help {helps} of {len(sites)} sites and harm {harms}{few}"


def facts(result: Result) -> RunFacts:
    """One finished run."""
    data, summary = result.federation, result.summary
    known = metrics_of(data.target)
    means = {}
    if result.reference is not None:
        for metric in (SELECTS, *(name for name in BESIDE if name in known)):
            gain = result.gain(metric)
            means[metric] = Interval(gain.mean, gain.mean_low, gain.mean_high)
    return RunFacts(
        result.name,
        result.method.about.title,
        result.journal,
        summary["rounds"],
        _config(result),
        summary,
        _sites(result),
        means,
        calibration([result]),
    )


def calibration(results: Sequence[Result]) -> tuple[Point, ...]:
    """The reliability of one method, from the test examples of all sites and all runs together."""
    found = [values for result in results for values in result.predictions["test"]]
    labels = [values for result in results for values in result.federation.labels("test")]
    target = results[0].federation.target
    return tuple(reliability(target, np.concatenate(found), np.concatenate(labels)))


def _config(result: Result) -> str:
    folder, summary = result.journal.folder, result.summary
    if folder is not None and (folder / "config.toml").is_file():
        return (folder / "config.toml").read_text(encoding="utf-8")
    keys = ("seed", "rounds", "precision", "method", "model", "train")
    document = {key: summary[key] for key in keys} | {"data": data_section(result.federation, summary["seed"])}
    return tomli_w.dumps(_without_none(document))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list | tuple) else value


def _sites(result: Result) -> dict[str, SiteVerdict]:
    """The gains of one run over Local, by site, in NLL and in what has a natural unit."""
    if result.reference is None:
        return {}
    primary = result.gain(SELECTS)
    known = metrics_of(result.federation.target)
    others: dict[str, Gain] = {name: result.gain(name) for name in BESIDE if name in known}
    found = {}
    for i, site in enumerate(result.federation.clients):
        n = result.federation.test.size[i]
        own = Interval(*(float(part[i]) for part in (primary.clients, primary.low, primary.high)))
        gains = {m: Interval(float(g.clients[i]), float(g.low[i]), float(g.high[i])) for m, g in others.items()}
        found[site] = SiteVerdict(_effect(own, n), n, own, gains)
    return found


def _effect(gain: Interval, n: int) -> Literal["helps", "harms", "no difference", "cannot tell"]:
    if n < LEAST or math.isnan(gain.low):
        return "cannot tell"
    return "helps" if gain.low > 0 else "harms" if gain.high < 0 else "no difference"
