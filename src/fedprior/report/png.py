"""The picture of a federation as PNG, drawn by matplotlib if installed."""

from __future__ import annotations

import io
from importlib import import_module

import numpy as np

from fedprior.errors import FedpriorError
from fedprior.report.portrait import Portrait
from fedprior.report.svg import DOT, SIZE, SKEW


def png(picture: Portrait) -> bytes:
    """The same four panels as `svg`."""
    try:
        figures, agg = import_module("matplotlib.figure"), import_module("matplotlib.backends.backend_agg")
    except ImportError:
        raise FedpriorError(
            "PNG pictures need matplotlib: install it with `pip install 'fedprior[plot]'`, or use --html."
        ) from None
    N, C = picture.counts.shape
    cell, tall = min(0.26, max(0.07, 9.4 / N)), min(7.0, max(2.0, 0.22 * C))
    figure = figures.Figure(figsize=(max(cell * N, 6.2) + 1.2, tall + 5.4), dpi=110, layout="constrained")
    agg.FigureCanvasAgg(figure)
    dots, sizes, skew, below = figure.subplots(4, 1, height_ratios=(tall, 1, 1, 1.5))
    figure.suptitle(picture.title, parse_math=False, fontsize=11, x=0.02, ha="left")
    clients, classes = np.nonzero(picture.counts)
    area = (72 * 0.46 * 2 * min(cell, tall / C)) ** 2
    scale = picture.counts[clients, classes] / picture.counts.max()
    dots.scatter(clients, classes, s=np.maximum(area * scale, 0.5), c=DOT, linewidths=0)
    dots.set(ylabel="label", xlim=(-0.7, N - 0.3), ylim=(C - 0.4, -0.6))
    dots.grid(axis="y", linewidth=0.3)
    dots.set_title(f"training examples; the largest dot is {picture.counts.max():,}", fontsize=9, loc="left")
    for axes, values, colour, what in (
        (sizes, picture.sizes, SIZE, "examples"),
        (skew, picture.divergence, SKEW, "skew, bits"),
    ):
        axes.bar(np.arange(N), values, color=colour)
        axes.set(ylabel=what, xlim=(-0.7, N - 0.3))
    skew.set(ylim=(0, 1), xlabel="client")
    counts, edges = picture.histogram()
    below.bar(edges[:-1], counts, width=0.95 * np.diff(edges), align="edge", color=SIZE)
    below.set(xlabel="training examples", ylabel="clients")
    for axis in (dots.xaxis, dots.yaxis, sizes.xaxis, skew.xaxis, below.yaxis):
        axis.get_major_locator().set_params(integer=True)  # whole client numbers only
    for axes in (dots, sizes, skew, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
