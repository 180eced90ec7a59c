"""What came of runs: gains per site, learning curves, reliability, what a method learned, bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from fedprior.report.charts import BLUE, GREY, RED, STEP, WIDE, Chart, Row, colours, ends, inline, names

DRAWN = 40
"""Sites that a chart has room for: half of them from each end. Tables and files have all."""
EFFECTS = {"helps": BLUE, "harms": RED, "no difference": GREY, "cannot tell": "#bbbbbb"}
HIGH = 260


def cut(rows: Sequence[Any], by: str) -> str:
    """What is said where not all sites are drawn."""
    return f"{DRAWN} of {len(rows):,} sites are drawn, half from each end, by {by}." if len(rows) > DRAWN else ""


def gains(rows: Sequence[Row], unit: str) -> Chart:
    """The gain of each site with its interval, the largest on top: `site`, `gain`, `low`, `high`, `series`, `n`."""
    ordered = sorted(rows, key=lambda row: -_number(row["gain"]))
    shown = ends(ordered, DRAWN)
    base = alt.Chart(inline(shown)).encode(
        y=names(),
        color=colours({k: v for k, v in EFFECTS.items() if any(row["series"] == k for row in shown)}),
        tooltip=[
            "site:N",
            *(alt.Tooltip(f"{key}:Q", format="+.3f") for key in ("gain", "low", "high")),
            alt.Tooltip("series:N", title="verdict"),
            alt.Tooltip("n:Q", title="test examples", format=","),
        ],
    )
    x = alt.X("low:Q", title=f"gain over Local, {unit}; right of zero is better", axis=alt.Axis(tickCount=7))
    zero = alt.Chart(inline([{"zero": 0}])).mark_rule(color=GREY, strokeDash=[3, 3]).encode(x="zero:Q")
    layers = [
        zero,
        base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q"),
        base.mark_circle(size=70, opacity=1).encode(x="gain:Q"),
    ]
    return alt.LayerChart(layer=layers).properties(width=WIDE, height=max(60, STEP * len(shown)))


def _number(value: float | None) -> float:
    return -math.inf if value is None or math.isnan(value) else value


def curves(rows: Sequence[Row], series: Mapping[str, str], title: str) -> Chart:
    """A metric over rounds: `round`, `value`, `split`, `series` and whether the round was `selected`."""
    dash = alt.Scale(domain=["validation", "test"], range=[[1, 0], [4, 3]])
    picked = alt.selection_point(name="picked", fields=["series"], bind="legend")
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(format="d", tickMinStep=1, grid=False, **_ticks(rows))),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        color=colours(series),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.12)),
        tooltip=[alt.Tooltip("series:N", title="method"), "round:Q", "split:N", alt.Tooltip("value:Q", format=".4f")],
    )
    several = len({row["split"] for row in rows}) > 1
    split = alt.StrokeDash("split:N", scale=dash, legend=alt.Legend(title=None)) if several else alt.value([1, 0])
    layers = [
        base.mark_line().encode(strokeDash=split).add_params(picked),
        base.mark_circle(size=22),
        base.transform_filter("datum.selected").mark_point(size=130, filled=False, strokeWidth=2),
    ]
    return alt.LayerChart(layer=layers).properties(width=WIDE, height=HIGH)


def _ticks(rows: Sequence[Row]) -> dict[str, Any]:
    """Whole numbers for a few rounds, where Vega would put ticks between them and write those rounded."""
    rounds = [int(row["round"]) for row in rows]
    few = bool(rounds) and max(rounds) - min(rounds) < 10
    return {"values": list(range(min(rounds), max(rounds) + 1))} if few else {}


def reliability(rows: Sequence[Row], series: Mapping[str, str], claim: str, truth: str) -> Chart:
    """What was claimed against what came true: `claimed`, `found`, `low`, `high`, `n`, `series`."""
    unit = alt.Scale(domain=[0, 1])
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("claimed:Q", title=claim, scale=unit, axis=alt.Axis(format="%", tickCount=5)),
        color=colours(series),
        tooltip=[
            alt.Tooltip("series:N", title="method"),
            *(alt.Tooltip(f"{key}:Q", format=".1%") for key in ("claimed", "found", "low", "high")),
            alt.Tooltip("n:Q", title="examples", format=","),
        ],
    )
    y = alt.Y("found:Q", title=truth, scale=unit, axis=alt.Axis(format="%", tickCount=5))
    diagonal = alt.Chart(inline([{"claimed": 0, "found": 0}, {"claimed": 1, "found": 1}]))
    layers = [
        diagonal.mark_line(color=GREY, strokeDash=[3, 3]).encode(x="claimed:Q", y=y),
        base.mark_rule(opacity=0.45).encode(y="low:Q", y2="high:Q"),
        base.mark_line(point=alt.OverlayMarkDef(size=45)).encode(y=y),
    ]
    return alt.LayerChart(layer=layers).properties(width=WIDE, height=320)


def learned(rows: Sequence[Row], title: str) -> Chart:
    """One number per site, the largest on top: `site`, `value`."""
    shown = ends(sorted(rows, key=lambda row: -_number(row["value"])), DRAWN)
    chart: alt.Chart = (
        alt.Chart(inline(shown))
        .mark_circle(size=60, color=BLUE, opacity=1)
        .encode(
            x=alt.X("value:Q", title=title, scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=5)),
            y=names(),
            tooltip=["site:N", alt.Tooltip("value:Q", title=title, format=".4~g")],
        )
        .properties(width=WIDE, height=max(40, STEP * len(shown)))
    )
    return chart


def effects(rows: Sequence[Row]) -> Chart:
    """Estimates with their intervals, the largest on top: `site` (what is estimated), `value`, `low`, `high`."""
    shown = ends(sorted(rows, key=lambda row: -_number(row["value"])), DRAWN)
    base = alt.Chart(inline(shown)).encode(
        y=names(),
        tooltip=[
            alt.Tooltip("site:N", title="of"),
            *(alt.Tooltip(f"{key}:Q", format="+.4~g") for key in ("value", "low", "high")),
        ],
    )
    x = alt.X("low:Q", title="estimate, 95 % interval", axis=alt.Axis(tickCount=7))
    layers = [
        alt.Chart(inline([{"zero": 0}])).mark_rule(color=GREY, strokeDash=[3, 3]).encode(x="zero:Q"),
        base.mark_rule(strokeWidth=2, color=BLUE).encode(x=x, x2="high:Q"),
        base.mark_circle(size=60, opacity=1, color=BLUE).encode(x="value:Q"),
    ]
    return alt.LayerChart(layer=layers).properties(width=WIDE, height=max(60, STEP * len(shown)))


def shares(rows: Sequence[Row], series: Mapping[str, str]) -> Chart:
    """Shares that add up to one, of each site: `site`, `series`, `value`."""
    count = len({row["site"] for row in rows})
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X("value:Q", title="weight", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5)),
            y=names(),
            color=colours(series),
            order=alt.Order("place:Q"),
            tooltip=["site:N", alt.Tooltip("series:N", title="of"), alt.Tooltip("value:Q", format=".1%")],
        )
        .properties(width=WIDE, height=max(40, STEP * count))
    )
    return chart


def traffic(rows: Sequence[Row]) -> Chart:
    """Bytes per round and method: `method`, `bytes`, `series` (to sites, or to the server)."""
    ways = {"to the sites": BLUE, "to the server": "#56B4E9"}
    count = len({row["method"] for row in rows})
    chart: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_bar()
        .encode(
            x=alt.X("bytes:Q", title="bytes per round, all sites", axis=alt.Axis(format="~s", tickCount=5)),
            y=names(field="method"),
            color=colours(ways),
            tooltip=["method:N", alt.Tooltip("series:N", title="sent"), alt.Tooltip("bytes:Q", format=",.0f")],
        )
        .properties(width=WIDE, height=max(40, STEP * count))
    )
    return chart
