"""A federation drawn: who has how many examples of which label, how large the sites are, and how skewed."""

from __future__ import annotations

import itertools
import math

import altair as alt
import numpy as np

from fedprior.report.charts import BLUE, GREEN, PURPLE, STEP, WIDE, Chart, Row, inline, names
from fedprior.report.portrait import Portrait

DRAWN = 60
"""Sites that a chart has room for; tables and files have all."""
BESIDE = 150
"""Pixels across of the bars beside the dots."""


def picture(found: Portrait) -> Chart:
    """Everything in one drawing: dots with sizes and skews beside them, and a histogram of sizes below."""
    site = names()
    blank = names(labels=False)
    top = alt.hconcat(
        labels(found, site).properties(width=min(WIDE, max(120, 26 * len(found.labels)))),
        sizes(found, blank).properties(width=BESIDE),
        skews(found, blank).properties(width=BESIDE),
        spacing=12,
    )
    numbers = ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in found.numbers.items())
    shown = [line for line in (numbers, cut(found)) if line]
    whole: alt.VConcatChart = alt.vconcat(top, histogram(found), spacing=24)
    return whole.properties(title=alt.TitleParams(text=found.title, subtitle=shown, offset=14))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cut(found: Portrait) -> str:
    """What is said where not all sites are drawn."""
    count = len(found.clients)
    return f"The first {DRAWN} of {count:,} sites are drawn." if count > DRAWN else ""


def labels(found: Portrait, site: alt.Y | None = None) -> Chart:
    """A dot for every label that a site has, with an area by its number of examples."""
    rows: list[Row] = [
        {"site": found.clients[i], "label": found.labels[c], "examples": int(found.counts[i, c])}
        for i, c in itertools.product(range(min(DRAWN, len(found.clients))), range(len(found.labels)))
        if found.counts[i, c]
    ]
    cell = min(STEP, WIDE / len(found.labels))
    longest = max(map(len, found.labels))
    axis = alt.Axis(
        orient="top",
        labelAngle=0 if longest * len(found.labels) < 90 else -45,
        labelOverlap="greedy",
        labelLimit=110,
        ticks=False,
        domain=False,
    )
    area = alt.Scale(domain=[0, int(found.counts.max())], range=[0, math.pi / 4 * (0.95 * cell) ** 2])
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_circle(color=BLUE, opacity=1)
        .encode(
            x=alt.X("label:N", title="label", scale=alt.Scale(domain=found.labels), axis=axis),
            y=site or names(),
            size=alt.Size("examples:Q", scale=area, legend=None),
            tooltip=["site:N", "label:N", alt.Tooltip("examples:Q", format=",")],
        )
        .properties(width=WIDE, height=STEP * min(DRAWN, len(found.clients)))
    )
    return chart


def sizes(found: Portrait, site: alt.Y | None = None) -> Chart:
    """Training examples of each site."""
    return _bars(found, found.sizes, "training examples", GREEN, ",", site)


def skews(found: Portrait, site: alt.Y | None = None) -> Chart:
    """How far each site's labels are from those of all."""
    return _bars(found, found.divergence, "skew of labels, bits", PURPLE, ".3f", site, most=1)


def _bars(
    found: Portrait,
    values: np.ndarray,
    what: str,
    colour: str,
    digits: str,
    site: alt.Y | None,
    most: float | None = None,
) -> Chart:
    rows: list[Row] = [
        {"site": name, "value": v.item()} for name, v in zip(found.clients[:DRAWN], values, strict=False)
    ]
    scale = alt.Scale(zero=True) if most is None else alt.Scale(domain=[0, most])
    axis = alt.Axis(orient="top", tickCount=4, format="~s" if most is None else "~g")
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar(color=colour)
        .encode(
            x=alt.X("value:Q", title=what, scale=scale, axis=axis),
            y=site or names(),
            tooltip=["site:N", alt.Tooltip("value:Q", title=what, format=digits)],
        )
        .properties(width=WIDE, height=STEP * min(DRAWN, len(found.clients)))
    )
    return chart


def histogram(found: Portrait) -> Chart:
    """How many sites have how many training examples."""
    counts, edges = found.histogram()
    rows: list[Row] = [
        {"from": float(a), "to": float(b), "until": float(b - 0.03 * (b - a)), "sites": int(n)}
        for n, (a, b) in zip(counts, itertools.pairwise(edges), strict=True)
    ]
    axis, whole = alt.Axis(format=",d", tickMinStep=1, tickCount=6), alt.Axis(format="d", tickMinStep=1)
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar(color=GREEN)
        .encode(
            x=alt.X("from:Q", title="training examples", scale=alt.Scale(zero=False), axis=axis),
            x2="until:Q",
            y=alt.Y("sites:Q", title="sites", axis=whole),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip("from:Q", format=",.0f"), alt.Tooltip("to:Q", format=",.0f"), "sites:Q"],
        )
        .properties(width=min(WIDE, 420), height=110)
    )
    return chart
