"""The report of a comparison over repeated splits: the verdict over all of them, and the runs of the first."""

from __future__ import annotations

from dataclasses import replace

from fedprior.experiment.assessment import Assessment
from fedprior.experiment.verdict import POOLED, SITE_EFFECTS
from fedprior.report.page.facts import Story, story


def assessed(found: Assessment) -> Story:
    """What an assessment tells."""
    told, verdict = story(found.first), found.verdict
    runs = dict(told.runs)
    if found.judged is not None:
        runs[found.judged] = replace(runs[found.judged], sites=verdict.sites)
    references = {name: verdict.methods[name] for name in (POOLED, SITE_EFFECTS) if name in verdict.methods}
    place = None if told.place is None else told.place.parent
    return replace(
        told,
        runs=runs,
        text=verdict.text,
        recommended=verdict.recommended,
        references=references,
        splits=len(found),
        place=place,
    )
