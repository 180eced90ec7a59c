"""What a page is made of. Text is escaped here and nowhere else; charts and tables are data, which the script draws."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, Protocol

from fedprior.experiment.journal import jsonable
from fedprior.names import visible
from fedprior.report import charts

LONG = 100_000
"""Characters of a text on a page."""


def text(told: object) -> str:
    """A text in which nothing is markup, and nothing hides."""
    return escape(visible(str(told), LONG))


class Store:
    """The data of a page's charts and tables; a page that is not `live` has drawings instead of charts."""

    def __init__(self, *, live: bool = True) -> None:
        self.live = live
        self.documents: list[Any] = []

    def put(self, document: Any) -> int:
        """Keep a document; returns its number."""
        self.documents.append(jsonable(document))
        return len(self.documents) - 1

    def script(self) -> str:
        """All documents as a script element that is not run; `<` could end it, and is spelled otherwise."""
        content = json.dumps(self.documents, separators=(",", ":"), ensure_ascii=True)
        for character in "<>&":
            content = content.replace(character, f"\\u{ord(character):04x}")
        return f'<script type="application/json" id="documents">{content}</script>'


class Block(Protocol):
    """A part of a page."""

    def html(self, store: Store) -> str:
        """As HTML; its data go into the store."""


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    told: str
    kind: Literal["", "note", "lead", "warning"] = ""

    def html(self, store: Store) -> str:
        """As HTML."""
        return f'<p class="{self.kind}">{text(self.told)}</p>' if self.kind else f"<p>{text(self.told)}</p>"


@dataclass(frozen=True)
class Listing:
    """A list of sentences."""

    items: Sequence[str]

    def html(self, store: Store) -> str:
        """As HTML."""
        return "".join(["<ul>", *(f"<li>{text(item)}</li>" for item in self.items), "</ul>"])


@dataclass(frozen=True)
class Code:
    """Text as it stands in a file or on a command line."""

    told: str

    def html(self, store: Store) -> str:
        """As HTML; lines stay lines."""
        return "".join(["<pre><code>", "\n".join(text(line) for line in self.told.splitlines()), "</code></pre>"])


@dataclass(frozen=True)
class Figure:
    """A chart."""

    chart: charts.Chart
    title: str
    caption: str = ""

    def html(self, store: Store) -> str:
        """As HTML: a place for the script to draw in, or the drawing."""
        caption = f'<p class="note">{text(self.caption)}</p>' if self.caption else ""
        if not store.live:
            drawing = charts.svg(self.chart).replace(' xmlns="http://www.w3.org/2000/svg"', "").replace(XLINK, "")
            return f"<figure><figcaption>{text(self.title)}{caption}</figcaption>{drawing}</figure>"
        number = store.put(charts.spec(self.chart, responsive=True))
        return (
            f"<figure><figcaption><b>{text(self.title)}</b>{caption}</figcaption>"
            f'<div class="chart" role="img" aria-label="{text(self.title)}" data-chart="{number}"></div></figure>'
        )


XLINK = ' xmlns:xlink="http://www.w3.org/1999/xlink"'


@dataclass(frozen=True)
class Column:
    """A column of a table: text, or numbers with so many digits behind the point.

    A cell of numbers may be an interval, [mean, low, high], which is sorted by its mean.
    """

    title: str
    digits: int | None = None  # None: text
    signed: bool = False


@dataclass(frozen=True)
class Table:
    """Rows that a reader may sort and filter; None is an empty cell."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def html(self, store: Store) -> str:
        """As HTML: a place for the script to fill."""
        columns = [{"title": c.title, "digits": c.digits, "signed": c.signed} for c in self.columns]
        number = store.put({"columns": columns, "rows": self.rows})
        caption = f'<p class="note">{text(self.caption)}</p>' if self.caption else ""
        return f'<div class="table" data-table="{number}"></div>{caption}'


@dataclass(frozen=True)
class Side:
    """Blocks beside each other where there is room."""

    blocks: Sequence[Block]

    def html(self, store: Store) -> str:
        """As HTML."""
        return "".join(['<div class="side">', *(block.html(store) for block in self.blocks), "</div>"])


@dataclass(frozen=True)
class Choice:
    """Of several groups of blocks one is seen: the reader chooses."""

    label: str
    options: Mapping[str, Sequence[Block]]
    chosen: str

    def html(self, store: Store) -> str:
        """As HTML."""
        if len(self.options) == 1:
            return "".join(block.html(store) for block in next(iter(self.options.values())))
        parts = [f'<div class="choice"><label>{text(self.label)} <select>']
        for name in self.options:
            mark = " selected" if name == self.chosen else ""
            parts.append(f"<option{mark}>{text(name)}</option>")
        parts.append("</select></label>")
        for name, blocks in self.options.items():
            hidden = "" if name == self.chosen else " hidden"
            parts += [f'<div class="option"{hidden}>', *(block.html(store) for block in blocks), "</div>"]
        return "".join([*parts, "</div>"])


@dataclass(frozen=True)
class Details:
    """Blocks that the reader may open."""

    title: str
    blocks: Sequence[Block]

    def html(self, store: Store) -> str:
        """As HTML."""
        inner = "".join(block.html(store) for block in self.blocks)
        return f"<details><summary>{text(self.title)}</summary>{inner}</details>"


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; one without blocks is left out."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)

    def html(self, store: Store) -> str:
        """As HTML."""
        if not self.blocks:
            return ""
        return "".join([f"<section><h2>{text(self.title)}</h2>", *(b.html(store) for b in self.blocks), "</section>"])
