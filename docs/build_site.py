"""Build the documentation site.

    python docs/build_site.py [--serve]

Pages are assembled in `build/site-source`: the Markdown of docs/ and of some other folders with their links adjusted,
reference pages made from the code, the papers' results with charts, and executed tutorials. mkdocs then builds
`build/site`, which needs neither a network nor a server. A broken link or a missing reference is an error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from mkdocs.__main__ import cli

from fedprior.report.charts import runtime
from website import papers, reference, tutorials
from website.pages import ROOT, pictures, places, relinked

SOURCE = ROOT / "build" / "site-source"
ASSETS = Path(__file__).parent / "website" / "assets"


def assemble() -> None:
    """Write every page and picture into the source folder."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path, place in places().items():
        if path == "README.md":
            continue
        if path.endswith(".py"):
            _write(place, tutorials.page(ROOT / path, (SOURCE / place).parent))
        else:
            text = relinked((ROOT / path).read_text(encoding="utf-8"), path, place)
            _write(place, papers.titled(ROOT / path) + text + papers.drawn(ROOT / path))
    for place, text in (reference.pages() | {"reproduced/index.md": papers.listing()}).items():
        _write(place, text)
    for path, place in pictures().items():
        _folder(place)
        shutil.copy(ROOT / path, SOURCE / place)
    shutil.copytree(ASSETS, SOURCE / "assets")
    _write("assets/vega.js", runtime())


def _write(place: str, text: str) -> None:
    _folder(place)
    (SOURCE / place).write_text(text, encoding="utf-8")


def _folder(place: str) -> None:
    (SOURCE / place).parent.mkdir(parents=True, exist_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--serve", action="store_true", help="show it on http://127.0.0.1:8000 afterwards")
    serve = parser.parse_args().serve
    assemble()
    # not --quiet, with which warnings are dropped before --strict could count them
    cli(["serve" if serve else "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")])


if __name__ == "__main__":
    sys.exit(main())
