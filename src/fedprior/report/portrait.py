"""A federation at a glance: each client's number of examples per label, in the terminal and as a chart."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.text import Text

from fedprior.data.federation import Federation
from fedprior.data.heterogeneity import divergence
from fedprior.names import apart, on_screen

BLOCKS = " ▁▂▃▄▅▆▇█"
ROWS = 25
"""Lines for classes in the terminal; neighbouring classes are merged when there are more."""
BANDS = 3
"""Number of lines filled with clients before the rest is left out."""
BINS = 10
LABEL = 30
"""Characters of a label; options are cut at thrice as many."""
LABELS = {"classes": "classes", "number": "ranges of the target", "count": "ranges of the target"}


@dataclass(frozen=True)
class Portrait:
    """What a picture of a federation shows, of its training examples. Names are such as a screen can show."""

    title: str
    clients: tuple[str, ...]
    labels: list[str]  # classes, or ranges of a number
    counts: NDArray[np.int64]  # [N, labels]
    divergence: NDArray[np.float64]  # [N]  Jensen-Shannon, in bits, of a client's labels from those of all
    numbers: dict[str, float]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Training examples of each client, [N]."""
        return np.asarray(self.counts.sum(1))

    def histogram(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """How many clients have how many examples: counts [bins] and edges [bins + 1]."""
        low, high = int(self.sizes.min()), int(self.sizes.max())
        bins = min(BINS, high - low + 1)
        counts, edges = np.histogram(self.sizes, bins=bins, range=(low, high + 1))
        return counts.astype(np.int64), edges


def portrait(data: Federation) -> Portrait:
    """The picture of a federation."""
    table = data.label_counts()
    counts = table.to_numpy(np.int64)
    own, everyone = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    options = "  ".join(f"{k}={on_screen(v, 3 * LABEL)}" for k, v in data.options.items())
    title = f"{on_screen(data.name)}: {len(data)} clients, {len(table.columns)} {LABELS[data.target.kind]}"
    title += f"   {options}" if options else ""
    clients, labels = tuple(apart(data.clients)), apart(table.columns, LABEL)
    return Portrait(title, clients, labels, counts, divergence(own, everyone), data.heterogeneity())


def terminal(picture: Portrait, width: int = 100) -> Text:
    """Classes down, clients across, one character per client; then sizes, divergences and a histogram of sizes."""
    step = -(-picture.counts.shape[1] // ROWS)  # classes per line
    starts = range(0, picture.counts.shape[1], step)
    rows = np.stack([picture.counts[:, c : c + step].sum(1) for c in starts])  # [lines, N]
    lasts = [min(c + step, picture.counts.shape[1]) - 1 for c in starts]
    names = [
        f"{picture.labels[c]}–{picture.labels[d]}" if d > c else picture.labels[c]
        for c, d in zip(starts, lasts, strict=True)
    ]
    gutter = max(7, max(map(cell_len, names)) + 1)
    room = max(10, width - gutter - 1)
    spread = 2 if 2 * len(picture.clients) <= room else 1  # characters per client
    shown = min(len(picture.clients), BANDS * room)
    size = -(-shown // -(-shown * spread // room))  # clients per band, about equally many in each
    lines = [Text(picture.title, style="bold")]
    for first in range(0, shown, size):
        band = slice(first, min(first + size, shown))
        lines.append(Text(""))
        for name, row in zip(names, rows, strict=True):
            lines.append(_line(name, np.sqrt(row[band] / rows.max()), gutter, spread, "cyan"))
        lines.append(_line("size", picture.sizes[band] / picture.sizes.max(), gutter, spread, "green"))
        lines.append(_line("skew", picture.divergence[band], gutter, spread, "magenta"))
        ends = picture.clients[band]
        lines.append(Text(" " * gutter + (f"{ends[0]} … {ends[-1]}" if len(ends) > 1 else ends[0]), style="dim"))
    if shown < len(picture.clients):
        lines.append(Text(f"… {len(picture.clients) - shown} more", style="dim"))
    most, largest = rows.max(), picture.sizes.max()
    legend = f"█ is {most} of a label (heights by square root), a size of {largest}, a skew of 1 bit"
    lines.append(Text(legend, style="dim"))
    lines += [Text(""), Text("clients by size (training examples)", style="bold"), *_bars(picture, width)]
    return Text("\n").join(lines)


def _line(name: str, heights: NDArray[np.floating[Any]], gutter: int, spread: int, style: str) -> Text:
    """Heights of 0 to 1 as blocks; any value above 0 is visible."""
    levels = np.where(heights > 0, np.maximum(1, np.rint(heights * (len(BLOCKS) - 1))), 0).astype(int)
    blocks = "".join(BLOCKS[level].ljust(spread) for level in levels)
    return Text(" " * (gutter - 1 - cell_len(name)) + f"{name} ").append(blocks, style=style)


def _bars(picture: Portrait, width: int) -> list[Text]:
    counts, edges = picture.histogram()
    spans = [f"{int(np.ceil(a))}–{int(np.ceil(b)) - 1}" for a, b in itertools.pairwise(edges)]
    gutter = max(map(len, spans)) + 1
    longest = max(10, min(60, width - gutter - 8))
    return [
        Text(f"{span:>{gutter}} ").append("█" * max(round(longest * n / counts.max()), int(n > 0)), style="green")
        + f" {n}"
        for span, n in zip(spans, counts.tolist(), strict=True)
    ]
