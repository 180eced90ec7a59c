"""What a run records: one line per round, and each client's metrics and logs at every evaluation.

With a folder, the history is in `events.jsonl`, `clients.csv` and `logs.csv` and takes no memory, however long the run
is; it is read when it is needed. Without a folder it is kept in memory. A resumed run first drops the lines that its
checkpoint does not cover, since those rounds will run again; those that it covers must be what was written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError
from fedprior.experiment.records import (
    TEXT,
    WHOLE,
    Event,
    as_csv,
    as_json,
    columns,
    header,
    jsonable,
    read_events,
    read_rows,
)
from fedprior.experiment.seal import CLIENTS, EVENTS, JOURNALS, LOGS, Running, Seal
from fedprior.files import write_text
from fedprior.metrics import Cohort, Value

__all__ = ["Event", "Journal", "Observer", "jsonable"]

Observer = Callable[[Event], None]
"""Called with every event as it happens: for progress bars and live views."""


class Journal:
    """The history of a run: in files, or without a folder in memory."""

    def __init__(self, folder: Path | None, observe: Observer | None = None) -> None:
        self.folder, self.observe = folder, observe
        self.kept: dict[str, list[Event]] = {} if folder is not None else {name: [] for name in JOURNALS}
        self.headers: dict[str, list[str]] = {}  # of the files
        self.running = {name: Running() for name in JOURNALS}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def events(self) -> list[Event]:
        """All events."""
        return self._all(EVENTS)

    @property
    def rows(self) -> list[Event]:
        """Round, model, split, client, examples and metrics of every client at every evaluation."""
        return self._all(CLIENTS)

    @property
    def logs(self) -> list[Event]:
        """Round, client, updated and what the method logged about that update."""
        return self._all(LOGS)

    def _all(self, name: str) -> list[Event]:
        return self.kept[name] if name in self.kept else list(self.read(name))

    def read(self, name: str, round: int | None = None) -> Iterator[Event]:
        """The lines of a journal one by one, of all rounds or of one."""
        if name in self.kept or self.folder is None:
            return (line for line in self.kept[name] if round is None or line["round"] == round)
        return read_events(self.folder / name) if name == EVENTS else read_rows(self.folder / name, round)

    def __getstate__(self) -> dict[str, object]:
        """A copy, pickled or deep, is for reading: it has the whole history, writes nowhere and tells nobody."""
        kept = {name: self._all(name) for name in JOURNALS}
        return vars(self) | {"kept": kept, "folder": None, "observe": None, "running": {}}

    def load(self) -> None:
        """Keep the whole history in memory, for those who need it more than once."""
        self.kept = {name: list(self.read(name)) for name in JOURNALS}

    def rewind(self, seals: Mapping[str, Seal] | None = None) -> None:
        """Drop everything that a checkpoint does not cover, by its seals; without a checkpoint, everything.

        The part that it covers is verified first; if it differs, nothing is changed.
        """
        assert self.folder is not None
        if seals is None:
            for name in JOURNALS:
                self._replace(name, "")
            return
        covered = {name: _covered(self.folder / name, seal) for name, seal in seals.items()}
        for name, (running, text) in covered.items():
            path = self.folder / name
            if text is not None:
                write_text(path, text)
            elif path.exists():
                os.truncate(path, running.size)
            self.running[name], self.headers[name] = running, [] if name == EVENTS else header(path)

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
        return any((e["kind"], e["round"]) == ("evaluation", round) for e in self.read(EVENTS))

    def event(self, event: Event) -> None:
        """Add a line."""
        self._keep(EVENTS, [event])
        if self.folder is not None:
            self._append(EVENTS, as_json([event]))
        if self.observe is not None:
            self.observe(event)

    def evaluation(self, round: int, model: str, split: str, clients: Sequence[str], cohort: Cohort) -> None:
        """Add every client's metrics."""
        rows: list[Event] = []
        for client, size, values in zip(clients, cohort.sizes.tolist(), cohort.clients, strict=True):
            rows.append({"round": round, "model": model, "split": split, "client": client, "examples": size} | values)
        self._add(CLIENTS, rows)

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
        self._add(LOGS, rows)

    def values(self, round: int, split: str, model: str = "personal") -> dict[str, dict[str, Value]]:
        """Each client's metrics at an evaluation, by name."""
        found = [r for r in self.read(CLIENTS, round) if (r["split"], r["model"]) == (split, model)]
        return {r["client"]: {k: v for k, v in r.items() if k not in (*TEXT, *WHOLE)} for r in found}

    def _keep(self, name: str, lines: list[Event]) -> None:
        if name in self.kept:
            self.kept[name] += lines

    def _add(self, name: str, rows: list[Event]) -> None:
        self._keep(name, rows)
        if self.folder is None or not rows:
            return
        known = self.headers.get(name, [])
        new = [column for column in columns(rows) if column not in known]
        if new:  # the first lines, or new metrics in the file of an older run
            self.headers[name] = known + new
            before = list(read_rows(self.folder / name)) if known else []
            self._replace(name, as_csv([*before, *rows], self.headers[name]))
        else:
            self._append(name, as_csv(rows, known, first=False))

    def _append(self, name: str, text: str) -> None:
        assert self.folder is not None
        content = text.encode()
        with (self.folder / name).open("ab") as file:
            file.write(content)
        self.running[name].add(content)

    def _replace(self, name: str, text: str) -> None:
        assert self.folder is not None
        write_text(self.folder / name, text)
        self.running[name] = Running(text.encode())


def _covered(path: Path, seal: Seal) -> tuple[Running, str | None]:
    """The part of a file that a checkpoint covers, as text if it is not the file's beginning: columns were added."""
    running, text = Running.of(path, seal.size), None
    if not seal.fits(running) and seal.columns:
        with suppress(FedpriorError):
            text = _narrowed(path, seal)
            running = Running(text.encode())
    if not seal.fits(running):
        raise FedpriorError(
            f"'{path}' is missing or damaged (its first {seal.lines} lines are not those that the checkpoint covers): "
            "nothing was changed; restore a copy of it, or start the run again in a new folder."
        )
    return running, text


def _narrowed(path: Path, seal: Seal) -> str:
    """As many bytes of a table as were sealed, as they were before it had more columns."""
    whole = as_csv(read_rows(path), header(path)[: seal.columns])
    return whole.encode()[: seal.size].decode(errors="ignore")
