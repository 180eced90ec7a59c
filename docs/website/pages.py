"""Which files of the repository are pages of the site, and what becomes of the links between them."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks/peers/README.md": "benchmarks/method.md",
    "benchmarks/results/peers.md": "benchmarks/peers.md",
    "experiments/beyond/PROTOCOL.md": "results/protocol.md",
}
"""Pages that lie elsewhere than in docs/, and their places. The README's place is taken by docs/index.md."""
SOURCES = {
    "src/fedprior/protocol.py": "reference/method.md",
    "src/fedprior/models/__init__.py": "reference/models.md",
    "src/fedprior/metrics/__init__.py": "reference/metrics.md",
    "src/fedprior/data/partition": "reference/partitions.md",
    "src/fedprior/data/sets": "reference/data.md",
}
"""Sources that have a page of the reference: a link to one leads to the other."""
COPIED = (".png", ".svg")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCES = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def places() -> dict[str, str]:
    """Every page's path in the repository, and its path in the site."""
    found = {path: place for path, place in OUTSIDE.items() if (ROOT / path).exists()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        found[_relative(path)] = path.relative_to(ROOT / "docs").as_posix()
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        found[_relative(path)] = f"tutorials/{path.stem}.md"
    for path in sorted((ROOT / "papers").glob("*/results/*.md")):
        found[_relative(path)] = f"reproduced/{path.parts[-3]}/{path.name}"
    return found


def pictures() -> dict[str, str]:
    """Every picture's path in the repository, and its path in the site."""
    found = [path for folder in ("docs", "benchmarks") for path in sorted((ROOT / folder).rglob("*.*"))]
    paths = [_relative(path) for path in found if path.suffix in COPIED and "website" not in path.parts]
    return {path: path.removeprefix("docs/") for path in paths}


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def relinked(text: str, path: str, place: str) -> str:
    """A page's text, its links changed from files of the repository to pages of the site.

    A link to a file that is no page, such as a source file, becomes its words; one to a file that does not exist is an
    error.
    """
    goals = places() | pictures() | SOURCES

    def link(match: re.Match[str]) -> str:
        picture, words, goal, anchor = match[1], match[2], match[3], match[4] or ""
        if not goal or re.match(r"[a-z]+:", goal):
            return match[0]
        file = os.path.normpath((PurePosixPath(path).parent / goal).as_posix())
        if not (ROOT / file).exists():
            raise SystemExit(f"{path}: the link to {goal} leads nowhere")
        if file not in goals:
            return words
        there = os.path.relpath(goals[file], PurePosixPath(place).parent)
        return f"{picture}[{words}]({there}{anchor})"

    blocks = FENCES.split(text)
    return "".join(block if block.startswith("```") else LINK.sub(link, block) for block in blocks)
