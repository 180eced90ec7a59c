"""`fedprior doctor`: what is installed, what this machine offers, and what is missing."""

from __future__ import annotations

import json
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, NamedTuple

from rich.table import Table as Grid
from rich.text import Text

from fedprior import __version__
from fedprior.cli.arguments import Json
from fedprior.cli.screen import screen
from fedprior.names import visible

EXTRAS = {
    "excel": "Excel files",
    "parquet": "Parquet files",
    "sql": "tables in a database",
    "tune": "fedprior tune",
    "export": "fedprior export to ONNX",
    "privacy": "differential privacy (+dp)",
    "ray": "runs on a Ray cluster",
    "flower": "real federations (separate environment)",
    "mlflow": "logs for MLflow",
    "tensorboard": "logs for TensorBoard",
}
"""The optional extras, and what each is for."""
TRY = "fedprior compare --methods fedmap --data digits --rounds 10 --out runs/first"
LEAST_MEMORY = 1 << 30
"""Bytes below which only small runs fit."""


class Extra(NamedTuple):
    """An optional extra of the package."""

    name: str
    purpose: str
    missing: list[str]


def doctor(as_json: Json = False) -> None:
    """Show versions, cores, memory, the data folder and which optional extras are installed.

    Example: fedprior doctor
    """
    found = examine()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    facts = Grid.grid(padding=(0, 2))
    for name in ("fedprior", "python", "torch", "cores", "memory", "data"):
        facts.add_row(Text(name, "bold"), Text(str(found[name])))
    for name, extra in found["extras"].items():
        state = "installed" if not extra["missing"] else f"missing: pip install 'fedprior[{name}]'"
        facts.add_row(Text(name, "bold"), Text(f"{extra['purpose']}: {state}"))
    screen(100).print(facts)
    print("\n".join(visible(line) for line in (*(f"problem: {p}" for p in found["problems"]), found["next"])))


def examine() -> dict[str, Any]:
    """Everything that is shown, by name."""
    from fedprior.data.store import RECORDS, data_dir, status
    from fedprior.room import available, gib

    import fedprior.data.sets  # isort: skip  # noqa: F401 - registers what can be stored

    room, folder = available(), data_dir()
    stored = sum(status(name).state == "stored" for name in RECORDS)
    extras = {extra.name: {"purpose": extra.purpose, "missing": extra.missing} for extra in _extras()}
    found: dict[str, Any] = {
        "fedprior": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": _version("torch") or "missing",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": "unknown" if room is None else f"{gib(room)} free",
        "data": f"{folder}, {stored} of {len(RECORDS)} data sets stored",
        "extras": extras,
    }
    problems = []
    if found["torch"] == "missing":
        problems.append("PyTorch is not installed: pip install torch.")
    if room is not None and room < LEAST_MEMORY:
        problems.append(f"only {gib(room)} of memory are free: larger models will be refused.")
    if not _writable(folder):
        problems.append(f"'{folder}' cannot be written: set FEDPRIOR_DATA to a folder for data sets.")
    return found | {"problems": problems, "next": f"{'Fix this first, then' if problems else 'Ready:'} try `{TRY}`."}


def _extras() -> list[Extra]:
    """What each extra still needs."""
    try:
        told = requires("fedprior") or []
    except PackageNotFoundError:  # run from its sources, without having been installed
        return []
    needed: dict[str, list[str]] = {name: [] for name in EXTRAS}
    for line in told:
        package = re.split(r"[^\w.-]", line)[0]
        for name, missing in needed.items():
            if re.search(rf"extra == ['\"]{name}['\"]", line) and _version(package) is None:
                missing.append(package)
    return [Extra(name, EXTRAS[name], missing) for name, missing in needed.items()]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _writable(folder: Any) -> bool:
    """Whether the folder, or the nearest that exists above it, can be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
