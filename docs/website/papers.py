"""The papers' tables: each result's Markdown with its charts, and a list of all."""

from __future__ import annotations

import json
from pathlib import Path

from fedprior.papers.outcome import Outcome
from fedprior.papers.saved import read
from fedprior.report import charts
from fedprior.report.charts.papers import Entry, column
from fedprior.report.papers import words
from website.charts import embedded
from website.pages import ROOT

LEGEND = "Ring: the paper. Dot: ours, with two standard errors over seeds if there are several."
INTRO = """---
search: {boost: 0.2}
---

# The papers' tables

Every table of the five papers is a file that lists the settings the paper does not specify, with the values used here
([how](../papers.md)); [results](../results.md) sums up what held and what did not. These are the results that are kept
in the repository, each with its command, the paper's numbers beside ours, and charts."""


def titled(path: Path) -> str:
    """Front matter with the name of a paper's table in the navigation, given its Markdown file; nothing for others."""
    numbers = path.with_suffix(".json")
    if path.parent.parent.parent != ROOT / "papers" or not numbers.exists():
        return ""
    scale = " (quick)" if path.stem.endswith("-quick") else ""
    return f"---\ntitle: {json.dumps(read(numbers).title + scale)}\n---\n\n"


def drawn(path: Path) -> str:
    """The charts of a result, given its Markdown file; nothing if its numbers are not beside it."""
    numbers = path.with_suffix(".json")
    if not numbers.exists() or not path.with_suffix(".html").exists():
        return ""
    outcome, parts = read(numbers), []
    for kind in words.KINDS:
        rows = words.shown(outcome, kind)
        for name in outcome.columns if rows else ():
            found = [(row, n) for row in rows if (n := outcome.number(kind, row, name))]
            chart = column([Entry(row, n.paper, n.ours, n.error, words.cell(n)) for row, n in found])
            if chart is not None:
                heading = words.heading(outcome, kind)
                parts += [f"### {heading[0].upper()}{heading[1:]}: {name}", embedded(charts.spec(chart))]
    return "\n\n".join(["\n## Charts", LEGEND, *parts, ""]) if parts else ""


def listing() -> str:
    """A page that lists all results."""
    lines = ["| table | paper | scale | seeds |", "|---|---|---|---|"]
    for path in sorted((ROOT / "papers").glob("*/results/*.json")):
        if path.with_suffix(".html").exists():
            outcome: Outcome = read(path)
            link = f"[{path.parts[-3]}/{path.stem}]({path.parts[-3]}/{path.stem}.md)"
            lines.append(f"| {link}: {outcome.title} | {outcome.paper} | {outcome.scale} | {outcome.seeds} |")
    return f"{INTRO}\n\n" + "\n".join(lines) + "\n"
