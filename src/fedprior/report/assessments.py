"""Terminal tables of a table's columns, and of an assessment over repeated splits."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from fedprior.data.schema import Schema
from fedprior.experiment.assessment import Assessment
from fedprior.experiment.selection import FITTED, source
from fedprior.experiment.verdict import Interval, SiteVerdict
from fedprior.experiment.wording import REFERENCES, title
from fedprior.metrics import metrics_of, shown
from fedprior.names import on_screen
from fedprior.report.tables import SHOWN, heading, plain_table

STYLES = {"helps": "green", "harms": "red", "cannot tell": "dim"}
WIDTH = 72
"""Characters of the table of columns at least, so that its title and what stands below are lines and no columns."""
MOST = 100
"""Columns that are shown."""


def columns(schema: Schema) -> Table:
    """What each column of a table is taken for, and why some are left out."""
    table = plain_table(
        f"Columns: predicts '{on_screen(schema.target_name)}', {_target(schema)}",
        "To change a kind: data.kinds.COLUMN=number, category, yes/no, identifier (left out); "
        "of the target: classes, number, count.",
    )
    table.min_width = WIDTH
    for name in ("column", "kind", "note"):
        table.add_column(name, no_wrap=name != "note")
    for column in schema.columns[:MOST]:
        note = column.note if column.used else f"left out: {column.note}"
        levels = f"{len(column.levels)} levels" if column.kind == "category" else ""
        gaps = "has missing values: filled in and marked" if column.missing and column.used else ""
        told = "; ".join(part for part in (levels, note, gaps) if part)
        table.add_row(Text(on_screen(column.name)), column.kind, Text(told), style="" if column.used else "dim")
    if len(schema.columns) > MOST:
        table.add_row(f"… {len(schema.columns) - MOST} more")
    return table


def _target(schema: Schema) -> str:
    levels = getattr(schema.target, "levels", None)
    if levels is None:
        return f"a {schema.target.kind}"
    told = ", ".join(on_screen(level, 20) for level in levels[:5])
    return f"{len(levels)} classes ({told}{', …' if len(levels) > 5 else ''})"


def methods(found: Assessment) -> Table:
    """One row per method and reference."""
    known = metrics_of(found.federation.target)
    named = [name for name in next(iter(found.methods.values())) if name in known]
    compared = any(name in REFERENCES for name in found.methods)
    chosen = source(run.summary for split in found.values() for run in split.values())
    table = plain_table(
        f"Means over {len(found.federation)} sites and {len(found)} splits, on the test rows",
        f"Each method's models are those of {chosen}; {FITTED}"
        + ("; references are regressions on pooled rows, which no federation could have." if compared else "."),
    )
    table.add_column("method", no_wrap=True)
    for column in ("validation NLL", *(heading(known[name]) for name in named)):
        table.add_column(column, justify="right", no_wrap=True)
    for name, values in found.methods.items():
        score = found.validation.get(name)
        told = "" if score is None else "–" if math.isnan(score) else f"{score:.3f}"
        label = f"reference: {REFERENCES[name].removeprefix('a ')}" if name in REFERENCES else title(name)
        cells = ["–" if math.isnan(values[m]) else shown(known[m], values[m]) for m in named]
        style = "bold" if name == found.best else "dim" if name in REFERENCES else ""
        table.add_row(Text(label), told, *cells, style=style)
    return table


def sites(found: Assessment) -> Table:
    """One row per site: what federation does for it."""
    judged = found.judged
    table = plain_table(
        "Does federation help?" if judged is None else f"Does federation help? {title(judged)} against Local",
        "Gains in NLL (nats) with 95 % intervals over the rows of all splits; positive is better. Helps and harms: "
        "by Benjamini-Hochberg over the sites, of which at most 5 % are expected to be wrong.",
    )
    for name in ("site", "rows tested", "gain in NLL [95 %]", "verdict"):
        table.add_column(name, justify="right" if name.startswith(("rows", "gain")) else "left", no_wrap=True)
    for name, site in list(found.verdict.sites.items())[:SHOWN]:
        table.add_row(Text(on_screen(name)), str(site.n_test), _gained(site.gain_nll), _said(site))
    if len(found.verdict.sites) > SHOWN:
        table.add_row(f"… {len(found.verdict.sites) - SHOWN} more")
    return table


def _gained(gain: Interval) -> str:
    if math.isnan(gain.mean):
        return "–"
    return f"{gain.mean:+.3f}" + ("" if math.isnan(gain.low) else f" [{gain.low:+.3f}, {gain.high:+.3f}]")


def _said(site: SiteVerdict) -> Text:
    return Text(site.verdict, style=STYLES.get(site.verdict, ""))
