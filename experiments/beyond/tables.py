"""Tables of the judged runs: means, comparisons that the protocol names, and what defaults are chosen by."""

from __future__ import annotations

from typing import Any

import numpy as np
from controls import CONTROLS, METRICS
from references import REFERENCES
from run import PLACES, ROWS


def over(found: dict[str, Any], names: list[str], row: str, metric: str) -> dict[str, float]:
    """Federation -> a row's mean over seeds; those in which it has none are left out."""
    means = {}
    for name in names:
        values = [figures[row][metric] for figures in found[name].values() if metric in figures.get(row, {})]
        if values:
            means[name] = float(np.mean(values))
    return means


def difference(found: dict[str, Any], names: list[str], a: str, b: str, metric: str) -> tuple[float, float, int]:
    """a - b, paired by seed, then averaged over federations: mean, standard error and number of federations."""
    gaps = []
    for name in names:
        own = [
            f[a][metric] - f[b][metric]
            for f in found[name].values()
            if metric in f.get(a, {}) and metric in f.get(b, {})
        ]
        if own:
            gaps.append(np.mean(own))
    error = float(np.std(gaps, ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else float("nan")
    return (float(np.mean(gaps)) if gaps else float("nan")), error, len(gaps)


def ratio(found: dict[str, Any], names: list[str], row: str, what: str) -> float | None:
    """A row's processor time or bytes as a multiple of FedAvg's in the same cell: mean over seeds, then federations."""
    means = []
    for name in names:
        pairs = [(f.get(row, {}).get(what), f.get("FedAvg", {}).get(what)) for f in found[name].values()]
        own = [mine / whole for mine, whole in pairs if mine is not None and whole]
        if own:
            means.append(np.mean(own))
    return float(np.mean(means)) if means else None


def table(found: dict[str, Any], names: list[str]) -> list[str]:
    """One line per row: means over federations that have it."""
    columns = ("row", "federations", "accuracy %", "NLL", "ECE %", "worst tenth %", "below %", "cost", "bytes")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in [*ROWS, *CONTROLS, *REFERENCES, "noise floor"]:
        means = {m: list(over(found, names, row, m).values()) for m in (*METRICS, "worst", "below")}
        if not any(means.values()):
            continue
        shown = [
            f"{scale * np.mean(means[m]):.{digits}f}" if means[m] else ""
            for m, scale, digits in (
                ("accuracy", 100, 2),
                ("nll", 1, 3),
                ("ece", 100, 1),
                ("worst", 100, 1),
                ("below", 100, 0),
            )
        ]
        costs = [f"{r:.1f}" if (r := ratio(found, names, row, what)) is not None else "" for what in ("cpu", "bytes")]
        lines.append(f"| {row} | {len(means['below'])} | {' | '.join(shown)} | {' | '.join(costs)} |")
    return lines


Claim = tuple[
    str, str, tuple[str, ...], tuple[str, ...], str
]  # its title, a row, what it is compared with, metrics, where
TABLES = [name for name, place in PLACES.items() if place.table]
CLAIMS: tuple[Claim, ...] = (
    (
        "1: `stack`, over the federations that were kept aside",
        "stack",
        ("Local", "FedAvg-FT", "Local+CAL", "FedAvg-FT+CAL", *CONTROLS),
        ("accuracy", "nll", "below"),
        "kept",
    ),
    ("2: a third expert", "stack + pFedVEM", ("stack", "pFedVEM"), ("accuracy", "nll"), "kept"),
    ("2: a fourth expert", "stack + pFedVEM + pFedFDA", ("stack + pFedVEM",), ("accuracy", "nll"), "kept"),
    (
        "3: `mixed`, over five tables",
        "mixed",
        ("Local", "FedAvg-FT", "FedMAP", "pFedFDA", "stack", "stack + mixed", *REFERENCES),
        ("accuracy", "nll"),
        "tables",
    ),
    ("4: blind twins", "stack, blind twins", ("stack",), ("accuracy", "nll"), "kept"),
    (
        "4: blind twins, with pFedVEM",
        "stack + pFedVEM, blind twins",
        ("stack + pFedVEM",),
        ("accuracy", "nll"),
        "kept",
    ),
)
LOWER = ("nll", "below")
"""Metrics of which less is better."""


def outcome(gap: float, error: float, metric: str) -> str:
    """A win is a difference of more than two standard errors."""
    if not abs(gap) > 2 * error:
        return "level"
    return "win" if (gap < 0) == (metric in LOWER) else "loss"


def claims(found: dict[str, Any]) -> list[str]:
    """Every comparison that the protocol names, of rows that were run in at least two federations."""
    lines = []
    for title, row, others, metrics, where in CLAIMS:
        names = [n for n in found if (n in TABLES if where == "tables" else PLACES[n].group == where)]
        body = []
        for other in others:
            gaps = {metric: difference(found, names, row, other, metric) for metric in metrics}
            told = [f"{g:+.4f} ± {e:.4f} {outcome(g, e, m)}" for m, (g, e, _) in gaps.items()]
            count = next(iter(gaps.values()))[2]
            if count > 1:
                body.append(f"| {other} | {' | '.join(told)} | {count} |")
        if body:
            lines += [f"\n**Claim {title}**\n", f"| {row} minus | {' | '.join(metrics)} | federations |"]
            lines += ["|" + "---|" * (len(metrics) + 2), *body]
    return lines


def by_federation(found: dict[str, Any], rows: list[str], metric: str) -> list[str]:
    """One line per federation."""
    rows = [row for row in rows if over(found, list(found), row, metric)]
    lines = [f"| {metric} | {' | '.join(rows)} |", "|" + "---|" * (len(rows) + 1)]
    for name, seeds in found.items():
        means = [over(found, [name], row, metric).get(name) for row in rows]
        told = ["" if mean is None else f"{mean:.3f}" for mean in means]
        lines.append(f"| {name} ({len(seeds)}) | {' | '.join(told)} |")
    return lines


def defaults(found: dict[str, Any]) -> list[str]:
    """Validation NLL over the design federations, by which defaults are chosen: rows that saw validation are marked."""
    names = [name for name in found if PLACES[name].group == "design"]
    if not names:
        return []
    seen = {row: over(found, names, row, "validation") for row in ROWS}
    whole = {row: float(np.mean(list(means.values()))) for row, means in seen.items() if len(means) == len(names)}
    lines = ["| row | validation NLL | weights chosen on these rows |", "|---|---|---|"]
    for row in sorted(whole, key=whole.__getitem__):
        optimistic = row.endswith("+CAL") or (row.startswith("stack") and "blind" not in row)
        lines.append(f"| {row} | {whole[row]:.3f} | {'yes' if optimistic else ''} |")
    return [f"Mean over {', '.join(names)}:\n", *lines]
