"""Charts: each is defined once, with Vega-Altair, and drawn by a browser, as SVG or as PNG.

Names are values of our own fields, never fields, expressions or markup: nothing in a name is obeyed. They are shown as
`fedprior.names` shows them. Colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from typing import Any, TypeAlias

import altair as alt
import vl_convert
from platformdirs import user_cache_path

from fedprior.experiment.journal import jsonable
from fedprior.files import write_text

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.VConcatChart
Row: TypeAlias = dict[str, Any]

WIDE = 640
"""Pixels across; in a page, a chart is as wide as its place."""
STEP = 18
"""Pixels of a row with a name beside it."""
BLUE, RED, GREY = "#0072B2", "#D55E00", "#8c8c8c"
GREEN, PURPLE = "#009E73", "#CC79A7"
PALETTE = (BLUE, RED, GREEN, PURPLE, "#E69F00", "#56B4E9", "#7b6b00", "#8f6bff", "#a0522d", "#5f8a8b")
"""Okabe's and Ito's without black, with a darker yellow and three more: all are seen on white and on black."""
LOCAL = "Local"

CONFIG = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "#999",
        "gridColor": "#e4e4e4",
        "labelColor": "#555",
        "labelFontSize": 11,
        "labelLimit": 200,
        "tickColor": "#999",
        "tickSize": 3,
        "titleColor": "#555",
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 10,
    },
    "legend": {
        "columnPadding": 24,  # a browser's font may be wider than the one that the drawing was laid out with
        "columns": 4,
        "labelColor": "#555",
        "labelFontSize": 11,
        "labelLimit": 220,
        "orient": "bottom",
    },
    "range": {"category": list(PALETTE)},
    "title": {"anchor": "start", "color": "#222", "fontSize": 13, "fontWeight": 600, "subtitleColor": "#777"},
}


def inline(rows: Iterable[Row]) -> alt.InlineData:
    """Rows as a chart's data; what is not finite is left out of the drawing."""
    return alt.InlineData(values=[jsonable(row) for row in rows])


def names(title: str | None = None, field: str = "site", *, labels: bool = True) -> alt.Y:
    """A row per name, in the order of the data."""
    return alt.Y(f"{field}:N", title=title, sort=None, axis=alt.Axis(ticks=False, domain=False, labels=labels))


def spec(chart: Chart, *, responsive: bool = False) -> dict[str, Any]:
    """A chart as Vega-Lite; `responsive`: as wide as its place in a page."""
    found: dict[str, Any] = chart.to_dict(validate=False) | {"config": CONFIG}  # the tests check; it takes seconds
    found.pop("$schema", None)
    if responsive and "vconcat" not in found:
        found |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return found


def svg(chart: Chart) -> str:
    """A chart as SVG."""
    return vl_convert.vegalite_to_svg(spec(chart))


def png(chart: Chart, scale: float = 2) -> bytes:
    """A chart as PNG, on white."""
    return vl_convert.vegalite_to_png(spec(chart) | {"background": "white", "padding": 12}, scale=scale)


EXPORTS = "window.vegaEmbed = vegaEmbed;"
"""What the script leaves for the page."""


@cache
def runtime() -> str:
    """Vega, Vega-Lite and vega-embed in one script, which a page needs once.

    Making it takes seconds, so that it is kept in the user's cache folder, if that can be written.
    """
    kept = user_cache_path("fedprior") / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8")
    made = f"(()=>{{{vl_convert.javascript_bundle(EXPORTS)}\n}})();"
    with suppress(OSError):
        write_text(kept, made)
    return made


def ends(rows: Sequence[Any], most: int) -> list[Any]:
    """The first and the last of sorted rows, at most so many."""
    return list(rows) if len(rows) <= most else [*rows[: most // 2], *rows[len(rows) - (most - most // 2) :]]


def colours(chosen: Mapping[str, str]) -> alt.Color:
    """A colour per value of `series`, in the order given."""
    scale = alt.Scale(domain=list(chosen), range=list(chosen.values()))
    return alt.Color("series:N", scale=scale, legend=alt.Legend(title=None, symbolOpacity=1))


def palette(series: Sequence[str]) -> dict[str, str]:
    """Grey for Local, which others are compared with; the rest in turn."""
    others = [name for name in series if name != LOCAL]
    found = {name: PALETTE[k % len(PALETTE)] for k, name in enumerate(others)}
    return {name: found.get(name, GREY) for name in series}
