"""A reproduced table as a Markdown document."""

from __future__ import annotations

import statistics

from fedprior.papers.outcome import Kind, Outcome
from fedprior.report.papers.words import (
    CHOSEN,
    KINDS,
    QUICK,
    cell,
    collected,
    digits,
    heading,
    quick,
    seeds,
    shown,
    told,
    verdict,
    what,
)


def markdown(outcome: Outcome) -> str:
    """The whole outcome as a document."""
    about = outcome.about
    lines = [f"# {outcome.name}", "", f"{outcome.paper}: {outcome.title}.", ""]
    if outcome.scale == "quick":
        lines += [f"**{QUICK}**: {quick(outcome)}", ""]
    if outcome.stand_in:
        lines += [f"**A stand-in**: {outcome.stand_in}", ""]
    if about.get("part"):
        lines += [f"**Part of the table**: {about['part']}.", ""]
    lines += [
        f"`{about['command']}` · {collected(outcome)} · {seeds(outcome)} · {about['seconds'] / 60:.0f} min of runs · "
        f"{what(outcome)}",
        "",
    ]
    for kind in KINDS:
        rows = shown(outcome, kind)
        if not rows:
            continue
        title = heading(outcome, kind)
        lines += [f"## {title[0].upper()}{title[1:]}", "", "Paper → ours (Δ)", "", *_head(outcome)]
        for row in rows:
            cells = (cell(outcome.number(kind, row, column)) for column in outcome.columns)
            lines.append(f"| {_plain(row)} | " + " | ".join(cells) + " |")
        lines += ["", "Does the paper's order hold?", ""]
        lines += [f"- {column}: {verdict(outcome.ranking(kind, column))}" for column in outcome.columns]
        lines += ["", *_by_client(outcome, kind)]
    if outcome.chosen:
        lines += ["## Chosen on validation data", "", CHOSEN, ""]
        lines += [f"- {row}: {told(setting)}" for row, setting in outcome.chosen.items()]
        lines.append("")
    if outcome.unknown:
        lines += ["## Unspecified settings", "", *(f"- {item}" for item in outcome.unknown), ""]
    return "\n".join(lines)


def _head(outcome: Outcome) -> list[str]:
    names = " | ".join(_plain(column) for column in outcome.columns)
    return [f"| method | {names} |", "|---" * (len(outcome.columns) + 1) + "|"]


def _by_client(outcome: Outcome, kind: Kind) -> list[str]:
    """Our means over clients, where the paper averages differently."""
    if outcome.per == "client":
        return []
    lines = ["Ours as the mean over clients:", "", *_head(outcome)]
    for row in shown(outcome, kind):
        found = (outcome.number(kind, row, column) for column in outcome.columns)
        cells = (digits(statistics.fmean(n.by_client)) if n and n.by_client else "" for n in found)
        lines.append(f"| {_plain(row)} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _plain(name: str) -> str:
    """A name in a Markdown table."""
    return name.replace("|", "\\|")
