"""A reproduced table as one self-contained page: the paper's number as a ring, ours as a dot with its error."""

from __future__ import annotations

import html
import math

from fedprior.papers.outcome import Kind, Outcome
from fedprior.report.papers import words

PAPER, OURS = "#c60", "#069"
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
    ".note{color:#666}code{background:#f4f4f4;padding:.1rem .3rem}svg{max-width:100%;height:auto}"
)
LEFT, WIDE, TALL = 190, 560, 26  # of a picture: where its axis begins, how long it is, and the height of a row


def page(outcome: Outcome) -> str:
    """The Markdown document with pictures instead of tables."""
    about = outcome.about
    facts = (outcome.paper, f"{outcome.scale} scale", words.seeds(outcome), str(about.get("date")), words.what(outcome))
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>{html.escape(outcome.name)}</title><style>{STYLE}</style>",
        f"<h1>{html.escape(outcome.title)}</h1><p class='note'>{html.escape(' · '.join(facts))}</p>",
    ]
    notices = {
        words.QUICK: words.quick(outcome) if outcome.scale == "quick" else "",
        "Part of the table": f"{about['part']}." if about.get("part") else "",
        "A stand-in": outcome.stand_in,
    }
    parts += [f"<p><b>{title}</b>: {html.escape(text)}</p>" for title, text in notices.items() if text]
    parts.append(f"<p><code>{html.escape(about.get('command', ''))}</code></p>{_legend(outcome)}")
    for kind in words.KINDS:
        if not words.shown(outcome, kind):
            continue
        parts.append(f"<h2>{html.escape(words.heading(outcome, kind)).capitalize()}</h2>")
        for column in outcome.columns:
            parts.append(f"<h3>{html.escape(column)}</h3>{_picture(outcome, kind, column)}")
            parts.append(f"<p class='note'>{html.escape(words.verdict(outcome.ranking(kind, column)))}</p>")
    if outcome.chosen:
        chosen = [f"{row}: {words.told(setting)}" for row, setting in outcome.chosen.items()]
        parts += [
            "<h2>Chosen on validation data</h2>",
            f"<p>{html.escape(words.CHOSEN.replace('`', ''))}</p>",
            _list(chosen),
        ]
    if outcome.unknown:
        parts += ["<h2>Unspecified settings</h2>", _list(outcome.unknown)]
    return "\n".join([*parts, "</html>"])


def _list(items: list[str]) -> str:
    return "".join(["<ul>", *(f"<li>{html.escape(item)}</li>" for item in items), "</ul>"])


def _legend(outcome: Outcome) -> str:
    error = ", with two standard errors over seeds" if outcome.seeds > 1 else ""
    return (
        f"<p class='note'><span style='color:{PAPER}'>○</span> the paper &nbsp; "
        f"<span style='color:{OURS}'>●</span> ours{error}; in numbers: paper → ours (difference)</p>"
    )


def ticks(low: float, high: float) -> list[float]:
    """From two to seven round numbers within an interval."""
    size = 10.0 ** math.floor(math.log10((high - low) / 2))
    step = next(size * k for k in (1, 2, 5, 10) if math.floor(high / (size * k)) - math.ceil(low / (size * k)) < 7)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _picture(outcome: Outcome, kind: Kind, column: str) -> str:
    numbers = [(row, n) for row in words.shown(outcome, kind) if (n := outcome.number(kind, row, column))]
    seen = [v for _, n in numbers for v in (n.ours, n.paper) if v is not None and math.isfinite(v)]
    if not seen:
        return ""
    low, high = min(seen), max(seen)
    margin = max(1e-9, 0.08 * (high - low) or 1.0)
    low, high = low - margin, high + margin
    bottom = TALL * len(numbers)

    def x(value: float) -> float:
        return LEFT + WIDE * (value - low) / (high - low)

    lines = [f"<svg viewBox='0 0 960 {bottom + 34}' width='960' role='img' font-size='13'>"]
    for tick in ticks(low, high):
        lines.append(f"<line x1='{x(tick):.1f}' x2='{x(tick):.1f}' y1='4' y2='{bottom + 8}' stroke='#eee'/>")
        lines.append(f"<text x='{x(tick):.1f}' y='{bottom + 26}' text-anchor='middle' fill='#666'>{tick:,.6g}</text>")
    for i, (row, n) in enumerate(numbers):
        y = 20 + TALL * i
        lines.append(f"<text x='{LEFT - 10}' y='{y + 4}' text-anchor='end'>{html.escape(row)}</text>")
        if n.paper is not None:
            ring = f"fill='none' stroke='{PAPER}' stroke-width='2'"
            lines.append(f"<circle cx='{x(n.paper):.1f}' cy='{y}' r='6' {ring}/>")
        if math.isfinite(n.ours):
            if not math.isnan(n.error):
                ends = (x(max(low, n.ours - 2 * n.error)), x(min(high, n.ours + 2 * n.error)))
                lines.append(f"<line x1='{ends[0]:.1f}' x2='{ends[1]:.1f}' y1='{y}' y2='{y}' stroke='{OURS}'/>")
            lines.append(f"<circle cx='{x(n.ours):.1f}' cy='{y}' r='4' fill='{OURS}'/>")
        lines.append(f"<text x='{LEFT + WIDE + 15}' y='{y + 4}' fill='#444'>{html.escape(words.cell(n))}</text>")
    return "".join([*lines, "</svg>"])
