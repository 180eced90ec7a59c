"""What a run records: one line per round, and each client's metrics and logs at every evaluation.

`events.jsonl`, `clients.csv` and `logs.csv` mirror three lists in memory. A resumed run first drops the lines that its
checkpoint does not cover, since those rounds will run again; those that it covers must be what was written.
A metric that is undefined for a client is an empty cell; that of a model that diverged is `nan`. Columns are found by
their headers, so files of runs with other metrics stay readable.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError
from fedprior.experiment.seal import CLIENTS, EVENTS, JOURNALS, LOGS, Running, Seal
from fedprior.files import write_bytes, write_text
from fedprior.metrics import Cohort, Value
from fedprior.names import csv_cell, from_csv_cell

Event = dict[str, Any]
Observer = Callable[[Event], None]
"""Called with every event as it happens: for progress bars and live views."""

TEXT, WHOLE = ("model", "split", "client"), ("round", "examples", "updated")
"""The columns that are not metrics or logs."""


class Journal:
    """The history of a run, in memory and, with a folder, on disk."""

    def __init__(self, folder: Path | None, observe: Observer | None = None) -> None:
        self.folder, self.observe = folder, observe
        self.events: list[Event] = []
        self.rows: list[Event] = []  # round, model, split, client, examples and metrics
        self.logs: list[Event] = []  # round, client, updated and what the method logged about that update
        self.headers: dict[str, list[str]] = {}  # of the files
        self.running = {name: Running() for name in JOURNALS}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> None:
        """Read the whole history."""
        assert self.folder is not None
        self.events = _events(self.folder / "events.jsonl")
        self.rows, self.logs = (_rows(self.folder / name) for name in ("clients.csv", "logs.csv"))

    def rewind(self, done: int, rounds: int, seals: Mapping[str, Seal] | None = None) -> None:
        """Drop everything after `done` rounds, on disk too; the last evaluation always runs again.

        With the `seals` of a checkpoint, the part that it covers is verified first; if it differs, nothing is changed.
        """
        assert self.folder is not None
        if done:
            covered = {name: _covered(self.folder / name, seal) for name, seal in (seals or {}).items()}
            for name, content in covered.items():
                write_bytes(self.folder / name, content)
            self.load()
        self.events = [
            e for e in self.events if e["round"] <= done and (e["kind"], e["round"]) != ("evaluation", rounds)
        ]
        self.rows, self.logs = (
            [r for r in rows if r["round"] <= done and r["round"] != rounds] for rows in (self.rows, self.logs)
        )
        self._replace(EVENTS, "".join(_line(e) for e in self.events))
        self._rewrite(CLIENTS, self.rows)
        self._rewrite(LOGS, self.logs)

    def seals(self) -> dict[str, Seal]:
        """Seals of the files as they are now, after flushing them to disk."""
        assert self.folder is not None
        for name in JOURNALS:
            if self.running[name].size:
                with (self.folder / name).open("rb") as file:
                    os.fsync(file.fileno())
        return {name: self.running[name].seal(len(self.headers.get(name, []))) for name in JOURNALS}

    def evaluated(self, round: int) -> bool:
        """Whether the models were evaluated after a round."""
        return any((e["kind"], e["round"]) == ("evaluation", round) for e in self.events)

    def event(self, event: Event) -> None:
        """Add a line."""
        self.events.append(event)
        if self.folder is not None:
            self._write_behind(EVENTS, _line(event))
        if self.observe is not None:
            self.observe(event)

    def evaluation(self, round: int, model: str, split: str, clients: Sequence[str], cohort: Cohort) -> None:
        """Add every client's metrics."""
        rows: list[Event] = []
        for client, size, values in zip(clients, cohort.sizes.tolist(), cohort.clients, strict=True):
            rows.append({"round": round, "model": model, "split": split, "client": client, "examples": size} | values)
        self._append(CLIENTS, self.rows, rows)

    def client_logs(
        self, round: int, clients: Sequence[str], updated: NDArray[np.int64], logs: Mapping[str, NDArray[np.float64]]
    ) -> None:
        """Add what the method logged about every client's last update, if there was one."""
        rows = [
            {"round": round, "client": client, "updated": int(updated[i])}
            | {name: float(logs[name][i]) for name in sorted(logs)}
            for i, client in enumerate(clients)
            if updated[i]
        ]
        self._append(LOGS, self.logs, rows)

    def values(self, round: int, split: str, model: str = "personal") -> dict[str, dict[str, Value]]:
        """Each client's metrics at an evaluation, by name."""
        found = [r for r in self.rows if (r["round"], r["split"], r["model"]) == (round, split, model)]
        return {r["client"]: {k: v for k, v in r.items() if k not in (*TEXT, *WHOLE)} for r in found}

    def _append(self, name: str, known: list[Event], rows: list[Event]) -> None:
        known += rows
        if self.folder is None or not rows:
            return
        header = self.headers.get(name, [])
        if not set(_columns(rows)) <= set(header):  # the first lines, or new metrics in the file of an older run
            self._rewrite(name, known)
            return
        self._write_behind(name, _csv(rows, header, header=False))

    def _write_behind(self, name: str, text: str) -> None:
        assert self.folder is not None
        content = text.encode()
        with (self.folder / name).open("ab") as file:
            file.write(content)
        self.running[name].add(content)

    def _replace(self, name: str, text: str) -> None:
        assert self.folder is not None
        write_text(self.folder / name, text)
        self.running[name] = Running(text.encode())

    def _rewrite(self, name: str, rows: list[Event]) -> None:
        self.headers[name] = _columns(rows)
        self._replace(name, _csv(rows, self.headers[name]))


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
    """The complete lines of a file; a last line cut off by a crash is dropped."""
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def _covered(path: Path, seal: Seal) -> bytes:
    """The part of a file that a checkpoint covers; a table may have gained columns since."""
    content = path.read_bytes() if path.exists() else b""
    if not seal.fits(content[: seal.size]) and seal.columns:
        with suppress(FedpriorError, UnicodeDecodeError, csv.Error):
            rows = _rows(path)
            content = _csv(rows, _columns(rows)[: seal.columns]).encode() if rows else content
    if not seal.fits(content[: seal.size]):
        raise FedpriorError(
            f"'{path}' is missing or damaged (its first {seal.lines} lines are not those that the checkpoint covers): "
            "nothing was changed; restore a copy of it, or start the run again in a new folder."
        )
    return content[: seal.size]


