"""A reproduced table as a Markdown document."""

from __future__ import annotations

import statistics

from fedprior.papers.outcome import Kind, Number, Outcome
from fedprior.report.papers.words import (
    CHOSEN,
    KINDS,
    QUICK,
    collected,
    digits,
    heading,
    of,
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
    if outcome.figure:
        page = outcome.name.rpartition("/")[2] + ("-quick.html" if outcome.scale == "quick" else ".html")
        lines += [f"Drawn in [{page}]({page}).", ""]
    for kind in KINDS:
        rows = shown(outcome, kind)
        if not rows:
            continue
        title = heading(outcome, kind)
        lines += [f"## {title[0].upper()}{title[1:]}", "", "Paper → ours (Δ)", "", *_head(outcome)]
        for row in rows:
            cells = (of(outcome, kind, row, column) for column in outcome.columns)
            lines.append(f"| {_plain(row)} | " + " | ".join(cells) + " |")
        lines += ["", *_order(outcome, kind), *_by_client(outcome, kind), *_spreads(outcome, kind)]
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


def _order(outcome: Outcome, kind: Kind) -> list[str]:
    """Whether the paper's order holds, column by column; nothing where the paper has no numbers."""
    numbers = [n for columns in outcome.cells[kind].values() for n in columns.values()]
    if outcome.figure and all(n.paper is None for n in numbers):
        return []
    lines = ["Does the paper's order hold?", ""]
    lines += [f"- {column}: {verdict(outcome.ranking(kind, column))}" for column in outcome.columns]
    if outcome.plus_minus == "seeds" and any(n.paper_error is not None for n in numbers):
        lines += ["", "Pairs that do not differ beyond the paper's own standard errors (95 %) are not counted."]
    return [*lines, ""]


def _spreads(outcome: Outcome, kind: Kind) -> list[str]:
    """The deviation over clients, where that is the paper's ±."""
    if not any(n.spread for columns in outcome.cells[kind].values() for n in columns.values()):
        return []
    lines = ["Standard deviation over clients, paper → ours:", "", *_head(outcome)]
    for row in shown(outcome, kind):
        found = (outcome.number(kind, row, column) for column in outcome.columns)
        lines.append(f"| {_plain(row)} | " + " | ".join(_spread(n) for n in found) + " |")
    return [*lines, ""]


def _spread(number: Number | None) -> str:
    if number is None or not number.spread:
        return ""
    paper = "–" if number.paper_error is None else digits(number.paper_error)
    return f"{paper} → {digits(statistics.fmean(number.spread))}"


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
