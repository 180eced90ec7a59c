"""A reproduced table: in the terminal, as Markdown, and as a page with a picture."""

from __future__ import annotations

import html
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from fedprior.experiment.journal import jsonable
from fedprior.files import write_text
from fedprior.papers.outcome import Kind, Number, Outcome, Pair

QUICK = "Not the paper's setting"
CHOSEN = "By `--search`, with equally many settings for every method unless it is said below."
KINDS: dict[Kind, str] = {"personal": "personal models", "global": "the shared model"}


def grid(outcome: Outcome, kind: Kind) -> Group:
    """Paper, ours and the difference, for a terminal; the title stands above, since it may be wider than the table."""
    caption = "paper → ours" + (f" ± standard error over {outcome.seeds} seeds" if outcome.seeds > 1 else "") + " (Δ)"
    title = Text(f"{outcome.title}: {KINDS[kind]}, {_what(outcome)}", style="italic")
    found = Grid(caption=caption)
    found.add_column("method")
    for column in outcome.columns:
        found.add_column(escape(column), justify="right")
    for row in _rows(outcome, kind):
        found.add_row(escape(row), *(_cell(outcome.number(kind, row, column)) for column in outcome.columns))
    return Group(title, found)


def choices(found: Mapping[str, Any]) -> Grid:
    """What a search tried, saw on validation data, and chose."""
    shown = Grid(title=escape(f"{found['table']}: validation, {found['column']}"), title_justify="left")
    for column in ("method", "tried", "validation", "chosen"):
        shown.add_column(column, justify="right" if column == "validation" else "left")
    for row, entry in found["rows"].items():
        for k, (setting, value) in enumerate(zip(entry["tried"], entry["validation"], strict=True)):
            mark = "✓" if setting == entry["chosen"] else ""
            shown.add_row(escape(row) if k == 0 else "", escape(_told(setting)), f"{value:.1f}", mark)
    return shown


def markdown(outcome: Outcome) -> str:
    """The whole outcome as a document."""
    about = outcome.about
    lines = [f"# {outcome.name}", "", f"{outcome.paper}: {outcome.title}.", ""]
    if outcome.scale == "quick":
        lines += [f"**{QUICK}**: {quick(outcome)}", ""]
    if outcome.stand_in:
        lines += [f"**A stand-in**: {outcome.stand_in}", ""]
    if about.get("part"):
        lines += [f"**A part of the table**: {about['part']}.", ""]
    lines += [
        f"`{about['command']}` · collected {about['date']} at "
        f"commit {about['commit']} · {outcome.seeds} seed{'s' if outcome.seeds > 1 else ''} · "
        f"{about['seconds'] / 60:.0f} min of runs · {_what(outcome)}",
        "",
    ]
    for kind, title in KINDS.items():
        rows = _rows(outcome, kind)
        if not rows:
            continue
        lines += [f"## {title[0].upper()}{title[1:]}", "", "Paper → ours (Δ)", "", *_head(outcome)]
        for row in rows:
            cells = (_cell(outcome.number(kind, row, column)) for column in outcome.columns)
            lines.append(f"| {_plain(row)} | " + " | ".join(cells) + " |")
        lines += ["", "Does the paper's order hold?", ""]
        lines += [f"- {column}: {verdict(outcome.ranking(kind, column))}" for column in outcome.columns]
        lines += ["", *_by_client(outcome, kind)]
    if outcome.chosen:
        lines += ["## Chosen on validation data", "", CHOSEN, ""]
        lines += [f"- {row}: {_told(setting)}" for row, setting in outcome.chosen.items()]
        lines.append("")
    if outcome.unknown:
        lines += ["## What the paper leaves open", "", *(f"- {item}" for item in outcome.unknown), ""]
    return "\n".join(lines)


def quick(outcome: Outcome) -> str:
    """What the quick scale is for, and what it changes."""
    run = f" Every run has {_told(outcome.quick)}." if outcome.quick else ""
    return f"fewer rounds, examples, seeds or columns, to see whether the ranking shows.{run}"


def _head(outcome: Outcome) -> list[str]:
    names = " | ".join(_plain(column) for column in outcome.columns)
    return [f"| method | {names} |", "|---" * (len(outcome.columns) + 1) + "|"]


