"""Writing a report."""

from __future__ import annotations

from pathlib import Path

from altair.utils.schemapi import debug_mode

from fedprior.errors import FedpriorError
from fedprior.experiment import Assessment, Comparison, Result
from fedprior.files import clear_unfinished, write_text
from fedprior.report.page import document as documents
from fedprior.report.page.facts import Story, story
from fedprior.report.page.repeated import assessed
from fedprior.report.page.sections import report


def write(found: Result | Comparison | Assessment | Story, path: Path) -> Path:
    """Write the page of a run or comparison; returns its path."""
    if path.is_dir():
        raise FedpriorError(f"'{path}' is a folder: give the path of the page, such as '{path / 'report.html'}'.")
    if isinstance(found, Assessment):
        found = assessed(found)
    clear_unfinished(path)
    write_text(path, page(found if isinstance(found, Story) else story(found)))
    return path


def page(told: Story, *, watched: bool = False) -> str:
    """The page as HTML."""
    with debug_mode(False):  # charts are checked by the tests; here it would take seconds
        return documents.document(report(told), watched=watched)


def main(told: Story) -> str:
    """The part of the page that changes as a run goes on."""
    with debug_mode(False):
        return documents.main(report(told))
