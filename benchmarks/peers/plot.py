"""The results as a picture. It runs in an environment that has matplotlib and nothing else of ours.

python plot.py RESULTS.json PICTURE.png
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

OURS = "#c4442f"
OTHERS = "#7d8ca3"


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    results = json.loads(source.read_text())["results"]
    tasks = [name for name in results if "@" not in name]
    sweep = [name for name in results if "@" in name]
    panels = len(tasks) + bool(sweep)
    figure, axes = plt.subplots(1, panels, figsize=(3.6 * panels, 3.8), squeeze=False, layout="constrained")
    for axis, name in zip(axes[0], tasks, strict=False):
        bars(axis, name, results[name])
    if sweep:
        lines(axes[0][-1], {name: results[name] for name in sweep})
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp.png")
    figure.savefig(temporary, dpi=150)
    temporary.replace(target)


def bars(axis: Any, name: str, entries: dict[str, Any]) -> None:
    """Round time by competitor, the fastest on top."""
    times = sorted(((key, round_time(entry)) for key, entry in entries.items() if entry["void"] is None), key=_second)
    labels, heights = [key for key, _ in times], [1e3 * seconds for _, seconds in times]
    drawn = axis.barh(labels, heights, color=[OURS if key.startswith("fedprior") else OTHERS for key in labels])
    axis.bar_label(drawn, [f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}" for ms in heights], padding=2, fontsize=7)
    if heights:  # from zero: a bar is as long as a round; with room for the labels
        axis.set_xlim(0, 1.2 * heights[-1])
    axis.invert_yaxis()
    axis.set_title(f"{name}: {next(iter(entries.values()))['task']['title']}", fontsize=9)
    axis.set_xlabel("ms a round", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


def lines(axis: Any, sweep: dict[str, Any]) -> None:
    """Round time by the number of clients."""
    keys = dict.fromkeys(key for entries in sweep.values() for key in entries)
    axis.set_prop_cycle(color=["#7d8ca3", "#3b6ea5", "#4f9a6b", "#c79a3a", "#7a5c99"])
    for key in keys:
        points = [
            (int(name.partition("@")[2]), 1e3 * round_time(entries[key]))
            for name, entries in sweep.items()
            if key in entries and entries[key]["void"] is None
        ]
        if points:
            style = {"color": OURS, "linewidth": 2.5} if key.startswith("fedprior") else {"linewidth": 1.2}
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=key, **style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_title("T2 as the federation grows", fontsize=9)
    axis.set_xlabel("clients", fontsize=8)
    axis.set_ylabel("ms a round", fontsize=8)
    axis.tick_params(labelsize=7)
    if axis.lines:
        axis.legend(fontsize=7, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)


def round_time(entry: dict[str, Any]) -> float:
    """The median over repeats of the median over rounds, without the first."""
    rounds: list[list[float]] = [repeat["rounds"] for repeat in entry["repeats"] if "rounds" in repeat]
    return statistics.median(statistics.median(times[1:] or times) for times in rounds)


def _second(pair: tuple[str, float]) -> float:
    return pair[1]


if __name__ == "__main__":
    main()
