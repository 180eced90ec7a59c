"""A reproduced table as one self-contained page, with drawings instead of tables; it has no script, to stay small."""

from __future__ import annotations

from fedprior.papers.outcome import Kind, Outcome
from fedprior.report.charts.papers import Entry
from fedprior.report.charts.papers import column as drawing
from fedprior.report.page.blocks import Block, Code, Figure, Listing, Prose, Section
from fedprior.report.page.document import Page, document
from fedprior.report.papers import words
from fedprior.report.papers.drawings import figures


def page(outcome: Outcome) -> str:
    """The Markdown document with drawings."""
    about = outcome.about
    facts = (outcome.paper, f"{outcome.scale} scale", words.seeds(outcome), str(about.get("date")), words.what(outcome))
    notices = {
        words.QUICK: words.quick(outcome) if outcome.scale == "quick" else "",
        "Part of the table": f"{about['part']}." if about.get("part") else "",
        "A stand-in": outcome.stand_in,
    }
    blocks: list[Block] = [Prose(f"{title}: {told}", "warning") for title, told in notices.items() if told]
    blocks.append(Code(about.get("command", "")))
    blocks += [] if outcome.figure else [Prose(_legend(outcome), "note")]
    drawings = figures(outcome)
    blocks += drawings
    for kind in words.KINDS:
        if words.shown(outcome, kind) and not drawings:
            heading = words.heading(outcome, kind)
            blocks.append(Section(f"{heading[0].upper()}{heading[1:]}", _columns(outcome, kind)))
    if outcome.chosen:
        chosen = [f"{row}: {words.told(setting)}" for row, setting in outcome.chosen.items()]
        told = Prose(words.CHOSEN.replace("`", ""))
        blocks.append(Section("Chosen on validation data", [told, Listing(chosen)]))
    if outcome.unknown:
        blocks.append(Section("Unspecified settings", [Listing(outcome.unknown)]))
    return document(Page(outcome.title, " · ".join(facts), blocks), live=False)


def _legend(outcome: Outcome) -> str:
    error = ", with two standard errors over seeds" if outcome.seeds > 1 else ""
    return f"Ring: the paper. Dot: ours{error}. In numbers: paper → ours (difference)."


def _columns(outcome: Outcome, kind: Kind) -> list[Block]:
    blocks: list[Block] = []
    for column in outcome.columns:
        numbers = [(row, n) for row in words.shown(outcome, kind) if (n := outcome.number(kind, row, column))]
        entries = [Entry(row, n.paper, n.ours, n.error, words.of(outcome, kind, row, column)) for row, n in numbers]
        chart, order = drawing(entries), words.verdict(outcome.ranking(kind, column))
        blocks.append(Prose(f"{column}: {order}", "note") if chart is None else Figure(chart, column, order))
    return blocks
