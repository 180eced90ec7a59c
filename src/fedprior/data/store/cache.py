"""Fetch, import, load and list data sets. Every failure is reported in one sentence."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprior.data.store import layout
from fedprior.data.store.download import SourceError
from fedprior.data.store.importers import Decoded, decode
from fedprior.data.store.layout import DamagedError, Progress, StoredManifest, data_dir
from fedprior.data.store.members import digest
from fedprior.data.store.record import RECORDS, Record, Source, Url
from fedprior.data.store.sources import obtain
from fedprior.errors import FedpriorError
from fedprior.options import pick

__all__ = ["Pool", "Status", "Stored", "data_dir", "fetch", "import_files", "listing", "load", "status"]


class Pool(NamedTuple):
    """All examples of a data set in one table."""

    x: NDArray[Any]  # [n, ...]
    y: NDArray[np.int64]  # [n]
    columns: Mapping[str, NDArray[Any]]  # each [n]; `split` is train or test where the data set has both

    @property
    def official(self) -> NDArray[np.bool_] | None:
        """Which examples the data set's authors test on, [n]; None where they do not say."""
        return self.columns["split"] == "test" if "split" in self.columns else None

    @property
    def client_columns(self) -> dict[str, NDArray[Any]]:
        """What partitions by column may use: the data set's own columns first, then the label."""
        own = {name: values for name, values in self.columns.items() if name not in ("split", "coarse")}
        return own | {"label": self.y}


