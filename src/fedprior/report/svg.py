"""The picture of a federation as SVG, written by hand, and as a self-contained page."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

from fedprior.report.portrait import Portrait

INK, GREY, DOT, SIZE, SKEW = "#222", "#ccc", "#2b6ca3", "#4d8f5b", "#a3527d"
LEFT, RIGHT, TOP, PANEL, GAP = 78, 24, 52, 74, 44
STYLE = (
    f"text{{font:11px system-ui,sans-serif;fill:{INK}}} .t{{font-size:14px;font-weight:600}} .s{{fill:#777}} "
    f".g{{stroke:{GREY};stroke-width:.6}}"
)


def svg(picture: Portrait) -> str:
    """Dots with areas by count, classes down and clients across; below them sizes, divergences and a histogram."""
    N, C = picture.counts.shape
    cell = min(26.0, max(5.0, 940 / N))
    height = min(22.0, max(5.0, 460 / C))
    wide, tall = max(cell * N, 620.0), height * C
    sizes_at, skew_at, below = TOP + tall + GAP, TOP + tall + 2 * GAP + PANEL, TOP + tall + 3 * GAP + 2 * PANEL
    body = [
        f'<text class="t" x="{LEFT}" y="20">{escape(picture.title)}</text>',
        f'<text class="s" x="{LEFT}" y="38">training examples of each label (down) at each client (across); '
        f"the largest dot is {picture.counts.max():,}</text>",
        *_dots(picture, cell, height),
        *_columns(picture, picture.sizes, int(picture.sizes.max()), sizes_at, cell, SIZE, "training examples"),
        *_columns(picture, picture.divergence, 1.0, skew_at, cell, SKEW, "divergence of its labels from all, bits"),
        *_histogram(picture, below),
        *_numbers(picture, below),
    ]
    w, h = LEFT + wide + RIGHT, below + 132 + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0f} {h:.0f}" width="{w:.0f}" height="{h:.0f}" '
        f'role="img" aria-label="{escape(picture.title)}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(body)}</svg>'
    )


def page(picture: Portrait) -> str:
    """The picture as a web page, complete in one file."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(picture.title)}</title>'
        f'<body style="margin:24px;background:white;overflow-x:auto">{svg(picture)}</body></html>\n'
    )


def _dots(picture: Portrait, cell: float, height: float) -> list[str]:
    N, C = picture.counts.shape
    radius, most = 0.48 * min(cell, height), picture.counts.max()
    every = -(-C // max(1, int(height * C / 14)))  # names only where there is room
    out = []
    for c in range(C):
        y = TOP + height * (c + 0.5)
        out.append(f'<line class="g" x1="{LEFT}" x2="{LEFT + cell * N:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if c % every == 0:
            out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_cut(picture.labels[c])}</text>')
    for i, c in zip(*np.nonzero(picture.counts), strict=True):
        n = int(picture.counts[i, c])
        tip = escape(f"{picture.clients[i]}, {picture.labels[c]}: {n:,}")
        x, y, r = LEFT + cell * (i + 0.5), TOP + height * (c + 0.5), max(0.7, radius * float(n / most) ** 0.5)
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.2f}" fill="{DOT}"><title>{tip}</title></circle>')
    return out


def _columns(
    picture: Portrait, values: NDArray[np.generic], top: float, y: float, cell: float, colour: str, what: str
) -> list[str]:
    """A bar for each client, below its dots."""
    N, base = len(picture.clients), y + PANEL
    out = [
        f'<text class="s" x="{LEFT}" y="{y - 8:.1f}">{what}</text>',
        f'<text x="{LEFT - 8}" y="{y + 8:.1f}" text-anchor="end">{top:,g}</text>',
        f'<text x="{LEFT - 8}" y="{base:.1f}" text-anchor="end">0</text>',
        f'<line class="g" x1="{LEFT}" x2="{LEFT + cell * N:.1f}" y1="{base:.1f}" y2="{base:.1f}"/>',
    ]
    for i, value in enumerate(values):
        high = PANEL * float(value) / top
        tip = escape(f"{picture.clients[i]}: {float(value):,.4g}")
        out.append(
            f'<rect x="{LEFT + cell * (i + 0.1):.1f}" y="{base - high:.1f}" width="{0.8 * cell:.1f}" '
            f'height="{high:.1f}" fill="{colour}"><title>{tip}</title></rect>'
        )
    every = -(-N // max(1, int(cell * N / 90)))
    for i in range(0, N, every):
        x = LEFT + cell * (i + 0.5)
        out.append(
            f'<text class="s" x="{x:.1f}" y="{base + 14:.1f}" text-anchor="middle">{_cut(picture.clients[i])}</text>'
        )
    return out


def _cut(name: str) -> str:
    return escape(name if len(name) <= 14 else name[:13] + "…")


def _histogram(picture: Portrait, y: float) -> list[str]:
    counts, edges = picture.histogram()
    step, base, top = 300 / len(counts), y + 132, int(counts.max())
    out = [f'<text class="s" x="{LEFT}" y="{y - 8:.1f}">clients by number of training examples</text>']
    for k, n in enumerate(counts.tolist()):
        high, x = 110 * n / top, LEFT + step * k
        out.append(
            f'<rect x="{x + 1:.1f}" y="{base - high:.1f}" width="{step - 2:.1f}" height="{high:.1f}" fill="{SIZE}"/>'
        )
        if n:
            middle = x + step / 2
            out.append(f'<text x="{middle:.1f}" y="{base - high - 4:.1f}" text-anchor="middle">{n}</text>')
    for edge in (0, len(counts) // 2, len(counts)):
        x = LEFT + step * edge
        out.append(f'<text class="s" x="{x:.1f}" y="{base + 15:.1f}" text-anchor="middle">{edges[edge]:,.0f}</text>')
    return out


def _numbers(picture: Portrait, y: float) -> list[str]:
    """The numbers of `heterogeneity`, beside the histogram."""
    out = []
    for k, (name, value) in enumerate(picture.numbers.items()):
        at = y + 12 + 16 * k
        out.append(f'<text class="s" x="{LEFT + 380}" y="{at:.1f}">{name.replace("_", " ")}</text>')
        out.append(f'<text x="{LEFT + 560}" y="{at:.1f}" text-anchor="end">{value:,.4g}</text>')
    return out
