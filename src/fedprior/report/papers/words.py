"""The wording shared by all views of a reproduced table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedprior.metrics.classes import METRICS
from fedprior.papers.outcome import COSTS, Kind, Number, Outcome, Pair

QUICK = "Not the paper's setting"
CHOSEN = "By `--search`, with equally many settings for every method, except as noted below."
WHAT = {metric.name: f"{metric.title} in {metric.unit}" if metric.unit else metric.title for metric in METRICS} | {
    "seconds": "seconds per round",
    "time_share": "seconds per round, in % of the whole",
    "parameters": "numbers sent to a client",
}
KINDS: dict[Kind, str] = {"personal": "personal models", "global": "the shared model"}


def shown(outcome: Outcome, kind: Kind) -> list[str]:
    """The rows that have numbers of this kind."""
    return [row for row in outcome.rows if outcome.cells.get(kind, {}).get(row)]


def heading(outcome: Outcome, kind: Kind) -> str:
    """Which models the numbers of a kind describe."""
    return what(outcome) if outcome.metric in COSTS else KINDS[kind]


def what(outcome: Outcome) -> str:
    """The metric, and how it is averaged; of a figure, what is drawn of each client."""
    if outcome.figure.get("draw") == "partition":
        return "examples by label"
    if drawn := outcome.figure.get("show"):
        return ", ".join(WHAT.get(quantity, quantity) for quantity in drawn)
    per = " of all test examples together" if outcome.per == "example" else ""
    best = ", best round on test, as the paper reports it" if outcome.at == "best" else ""
    return WHAT[outcome.metric] + per + best


def collected(outcome: Outcome) -> str:
    """When, and at which commits."""
    told = [f"{at['date']} at commit {at['commit']}" for at in (*outcome.about.get("earlier", []), outcome.about)]
    return "collected " + ", ".join(dict.fromkeys(told))


def seeds(outcome: Outcome) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{outcome.seeds} seed{'s' if outcome.seeds > 1 else ''}"


def quick(outcome: Outcome) -> str:
    """What the quick scale is for, and what it changes."""
    run = f" Every run has {told(outcome.quick)}." if outcome.quick else ""
    return f"fewer rounds, examples, seeds or columns, to see whether the ranking appears.{run}"


def told(setting: Mapping[str, Any]) -> str:
    """`train.lr = 0.1, rounds = 3`."""
    return ", ".join(f"{name} = {value}" for name, value in setting.items())


def of(outcome: Outcome, kind: Kind, row: str, column: str) -> str:
    """One cell of an outcome in words."""
    return cell(outcome.number(kind, row, column), errors=outcome.plus_minus == "seeds")


def verdict(pairs: list[Pair]) -> str:
    """One sentence about a column's order."""
    if not pairs:
        return "the paper has no two numbers to compare"
    count = Counter(pair.verdict for pair in pairs)
    said = [f"{count['holds']} of {len(pairs)} pairs of methods in the paper's order"]
    if count["level"]:
        said.append(f"{count['level']} level")
    if count["reversed"]:
        which = ", ".join(f"{p.worse} over {p.better}" for p in pairs if p.verdict == "reversed")
        said.append(f"{count['reversed']} reversed ({which})")
    return "; ".join(said)


def cell(number: Number | None, *, errors: bool = True) -> str:
    """`80.4 → 81.3 ± 1.0 (+0.9)`; `errors`: the paper's ± is an error of its number."""
    if number is None or (number.paper is None and not number.values):
        return ""
    paper = "–" if number.paper is None else digits(number.paper)
    paper += f" ± {number.paper_error:.1f}" if errors and number.paper_error is not None else ""
    if not number.values:
        return f"{paper} →"
    if math.isnan(number.ours):
        return f"{paper} → diverged"
    error = "" if math.isnan(number.error) else f" ± {number.error:.1f}"
    change = f" ({number.delta:+.1f})" if not math.isnan(number.delta) else ""
    return f"{paper} → {digits(number.ours)}{error}{change}"


def digits(value: float) -> str:
    """One decimal, or none for large numbers."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.1f}"
