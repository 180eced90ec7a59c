"""Checksums of a run's files: of its journals up to a checkpoint, and of all files of a finished run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedprior.errors import FedpriorError

EVENTS, CLIENTS, LOGS = "events.jsonl", "clients.csv", "logs.csv"
JOURNALS = (EVENTS, CLIENTS, LOGS)
BLOCK = 1 << 20
"""Bytes that are read at a time."""
PRIOR = "prior.safetensors"


class Seal(NamedTuple):
    """The beginning of a file: everything written up to some point in time."""

    lines: int
    size: int  # in bytes
    sha256: str
    columns: int = 0  # of a table

    def fits(self, found: Running) -> bool:
        """Whether this is what was sealed."""
        return (found.size, found.digest.hexdigest()) == (self.size, self.sha256)


class Running:
    """The seal of a file that grows; every byte is hashed once."""

    def __init__(self, content: bytes = b"") -> None:
        self.lines, self.size, self.digest = 0, 0, hashlib.sha256()
        self.add(content)

    @classmethod
    def of(cls, path: Path, size: int) -> Running:
        """The first `size` bytes of a file, which may be shorter or missing."""
        found = cls()
        if path.exists():
            with path.open("rb") as file:
                while piece := file.read(min(BLOCK, size - found.size)):
                    found.add(piece)
        return found

    def add(self, content: bytes) -> None:
        """Add content at the end."""
        self.lines, self.size = self.lines + content.count(b"\n"), self.size + len(content)
        self.digest.update(content)

    def seal(self, columns: int = 0) -> Seal:
        """The file as it is now."""
        return Seal(self.lines, self.size, self.digest.hexdigest(), columns)


def parsed(document: Any) -> dict[str, Seal]:
    """Seals as a manifest has them; ValueError or TypeError where it does not."""
    seals = {name: Seal(**document[name]) for name in JOURNALS}
    if not all(type(number) is int for seal in seals.values() for number in (seal.lines, seal.size, seal.columns)):
        raise TypeError("its journals are of the wrong kind")
    return seals


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of files."""
    found = {}
    for name in names:
        with (folder / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def record(folder: Path, summary: dict[str, Any], journals: Mapping[str, Seal]) -> None:
    """Record the checksums of the run's files in its summary; that of the events is under `timing`."""
    for name, journal in journals.items():
        path = folder / name
        if (path.stat().st_size if path.exists() else 0) != journal.size:
            raise FedpriorError(f"'{path}' was changed while the run was at work: run it again in a new folder.")
    models = sorted(path.relative_to(folder).as_posix() for path in (folder / "models").glob("*.safetensors"))
    tables = {name: seal.sha256 for name, seal in journals.items() if name != EVENTS and seal.size}
    single = [name for name in ("predictions.safetensors", PRIOR) if (folder / name).exists()]
    summary["files"] = tables | checksums(folder, [*single, *models])
    if EVENTS in journals:
        summary["timing"]["events"] = journals[EVENTS].sha256


def check(folder: Path, summary: Mapping[str, Any], only: Iterable[str] | None = None) -> None:
    """Refuse a finished run if a file is not what the run wrote; summaries of older versions have no checksums."""
    known = dict(summary.get("files", {}))
    if "events" in summary.get("timing", {}):
        known[EVENTS] = summary["timing"]["events"]
    for name in known if only is None else [name for name in only if name in known]:
        if not (folder / name).is_file() or checksums(folder, [name])[name] != known[name]:
            raise FedpriorError(
                f"'{folder / name}' is missing or damaged (its checksum is not the one in summary.json): nothing was "
                "changed; restore a copy of it, or run it again in a new folder."
            )
