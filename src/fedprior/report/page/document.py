"""A whole page from its sections: everything it needs is in it, and its policy lets it load nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files

from fedprior.report import charts
from fedprior.report.page.blocks import Block, Store, text


@dataclass(frozen=True)
class Page:
    """A page: its title, a line below it, and its sections."""

    title: str
    note: str = ""
    blocks: Sequence[Block] = field(default_factory=tuple)


def main(page: Page, *, live: bool = True) -> str:
    """The part of a page that a run changes as it goes on."""
    store = Store(live=live)
    inner = "".join(block.html(store) for block in page.blocks)
    data = store.script() if live else ""
    return f'<main><h1>{text(page.title)}</h1><p class="note">{text(page.note)}</p>{inner}{data}</main>'


def document(page: Page, *, live: bool = True, watched: bool = False) -> str:
    """A page as HTML. Not `live`: drawings instead of charts, and no script; `watched`: it asks its server for news."""
    scripts = [charts.runtime(), asset("page.js")] if live else []
    policy = _policy(scripts, watched=watched)
    mark = " data-watched" if watched else ""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(page.title)}</title><style>{asset('page.css')}</style>"
    )
    missing = "<noscript><p>Charts and tables on this page are drawn by its script: allow it to run.</p></noscript>"
    tools = '<button type="button" id="theme" hidden>dark</button>' if live else ""
    tail = (missing if live else "") + "".join(f"<script>{script}</script>" for script in scripts)
    return (
        f'<!doctype html>\n<html lang="en"{mark}><head>{head}</head><body>{tools}{main(page, live=live)}{tail}'
        "</body></html>\n"
    )


def _policy(scripts: Sequence[str], *, watched: bool) -> str:
    """Only our scripts run, known by their checksums; nothing is loaded from anywhere."""
    known = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    rules = {
        "default-src": "'none'",
        "script-src": known or "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": "'self'" if watched else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


@cache
def asset(name: str) -> str:
    """One of the files in `assets`."""
    return (files("fedprior.report") / "assets" / name).read_text(encoding="utf-8")