def _by_client(outcome: Outcome, kind: Kind) -> list[str]:
    """Ours once more, where the paper's mean is not the one over clients."""
    if outcome.per == "client":
        return []
    lines = ["Ours as the mean over clients:", "", *_head(outcome)]
    for row in _rows(outcome, kind):
        found = (outcome.number(kind, row, column) for column in outcome.columns)
        cells = (_digits(statistics.fmean(n.by_client)) if n and n.by_client else "" for n in found)
        lines.append(f"| {_plain(row)} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def verdict(pairs: list[Pair]) -> str:
    """One sentence on a column's order."""
    if not pairs:
        return "the paper gives no two numbers to compare"
    count = Counter(pair.verdict for pair in pairs)
    said = [f"{count['holds']} of {len(pairs)} pairs of methods in the paper's order"]
    if count["level"]:
        said.append(f"{count['level']} level")
    if count["reversed"]:
        which = ", ".join(f"{p.worse} over {p.better}" for p in pairs if p.verdict == "reversed")
        said.append(f"{count['reversed']} reversed ({which})")
    return "; ".join(said)


def page(outcome: Outcome) -> str:
    """One self-contained HTML page: the paper's number as a ring, ours as a dot with its standard error."""
    parts = [
        "<!doctype html><meta charset='utf-8'>",
        f"<title>{html.escape(outcome.name)}</title>",
        "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .7rem;text-align:right;"
        "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}.note{color:#666}</style>",
        f"<h1>{html.escape(outcome.title)}</h1><p class='note'>{html.escape(outcome.paper)} · {outcome.scale} scale · "
        f"{outcome.seeds} seeds · {html.escape(str(outcome.about.get('date')))} · {html.escape(_what(outcome))}</p>",
    ]
    if outcome.scale == "quick":
        parts.append(f"<p><b>{QUICK}</b>: {html.escape(quick(outcome))}</p>")
    if outcome.about.get("part"):
        parts.append(f"<p><b>A part of the table</b>: {html.escape(outcome.about['part'])}.</p>")
    if outcome.stand_in:
        parts.append(f"<p><b>A stand-in</b>: {html.escape(outcome.stand_in)}</p>")
    for kind, title in KINDS.items():
        if not _rows(outcome, kind):
            continue
        parts.append(f"<h2>{title}</h2>")
        for column in outcome.columns:
            parts.append(f"<h3>{html.escape(column)}</h3>{_picture(outcome, kind, column)}")
            parts.append(f"<p class='note'>{html.escape(verdict(outcome.ranking(kind, column)))}</p>")
    if outcome.chosen:
        told = (f"<li>{html.escape(f'{row}: {_told(setting)}')}</li>" for row, setting in outcome.chosen.items())
        parts += ["<h2>Chosen on validation data</h2>", f"<p>{html.escape(CHOSEN)}</p><ul>", *told, "</ul>"]
    parts += ["<h2>What the paper leaves open</h2><ul>", *(f"<li>{html.escape(u)}</li>" for u in outcome.unknown)]
    return "\n".join([*parts, "</ul>"])


def _picture(outcome: Outcome, kind: Kind, column: str) -> str:
    numbers = [(row, n) for row in _rows(outcome, kind) if (n := outcome.number(kind, row, column))]
    shown = [v for _, n in numbers for v in (n.ours, n.paper) if v is not None and not math.isnan(v)]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    margin = max(1e-9, 0.08 * (high - low) or 1.0)
    low, high = low - margin, high + margin

    def x(value: float) -> float:
        return 190 + 560 * (value - low) / (high - low)

    lines = [f"<svg viewBox='0 0 960 {26 * len(numbers) + 34}' width='960' role='img' font-size='13'>"]
    for k in range(5):
        tick = low + (high - low) * k / 4
        lines.append(f"<line x1='{x(tick):.1f}' x2='{x(tick):.1f}' y1='4' y2='{26 * len(numbers) + 8}' stroke='#eee'/>")
        lines.append(
            f"<text x='{x(tick):.1f}' y='{26 * len(numbers) + 26}' text-anchor='middle' fill='#666'>{tick:.1f}</text>"
        )
    for i, (row, n) in enumerate(numbers):
        y = 20 + 26 * i
        lines.append(f"<text x='180' y='{y + 4}' text-anchor='end'>{html.escape(row)}</text>")
        if n.paper is not None:
            lines.append(f"<circle cx='{x(n.paper):.1f}' cy='{y}' r='6' fill='none' stroke='#c60' stroke-width='2'/>")
        if n.values:
            if not math.isnan(n.error):
                ends = (x(max(low, n.ours - 2 * n.error)), x(min(high, n.ours + 2 * n.error)))
                lines.append(f"<line x1='{ends[0]:.1f}' x2='{ends[1]:.1f}' y1='{y}' y2='{y}' stroke='#069'/>")
            lines.append(f"<circle cx='{x(n.ours):.1f}' cy='{y}' r='4' fill='#069'/>")
        lines.append(f"<text x='765' y='{y + 4}' fill='#444'>{html.escape(_cell(n))}</text>")
    return "".join([*lines, "</svg>"])


def write(outcome: Outcome, stem: Path) -> list[Path]:
    """`stem.json`, `stem.md` and `stem.html`."""
    texts = {
        ".json": json.dumps(jsonable(outcome.document()), indent=2) + "\n",
        ".md": markdown(outcome),
        ".html": page(outcome) + "\n",
    }
    paths = [stem.parent / (stem.name + suffix) for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths


def _told(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in setting.items())


def _plain(name: str) -> str:
    """A name in a Markdown table."""
    return name.replace("|", "\\|")


def _rows(outcome: Outcome, kind: Kind) -> list[str]:
    return [row for row in outcome.rows if outcome.cells.get(kind, {}).get(row)]


def _what(outcome: Outcome) -> str:
    metric = {
        "accuracy": "accuracy in %",
        "balanced_accuracy": "balanced accuracy in %",
        "seconds": "seconds a round",
        "parameters": "numbers that a client is sent",
    }
    per = " of all test examples together" if outcome.per == "example" else ""
    best = ", best round on test, as the paper reports it" if outcome.at == "best" else ""
    return metric[outcome.metric] + per + best


def _cell(number: Number | None) -> str:
    if number is None or (number.paper is None and not number.values):
        return ""
    paper = "–" if number.paper is None else _digits(number.paper)
    if not number.values:
        return f"{paper} →"
    error = "" if math.isnan(number.error) else f" ± {number.error:.1f}"
    change = f" ({number.delta:+.1f})" if not math.isnan(number.delta) else ""
    return f"{paper} → {_digits(number.ours)}{error}{change}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.1f}"