def _columns(rows: Iterable[Event]) -> list[str]:
    """Every key that occurs, in the order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _csv(rows: list[Event], columns: list[str], *, header: bool = True) -> str:
    lines: list[list[Any]] = [list(columns)] if header and rows else []
    lines += [[row.get(column) for column in columns] for row in rows]
    return "".join(",".join(map(_cell, line)) + "\n" for line in lines)


def _cell(value: Any) -> str:
    """One cell; text is quoted where needed, including for line breaks that the `csv` module would not quote."""
    if not isinstance(value, str):
        return "" if value is None else str(value)
    cell = csv_cell(value)
    quoted = any(special in cell for special in ',"\r\n')
    return '"' + cell.replace('"', '""') + '"' if quoted else cell


def _rows(path: Path) -> list[Event]:
    if not path.exists():
        return []
    rows = []
    try:
        whole = path.read_bytes().rpartition(b"\n")[0].decode()  # a last line without its end was cut off by a crash
    except UnicodeDecodeError:
        raise FedpriorError(f"'{path}' is damaged (it is not UTF-8): start the run again in a new folder.") from None
    with io.StringIO(whole, newline="") as file:
        for row in csv.DictReader(file):
            if any(value is None for value in row.values()):
                break  # so was a quoted name with a line break in it
            try:
                rows.append(_parsed(row))
            except (KeyError, TypeError, ValueError) as error:
                raise FedpriorError(f"'{path}' is damaged ({error}): start the run again in a new folder.") from None
    return rows


def _parsed(row: dict[str, str]) -> Event:
    parsed: Event = {
        from_csv_cell(k): int(v) if k in WHOLE else from_csv_cell(v) if k in TEXT else _value(v) for k, v in row.items()
    }
    parsed["round"], parsed["client"]
    if parsed.get("examples") == 0:  # older files have nan there
        parsed |= {k: None for k in parsed if k not in (*TEXT, *WHOLE)}
    return parsed


def _value(cell: str) -> Value:
    return float(cell) if cell else None
