"""A site's own report as a page: how good its model is, how it got there, and what has left the site for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprior.data.target import Target
from fedprior.experiment.wording import privacy
from fedprior.flower.audit import audited_site, lines
from fedprior.metrics import SELECTS, Metric, metrics_of, shown
from fedprior.report.card import unit
from fedprior.report.charts import BLUE, outcomes
from fedprior.report.page.blocks import Block, Column, Figure, Listing, Prose, Section, Table
from fedprior.report.page.document import Page, document

SPLITS, SERIES = ("validation", "test"), "this site"


def report(folder: Path, summary: Mapping[str, Any], target: Target) -> str:
    """The page of a site whose experiment is over; `folder` is the site's, `summary` what `finish` wrote there."""
    metrics, chosen, rows = metrics_of(target), summary["selected"], _rows(summary)
    told = (
        f"The personal model of this site by {summary['method']['name']}, after round {chosen['round']} of "
        f"{summary['rounds']} ({chosen['by']}). Trained on {rows['train']} rows; {rows['validation']} were held out "
        f"for validation and {rows['test']} for testing. This page is at the site alone."
    )
    _, *sent = lines([audited_site(folder)])
    sections = [
        Section("How good it is", [Prose(told), _table(summary, metrics), *map(Prose, privacy(summary))]),
        Section("Learning curves", _curves(summary, metrics)),
        Section("What has left this site", [Listing([line.strip() for line in sent])]),
    ]
    title = f"{summary['site']}, experiment {summary['experiment']}"
    return document(Page(title, f"fedprior {summary['version']}, seed {summary['seed']}", sections))


def _rows(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(row for row in summary["clients"] if row["client"] == summary["site"])
    return found


def _table(summary: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Block:
    number = summary["selected"]["round"]
    scores: Mapping[str, Any] = next((entry for entry in summary["evaluations"] if entry["round"] == number), {})
    rows = [
        [f"{metric.title}{unit(metric)}", *(shown(metric, (scores.get(split) or {}).get(name)) for split in SPLITS)]
        for name, metric in metrics.items()
    ]
    return Table([Column("metric"), *(Column(f"{split} rows") for split in SPLITS)], rows)


def _curves(summary: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[Block]:
    """The NLL, which chooses the round, on both splits."""
    rows = [
        {
            "series": SERIES,
            "round": entry["round"],
            "split": split,
            "value": value,
            "selected": entry["round"] == summary["selected"]["round"],
        }
        for entry in summary["evaluations"]
        for split in SPLITS
        if (value := (entry.get(split) or {}).get(SELECTS)) is not None and math.isfinite(value)
    ]
    title = metrics[SELECTS].title
    return [Figure(outcomes.curves(rows, {SERIES: BLUE}, title), title)] if rows else []
