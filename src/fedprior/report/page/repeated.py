"""The report of a comparison over repeated splits: numbers over all of them; curves and logs are those of the first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedprior.experiment import Result
from fedprior.experiment.assessment import LOCAL, Assessment
from fedprior.experiment.verdict import POOLED, SITE_EFFECTS
from fedprior.metrics import SELECTS, metrics_of
from fedprior.report.page.facts import RunFacts, Story, calibration, story

TITLES = {POOLED: "Pooled rows (reference)", SITE_EFFECTS: "Pooled rows with site effects (reference)"}


def assessed(found: Assessment) -> Story:
    """What an assessment tells."""
    told, verdict = story(found.first), found.verdict
    runs = {name: _over_splits(run, found) for name, run in told.runs.items()}
    references = {TITLES[name]: verdict.methods[name] for name in TITLES if name in verdict.methods}
    place = None if told.place is None else told.place.parent
    return replace(
        told,
        runs=runs,
        text=verdict.text,
        recommended=verdict.recommended,
        judged=found.judged,
        references=references,
        splits=len(found),
        place=place,
    )


def _over_splits(run: RunFacts, found: Assessment) -> RunFacts:
    """A run's facts with the numbers of all splits in place of those of the first."""
    results = [split[run.name] for split in found.values()]
    known = metrics_of(found.federation.target)
    compared = run.name != LOCAL and LOCAL in found.first
    sites = found.gains(run.name) if compared else {}
    test = {name: _mean([result.mean(name) for result in results]) for name in known}
    return replace(
        run,
        sites=sites,
        mean={SELECTS: found.mean_gain(run.name)} if compared else {},
        reliability=calibration(results),
        scores={"test": test, "validation": {SELECTS: found.validation[run.name]}},
        table={site: _row(found, results, site, list(known)) for site in found.federation.clients},
    )


def _row(found: Assessment, results: list[Result], site: str, metrics: list[str]) -> dict[str, Any]:
    """A site's metrics as means over the splits that have them, and its test examples in all."""
    values = {metric: _mean([result.values[site].get(metric) for result in results]) for metric in metrics}
    return {"client": site, "examples": found.tested(site), **values}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
