"""Where a report's numbers come from: configuration, seeds, versions, and how to get them again."""

from __future__ import annotations

import platform
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError, version

from fedprior import __version__
from fedprior.data.registry import DATASETS
from fedprior.experiment.config import CUSTOM
from fedprior.report.page.blocks import Block, Code, Column, Details, Prose, Table
from fedprior.report.page.facts import Story

PACKAGES = ("torch", "numpy", "pandas", "scipy")


def note(story: Story) -> str:
    """One line below the title."""
    run = story.runs[story.shown]
    sites = len(story.data) if story.data is not None else len(run.values())
    seed = run.summary["seed"] if run.summary is not None else None
    facts = [
        f"{sites:,} sites" if sites != 1 else "1 site",
        run.length,
        *([f"{story.splits} splits"] if story.splits > 1 else []),
        *([f"seed {seed}"] if seed is not None else []),
        f"fedprior {run.summary['version'] if run.summary is not None else __version__}",
    ]
    return " · ".join(facts)


def progress(story: Story) -> str:
    """How far runs are that are still going on."""
    told = []
    for run in story.runs.values():
        done = run.trained[-1]["round"] if run.trained else 0
        chosen = "" if run.selected is None else f", best so far on validation: round {run.selected}"
        told.append(
            f"{run.title}: finished"
            if run.summary is not None
            else f"{run.title}: round {done} of {run.rounds}{chosen}"
        )
    return "Still running. " + "; ".join(told) + "."


def blocks(story: Story) -> list[Block]:
    """How the runs were configured and how to repeat them."""
    found: list[Block] = _left_out(story)
    for run in story.runs.values():
        found += [Details(f"Configuration of {run.title}", [Code(run.config)])] * bool(run.config)
    return [*found, *_again(story), Prose(versions(), "note")]


def _again(story: Story) -> list[Block]:
    configured = [name for name, run in story.runs.items() if run.config]
    if story.place is None or not configured:
        return [Prose("The runs came from Python and have no folder: repeat them by the same calls.")]
    if not all(_repeatable(story.runs[name].config) for name in configured):
        return [Prose("The data or the network came from Python: repeat the runs by the same calls, in a new folder.")]
    place = story.place
    inner = [story.runs[name].journal.folder or place for name in configured]
    lines = [
        shlex.join(["fedprior", "run", "--no-local", "--config", str(folder / "config.toml"), "--out", f"again-{name}"])
        for folder, name in zip(inner, configured, strict=True)
    ]
    which = "The runs of the first split" if story.splits > 1 else "The same numbers"
    return [Prose(f"{which} again, bit for bit on the same versions:"), Code("\n".join(lines))]


def _repeatable(config: str) -> bool:
    """Whether nothing of a configuration came from Python."""
    found = tomllib.loads(config)
    return found["data"]["name"] in DATASETS and found.get("model", {}).get("name") != CUSTOM


def _left_out(story: Story) -> list[Block]:
    rows = [
        [run.title, site, times]
        for run in story.runs.values()
        for site, times in (run.summary or {}).get("left_out", {}).items()
    ]
    columns = [Column("method"), Column("site"), Column("rounds", 0)]
    told = "Updates that did not arrive or were not finite; these sites went on from where they were."
    return [Table(columns, rows, told)] * bool(rows)


def versions() -> str:
    """The versions that write this page."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"This page was written by fedprior {__version__} with {', '.join(found)}."
