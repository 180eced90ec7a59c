"""The curve of a site that joined, as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from fedprior.experiment.curve import Curve, Range
from fedprior.metrics import METRICS, shown
from fedprior.report.tables import plain_table


def curve_table(curve: Curve) -> Table:
    """One row per number of the site's rows; gains where the method has a shared model."""
    metric = next(m for m in METRICS if m.name == curve.metric)
    title = f"Models on some of the site's rows, tested on {curve.held_out} others ({curve.draws} draws)"
    table = plain_table(title)
    compared = ("gain over the shared model", "better in") if curve.shared is not None else ()
    for name in ("rows", "NLL", metric.title, *compared):
        table.add_column(name, justify="right", no_wrap=True)
    if curve.shared is not None:
        table.add_row("shared model", _range(curve.shared), shown(metric, curve.shared_metric))
    for point in curve.points:
        gain = () if point.gain is None else (_range(point.gain, sign="+"),)
        better = () if point.better is None else (f"{100 * point.better:.0f} %",)
        table.add_row(str(point.rows), _range(point.nll), shown(metric, point.metric), *gain, *better)
    return table


def _range(found: Range, sign: str = "") -> str:
    return f"{found.mean:{sign}.3f} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"
