"""The figures of the papers: clients by size or by group, and a metric over settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from fedprior.report.charts import STEP, WIDE, Chart, Row, colours, inline
from fedprior.report.charts.outcomes import HIGH


def by_examples(rows: Sequence[Row], series: Mapping[str, str], title: str) -> Chart:
    """A dot per client: `examples` that it trains on, `value`, `client`, `series`."""
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_circle(size=40, opacity=0.8)
        .encode(
            x=alt.X("examples:Q", title="training examples", scale=alt.Scale(type="log", nice=False, padding=8)),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, padding=8)),
            color=colours(series),
            tooltip=["client:N", "examples:Q", alt.Tooltip("value:Q", format=".4~g")],
        )
        .properties(width=WIDE, height=HIGH)
    )
    return chart


def by_group(rows: Sequence[Row], series: Mapping[str, str], title: str) -> Chart:
    """A tick per client and a dot for their mean: `group`, `value`, `client`, `series`."""
    groups = list(dict.fromkeys(row["group"] for row in rows))
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("group:N", title=None, sort=groups, axis=alt.Axis(ticks=False, domain=False)), color=colours(series)
    )
    scale = alt.Scale(zero=False, nice=False, padding=8)
    x = alt.X("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    tip = ["client:N", alt.Tooltip("value:Q", format=".4~g")]
    layers = [
        base.mark_tick(thickness=1, opacity=0.6).encode(x=x, tooltip=tip),
        base.mark_circle(size=70, opacity=1).encode(x=alt.X("mean(value):Q")),
    ]
    return alt.LayerChart(layer=layers).properties(width=WIDE, height=STEP * len(groups))


def by_setting(rows: Sequence[Row], series: Mapping[str, str], title: str) -> Chart:
    """A line per series over settings in their order: `setting`, `value`, `low`, `high`, `series`."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("setting:N", title=None, sort=settings, axis=alt.Axis(labelAngle=0)), color=colours(series)
    )
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
    layers = [
        base.mark_rule().encode(y="low:Q", y2="high:Q"),
        base.mark_line(point=alt.OverlayMarkDef(size=50)).encode(y=y, tooltip=["setting:N", "series:N", "value:Q"]),
    ]
    return alt.LayerChart(layer=layers).properties(width=WIDE, height=HIGH)
