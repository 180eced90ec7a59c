"""A site's memory between messages: its states and personal models on disk, by experiment, site and round.

Every message may find a new process at the site. A state is known by the rounds that were done with it. An order names
the last one that the server counted, and the site goes back to it: whatever came later never happened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fedprior.errors import FedpriorError
from fedprior.files import pack, read_tensors, write_bytes, write_text
from fedprior.flower.codec import Arrays, Layout, RejectedError, digest, encode
from fedprior.flower.refusal import RefusedError
from fedprior.names import file_names

Notes = list[dict[str, Any]]
Kind = Literal["state", "personal"]
SENT, ERRORS, SCORES, AGREEMENT = "sent.jsonl", "errors.log", "scores.jsonl", "agreement.json"


class Store:
    """One site's files of one experiment."""

    def __init__(self, folder: Path, experiment: str, site: str) -> None:
        self.folder = folder / file_names([experiment])[experiment] / file_names([site])[site]

    def keep(self, kind: Kind, number: int, value: Any) -> None:
        """Write a tree down: a state after so many rounds, or the personal model evaluated then."""
        arrays = encode(value)
        write_bytes(self._path(kind, number), pack(arrays, {"sha256": digest(arrays)}))

    def read(self, kind: Kind, number: int, layout: Layout) -> Any:
        """The tree of a round, as it was written."""
        try:
            return layout.decode(self._arrays(self._path(kind, number)))
        except RejectedError as error:
            raise RefusedError("state", f"the {kind} of round {number} is not one of this method: {error}.") from None

    def roll_back(self, counted: int) -> None:
        """Forget the states after the last one that counts, and those before it, which nobody can ask for again."""
        self.prune("state", lambda number: number == counted)
        if counted and counted not in self.numbers("state"):
            raise RefusedError("state", f"there is no state of round {counted} in '{self.folder}'.")

    def prune(self, kind: Kind, keep: Callable[[int], bool]) -> None:
        """Forget what is not to be kept."""
        for number in self.numbers(kind):
            if not keep(number):
                self._path(kind, number).unlink(missing_ok=True)

    def numbers(self, kind: Kind) -> list[int]:
        """The rounds that there is something of, in order."""
        return sorted(int(path.stem.rpartition("-")[2]) for path in self.folder.glob(f"{kind}-*.safetensors"))

    def agree(self, agreement: Mapping[str, Any]) -> None:
        """Remember what the experiment is, or refuse another by the same name, or other data."""
        path = self.folder / AGREEMENT
        if not path.exists():
            write_text(path, json.dumps(dict(agreement), indent=2) + "\n")
            return
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            same, data = known["hash"] == agreement["hash"], known["data"] == agreement["data"]
        except (ValueError, KeyError, TypeError):
            raise RefusedError("state", f"'{path}' is damaged: restore it, or remove its folder.") from None
        if not same:
            raise RefusedError("another", f"'{self.folder}' belongs to another experiment of the same name.")
        if not data:
            raise RefusedError("changed", "the table is not the one that the experiment began with.")

    def note(self, name: str, line: str) -> None:
        """Add a line to a log, on a line of its own even if the one before was cut off."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / name).open("ab+") as file:
            cut_off = file.tell() and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n"
            file.write((b"\n" if cut_off else b"") + f"{line}\n".encode())

    def scores(self) -> dict[int, dict[str, Any]]:
        """The site's metrics by round and split, as last evaluated; what was cut off is evaluated again."""
        path = self.folder / SCORES
        found, _ = noted(path) if path.exists() else ([], 0)
        return {entry["round"]: entry["scores"] for entry in found if entry.keys() == {"round", "scores"}}

    def _path(self, kind: Kind, number: int) -> Path:
        return self.folder / f"{kind}-{number:06d}.safetensors"

    def _arrays(self, path: Path) -> Arrays:
        try:
            tensors, told = read_tensors(path)
        except FedpriorError as error:
            raise RefusedError("state", str(error)) from None
        arrays = {name: values.numpy() for name, values in tensors.items()}
        if told.get("sha256") != digest(arrays):
            raise RefusedError("state", f"'{path}' is damaged: its checksum is wrong.")
        return arrays


def noted(path: Path) -> tuple[Notes, int]:
    """The documents in the lines of a log, and how many lines are none: a node may die while it writes one."""
    found: Notes = []
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    for line in lines:
        with suppress(ValueError, RecursionError):
            document = json.loads(line)
            found += [document] if isinstance(document, dict) else []
    return found, len(lines) - len(found)
