"""What a run writes down as it goes: a line a round, and every client's metrics at every evaluation.

`events.jsonl` and `clients.csv` mirror two lists in memory. A resumed run first drops the lines that its checkpoint
does not cover, since those rounds will run again.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedprior.errors import FedpriorError
from fedprior.files import write_text
from fedprior.metrics import METRICS, Cohort

Event = dict[str, Any]
Observer = Callable[[Event], None]
"""Sees every event as it happens: for progress bars and live views."""

COLUMNS = ("round", "model", "split", "client", "examples", *METRICS)


class Journal:
    """The history of a run, in memory and, with a folder, on disk."""

    def __init__(self, folder: Path | None, observe: Observer | None = None) -> None:
        self.folder, self.observe = folder, observe
        self.events: list[Event] = []
        self.rows: list[Event] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> None:
        """Take up the whole history."""
        assert self.folder is not None
        self.events, self.rows = _events(self.folder / "events.jsonl"), _rows(self.folder / "clients.csv")

    def rewind(self, done: int, rounds: int) -> None:
        """Forget, on disk too, what comes after `done` rounds; the last evaluation always runs again."""
        assert self.folder is not None
        self.load()
        self.events = [
            e for e in self.events if e["round"] <= done and (e["kind"], e["round"]) != ("evaluation", rounds)
        ]
        self.rows = [r for r in self.rows if r["round"] <= done and r["round"] != rounds]
        write_text(self.folder / "events.jsonl", "".join(_line(e) for e in self.events))
        write_text(self.folder / "clients.csv", _csv(self.rows, header=bool(self.rows)))

    def event(self, event: Event) -> None:
        """Add a line."""
        self.events.append(event)
        if self.folder is not None:
            with (self.folder / "events.jsonl").open("a") as file:
                file.write(_line(event))
        if self.observe is not None:
            self.observe(event)

    def evaluation(self, round: int, model: str, split: str, clients: tuple[str, ...], cohort: Cohort) -> None:
        """Add every client's metrics."""
        rows: list[Event] = []
        for i, client in enumerate(clients):
            row: Event = {"round": round, "model": model, "split": split, "client": client}
            row |= {"examples": int(cohort.sizes[i])} | {m: float(v[i]) for m, v in cohort.clients.items()}
            rows.append(row)
        new = not self.rows
        self.rows += rows
        if self.folder is not None:
            with (self.folder / "clients.csv").open("a", newline="") as file:
                file.write(_csv(rows, header=new))


def jsonable(value: Any) -> Any:
    """Plain JSON: nan and infinities become null, because JSON has none."""
    if isinstance(value, dict):
        return {k: jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def _line(event: Event) -> str:
    return json.dumps(jsonable(event)) + "\n"


def _events(path: Path) -> list[Event]:
    """The whole lines of a file; a last line cut off by a crash is dropped."""
    events = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def _csv(rows: list[Event], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(path: Path) -> list[Event]:
    if not path.exists():
        return []
    rows = []
    whole = path.read_bytes().rpartition(b"\n")[0].decode()  # a last line without its end was cut off by a crash
    with io.StringIO(whole, newline="") as file:
        for row in csv.DictReader(file):
            if any(value is None for value in row.values()):
                break  # so was a quoted name with a line break in it
            try:
                parsed: Event = {k: row[k] for k in ("model", "split", "client")}
                parsed |= {k: int(row[k]) for k in ("round", "examples")} | {m: float(row[m]) for m in METRICS}
            except (KeyError, ValueError) as error:
                raise FedpriorError(f"'{path}' is damaged ({error}): start the run again in a new folder.") from None
            rows.append(parsed)
    return rows