@dataclass(frozen=True)
class Stored:
    """A stored data set: `stored["x_train"]` is a read-only memory map."""

    manifest: StoredManifest
    arrays: Mapping[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return pick("array", self.arrays, name)

    def pool(self) -> Pool:
        """Training and test examples together, in this order."""
        splits = [split for split in self.manifest.examples if split != "all"]
        if not splits:
            columns = {name: array for name, array in self.arrays.items() if name not in ("x", "y")}
            return Pool(self["x"], self["y"], columns)
        parts = sorted({name.removesuffix(f"_{splits[0]}") for name in self.arrays if name.endswith(splits[0])})
        joined = {part: np.concatenate([self[f"{part}_{split}"] for split in splits]) for part in parts}
        x, y = joined.pop("x"), joined.pop("y")
        return Pool(x, y, joined | {"split": np.repeat(splits, [self.manifest.examples[s] for s in splits])})


@dataclass(frozen=True)
class Status:
    """A data set as `fedprior data list` shows it."""

    name: str
    title: str
    state: Literal["stored", "absent", "damaged"]
    fetchable: bool
    folder: Path
    bytes: int = 0
    examples: Mapping[str, int] | None = None
    source: str = ""
    note: str = ""


def fetch(name: str, *, progress: Progress | None = None, force: bool = False) -> StoredManifest:
    """Get a data set from the first of its sources that works, unless it is already stored."""
    record = pick("dataset", RECORDS, name)
    tell = progress or _silent
    if not force and (manifest := _sound(name)):
        return manifest
    with _writing(), layout.locked(name, tell):
        if not force and (manifest := _sound(name)):  # another process was faster
            return manifest
        if not record.sources:
            raise FedpriorError(f"{name} cannot be fetched: get {record.accepts} and {_import(name)}.")
        failures = []
        for source in record.sources:
            try:
                return _obtained(record, source, tell)
            except (SourceError, FedpriorError) as error:
                failures.append(f"{source} ({str(error).rstrip('.')})")
        tried = "; ".join(failures)
        raise FedpriorError(
            f"{name} could not be fetched from any source: {tried}; try again later, or get {record.accepts} "
            f"and {_import(name)}."
        )


def _obtained(record: Record, source: Source, tell: Progress) -> StoredManifest:
    files = obtain(source, layout.part(record.name), tell)
    tell(0, None, f"reading {record.name}")
    try:
        if isinstance(source, Url) and source.content and digest(files) != source.content:
            raise SourceError("its files are not the published ones and were deleted")
        decoded = decode(record, files)
    except (FedpriorError, SourceError):
        for file in files:  # or the next run would take them for a finished download
            file.unlink(missing_ok=True)
        raise
    return _keep(record, decoded, str(source))


def import_files(name: str, paths: Iterable[str | Path], *, force: bool = False) -> StoredManifest:
    """Store a data set from the user's files, folders or archives."""
    record = pick("dataset", RECORDS, name)
    given = [Path(path) for path in paths]
    if not given:
        raise FedpriorError(f"no files to import: give {record.accepts}.")
    with _writing(), layout.locked(name, _silent):
        if not force and _sound(name):
            raise FedpriorError(f"{name} is already stored in '{layout.folder(name)}': add --force to replace it.")
        decoded = decode(record, given)
        return _keep(record, decoded, "import of " + ", ".join(path.name for path in given))


def load(name: str) -> Stored:
    """A stored data set; every array is compared with its checksum."""
    record = pick("dataset", RECORDS, name)
    get = f"`fedprior data fetch {name}" if record.sources else f"`fedprior data import {name} FILE..."
    try:
        manifest = layout.read_manifest(name)
        return Stored(manifest, layout.read_arrays(manifest))
    except FileNotFoundError:
        raise FedpriorError(f"{name} is not stored in '{data_dir()}': get it with {get}`.") from None
    except DamagedError as error:
        where = layout.folder(name)
        raise FedpriorError(f"{name} in '{where}' is damaged ({error}): get it again with {get} --force`.") from None
    except OSError as error:
        raise FedpriorError(f"'{layout.folder(name)}' cannot be read: {error.strerror}.") from None


def status(name: str) -> Status:
    """Whether a data set is stored, by its manifest and the sizes of its files; `load` looks more closely."""
    record = pick("dataset", RECORDS, name)
    where = layout.folder(name)
    known = (name, record.title)
    try:
        manifest = layout.read_manifest(name)
        size = layout.stored_bytes(manifest)
    except FileNotFoundError:
        state: Literal["absent", "damaged"] = "damaged" if where.exists() else "absent"
        return Status(*known, state, bool(record.sources), where)
    except (DamagedError, OSError):
        return Status(*known, "damaged", bool(record.sources), where)
    return Status(
        *known, "stored", bool(record.sources), where, size, manifest.examples, manifest.source, manifest.note
    )


def listing() -> list[Status]:
    """The status of every data set, by name."""
    return [status(name) for name in sorted(RECORDS)]


def _silent(done: int, total: int | None, label: str) -> None:
    pass


def _import(name: str) -> str:
    return f"run `fedprior data import {name} FILE...`"


def _sound(name: str) -> StoredManifest | None:
    with suppress(FedpriorError):
        return load(name).manifest
    return None


def _keep(record: Record, decoded: Decoded, source: str) -> StoredManifest:
    arrays = decoded.arrays
    manifest = StoredManifest(
        name=record.name,
        title=record.title,
        classes=record.classes,
        examples=layout.counted({name: array.shape for name, array in arrays.items()}),
        features=record.features,
        source=source,
        format=decoded.format,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        licence=record.licence,
        citation=record.citation,
        note=decoded.note,
        bytes=sum(array.nbytes for array in arrays.values()),
        arrays=layout.described(arrays),
    )
    layout.write(manifest, arrays)
    shutil.rmtree(layout.part(record.name), ignore_errors=True)
    return manifest


@contextmanager
def _writing() -> Iterator[None]:
    """Disk errors, unlike those of a source, are final."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FedpriorError(
                f"the disk of '{data_dir()}' is full: make room, or set FEDPRIOR_DATA to a folder elsewhere, and run "
                "it again; what is stored is unharmed, and what was downloaded is kept."
            ) from None
        raise FedpriorError(
            f"'{error.filename or data_dir()}' cannot be written ({error.strerror or error}): set FEDPRIOR_DATA to a "
            "folder that you may write to."
        ) from None
