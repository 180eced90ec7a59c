"""A column of a paper's table: the paper's number as a ring, ours as a dot with two standard errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import altair as alt

from fedprior.report.charts import BLUE, RED, WIDE, Chart, Row, inline, names

STEP = 26
TEXT = 150
"""Pixels for the numbers in words, beside the drawing."""


class Entry(NamedTuple):
    """One method of a column."""

    method: str
    paper: float | None
    ours: float
    error: float
    told: str


def column(entries: list[Entry]) -> Chart | None:
    """The drawing; none without numbers."""
    rows = [_row(entry) for entry in entries]
    if all(row["paper"] is None and row["ours"] is None for row in rows):
        return None
    base = alt.Chart(inline(rows)).encode(y=names(field="method"))
    scale = alt.Scale(domain=_domain(rows), nice=False)
    axis = alt.Axis(title=None, tickCount=6, labelFlush=False)
    layers = (
        base.mark_rule(color=BLUE).encode(x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q"),
        base.mark_point(color=RED, filled=False, size=110, strokeWidth=2, opacity=1).encode(x="paper:Q"),
        base.mark_circle(color=BLUE, size=60, opacity=1).encode(x="ours:Q"),
        base.mark_text(align="left", color="#555").encode(x=alt.value(WIDE - TEXT + 12), text="told:N"),
    )
    return alt.LayerChart(layer=list(layers)).properties(width=WIDE - TEXT, height=STEP * len(rows))


def _domain(rows: list[Row]) -> list[float]:
    """From the least to the largest, with a margin; around equal numbers, one to either side."""
    seen = [row[key] for row in rows for key in ("paper", "ours", "low", "high") if row[key] is not None]
    low, high = min(seen), max(seen)
    margin = 0.08 * (high - low) if high - low > 1e-6 * max(1.0, abs(high)) else 1.0
    return [low - margin, high + margin]


def _row(entry: Entry) -> Row:
    ours = entry.ours if math.isfinite(entry.ours) else None
    error = 2 * entry.error if ours is not None and math.isfinite(entry.error) else None
    ends = (None, None) if ours is None or error is None else (ours - error, ours + error)
    told = {"method": entry.method, "paper": entry.paper, "ours": ours, "told": entry.told}
    return {**told, "low": ends[0], "high": ends[1]}
