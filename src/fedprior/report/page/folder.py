"""The report of a folder: of all that it holds if its data can be loaded, else of its journals alone.

Journals are enough for a run that is still going on. What needs the examples (labels, reliability, gains with
intervals) is then left out.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from fedprior.data.registry import DATASETS
from fedprior.errors import FedpriorError
from fedprior.experiment import folder as folders
from fedprior.experiment import resume
from fedprior.experiment.config import CUSTOM
from fedprior.experiment.journal import Journal
from fedprior.experiment.repeated import FILE as REPEATED
from fedprior.experiment.verdict import FILE as VERDICT
from fedprior.methods import build
from fedprior.report.page.facts import RunFacts, Story, data_name
from fedprior.report.page.writing import write as write_page


def write(folder: Path, path: Path) -> Path:
    """Write the page of a folder; returns its path."""
    if (folder / REPEATED).is_file() and not (folder / VERDICT).is_file():
        return write_page(from_files(folder), path)
    if (folder / REPEATED).is_file():
        return write_page(resume(folder), path)
    runs = run_folders(folder)
    configs = {name: _config(place) for name, place in runs.items()}
    done = all(folders.finished(runs[name], configs[name]["rounds"]) for name in runs)
    if done and all(_loadable(config) for config in configs.values()):
        return write_page(resume(folder), path)  # which only reads what is finished
    return write_page(from_files(folder), path)


def _loadable(config: dict[str, Any]) -> bool:
    """Whether a configuration can be carried out again: nothing of it came from Python."""
    return config["data"]["name"] in DATASETS and config.get("model", {}).get("name") != CUSTOM


def run_folders(folder: Path) -> dict[str, Path]:
    """The runs that a folder holds, Local first."""
    if (folder / REPEATED).is_file():
        folder = newest(folder)
    names = folders.compared(folder) if folder.is_dir() else None
    if names is not None:
        return {name: folder / name for name in names}
    if not (folder / folders.RUN).is_file():
        raise FedpriorError(f"'{folder}' holds no run: give the output folder of a run or a comparison.")
    runs = {"local": folder / "local"} if (folder / "local" / folders.RUN).is_file() else {}
    return runs | {str(_config(folder)["method"]["name"]): folder}


def newest(folder: Path) -> Path:
    """The last split that has begun of a comparison over repeated splits."""
    begun = [path.parent for path in folder.glob(f"split-*/{folders.COMPARISON}")]
    if not begun:
        raise FedpriorError(f"the comparison in '{folder}' has not begun yet: wait for its first round.")
    return max(begun, key=lambda path: (len(path.name), path.name))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / folders.RUN
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        found["rounds"], found["method"]["name"], found["data"]["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedpriorError(f"'{path}' is damaged and cannot be read: {error}.") from None
    return found


def from_files(folder: Path) -> Story:
    """What the journals in a folder tell, without its data."""
    runs = {name: _facts(name, place) for name, place in run_folders(folder).items()}
    section = _config(next(iter(run_folders(folder).values())))["data"]
    data = data_name(section["name"], section)
    finished = all(run.summary is not None for run in runs.values())
    text = "Finished. This page has what the journals tell; gains with intervals and reliability need the data."
    title = f"{len(runs)} methods on {data}" if len(runs) > 1 else f"{next(iter(runs.values())).title} on {data}"
    return Story(title, runs, text if finished else "", place=folder)


def _facts(name: str, folder: Path) -> RunFacts:
    journal = Journal(folder)
    journal.load()
    summary = None
    if (folder / folders.COMPLETE).is_file():
        try:
            summary = json.loads((folder / folders.COMPLETE).read_text(encoding="utf-8"))
            summary["selected"]["round"], summary["seed"], summary["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise FedpriorError(f"'{folder / folders.COMPLETE}' is damaged and cannot be read: {error}.") from None
    config = (folder / folders.RUN).read_text(encoding="utf-8")
    return RunFacts(name, _title(name), journal, int(_config(folder)["rounds"]), config, summary)


def _title(name: str) -> str:
    try:
        return build(name).about.title
    except FedpriorError:
        return name
