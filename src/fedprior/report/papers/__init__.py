"""A reproduced table: in the terminal, as Markdown, as JSON and as a page with pictures."""

from __future__ import annotations

import json
from pathlib import Path

from fedprior.experiment.journal import jsonable
from fedprior.files import write_text
from fedprior.papers.outcome import Outcome
from fedprior.report.papers.document import markdown
from fedprior.report.papers.terminal import choices, grid
from fedprior.report.papers.webpage import page
from fedprior.report.papers.words import KINDS, QUICK, quick, verdict

__all__ = ["KINDS", "QUICK", "choices", "grid", "markdown", "page", "quick", "verdict", "write"]


def write(outcome: Outcome, stem: Path) -> list[Path]:
    """`stem.json`, `stem.md` and `stem.html`."""
    texts = {
        ".json": json.dumps(jsonable(outcome.document()), indent=2) + "\n",
        ".md": markdown(outcome),
        ".html": page(outcome),
    }
    paths = [stem.parent / (stem.name + suffix) for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths
