"""Fill the generated parts of the documentation from the code.

    python docs/generate.py [--check]

A page says where with a pair of comments: `<!-- options:fedmap -->` … `<!-- end -->`. `--check` changes nothing and
fails when a page is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedprior.benchmark import read_lines
from fedprior.data.store import RECORDS
from fedprior.experiment.catalogue import REFERENCE, catalogue
from fedprior.flower.audit import meaning
from fedprior.protocol import METHODS, types_of
from fedprior.report.benchmark import best_markdown, never_markdown, rank_markdown
from fedprior.report.tables import size
from fedprior.training import Train
from website.options import table

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- (?!illustration)(\w+):?([\w-]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def index() -> str:
    """All methods, grouped."""
    lines = ["| group | method | name | what is personal | up | down | paper |", "|---|---|---|---|---|---|---|"]
    for e in catalogue():
        link, sent = f"[{e['title']}]({e['name']}.md)", f"{size(e['bytes_up'])} | {size(e['bytes_down'])}"
        lines.append(
            f"| {e['group']} | {link} | `{e['name']}` | {e['personal']} | {sent} | {e['paper']}, {e['year']} |"
        )
    return "\n".join([*lines, "", f"Up and down: bytes of one client's messages per round for {REFERENCE}."])


def stored() -> str:
    """All data sets that are fetched or imported."""
    lines = ["| data set | fetched from | imported from | licence |", "|---|---|---|---|"]
    for name, record in RECORDS.items():
        sources = ", ".join(str(source) for source in record.sources) or "–"
        lines.append(f"| `{name}` {record.title} | {sources} | {record.accepts} | {record.licence} |")
    return "\n".join(lines)


def benchmark(part: str) -> str:
    """What the committed cells of `fedprior benchmark` say."""
    lines = read_lines(DOCS / "results" / "benchmark")
    if part == "never":
        return never_markdown(lines)
    if part == "best":
        return best_markdown(lines)
    return rank_markdown(lines) if part == "all" else rank_markdown(lines, part, most=8)


def uplinks() -> str:
    """What each method sends up, from the types of its messages; methods that send the same are one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(METHODS):
        fields = getattr(types_of(METHODS[name])[3], "_fields", ())
        rows.setdefault(tuple(f"`{f}` {meaning(f, name)}" for f in fields), []).append(METHODS[name].about.title)
    lines = ["| methods | what leaves a site in each round |", "|---|---|"]
    ordered = sorted(rows.items(), key=lambda row: -len(row[1]))
    return "\n".join([*lines, *(f"| {', '.join(who)} | {'; '.join(what) or 'nothing'} |" for what, who in ordered)])


def fill(page: str) -> str:
    """A page with every block made anew."""

    def block(match: re.Match[str]) -> str:
        kind, name = match[2], match[3]
        if kind == "options":
            content = table(Train if name == "train" else METHODS[name])
        elif kind == "methods":
            content = index()
        elif kind == "data":
            content = stored()
        elif kind == "benchmark":
            content = benchmark(name)
        elif kind == "uplinks":
            content = uplinks()
        else:
            raise SystemExit(f"unknown block '{kind}'")
        return f"{match[1]}{content}\n{match[4]}"

    return BLOCK.sub(block, page)


def main() -> None:
    stale = []
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text()
        filled = fill(page)
        if filled != page:
            stale.append(str(path.relative_to(DOCS)))
            if "--check" not in sys.argv:
                path.write_text(filled)
    print("\n".join(f"{'stale' if '--check' in sys.argv else 'updated'}: {name}" for name in stale) or "up to date")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
