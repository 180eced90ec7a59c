"""A stored data set on the disk: `<data dir>/<name>/` with one `.npy` file an array and `manifest.json`.

    x_train.npy  uint8 [n, channels, height, width]     y_train.npy  int64 [n]     and _test likewise, or
    x.npy        where there is no split                y.npy        int64 [n]
    writer.npy, domain.npy, site.npy, user.npy, coarse.npy (or coarse_train.npy ...)   columns: int64 or text [n]

Arrays are memory-mapped, never pickled. A folder is made below `<data dir>/.part` and renamed when it is complete;
downloads wait there too, so an interrupted one goes on where it was.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError
from fedprior.files import write_text

VERSION = 1
MANIFEST = "manifest.json"
Progress = Callable[[int, int | None, str], None]
"""Called with the bytes done, all bytes (None if unknown) and what is being done."""


class DamagedError(Exception):
    """Why a stored data set cannot be used."""


@dataclass(frozen=True)
class ArrayInfo:
    """One array as the manifest tells it."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What is stored and where it came from."""

    name: str
    title: str
    classes: int
    examples: Mapping[str, int]  # a split, or "all"
    features: tuple[str, ...]
    source: str
    format: str
    date: str
    licence: str
    citation: str
    note: str
    bytes: int
    arrays: Mapping[str, ArrayInfo]
    version: int = VERSION


def data_dir() -> Path:
    """`$FEDPRIOR_DATA`, or `fedprior` in the user's cache folder."""
    if chosen := os.environ.get("FEDPRIOR_DATA"):
        path = Path(chosen).expanduser()
        if path.is_file():
            raise FedpriorError(f"FEDPRIOR_DATA is '{path}', which is a file: set it to a folder.")
        return path
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path("~/.cache").expanduser()) / "fedprior"


def folder(name: str) -> Path:
    """Where a data set is once it is complete."""
    return data_dir() / name


def part(name: str) -> Path:
    """Where its downloads wait; made if need be."""
    path = data_dir() / ".part" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def checksum(array: NDArray[Any]) -> str:
    """SHA-256 of type, shape and values, whatever the header of the file that holds them."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(_raw(array))
    return digest.hexdigest()


def _raw(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def described(arrays: Mapping[str, NDArray[Any]]) -> dict[str, ArrayInfo]:
    """The arrays as a manifest lists them."""
    return {name: ArrayInfo(array.dtype.str, array.shape, checksum(array)) for name, array in arrays.items()}


def write(manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Store arrays under the manifest's name, all or nothing; what was there before is replaced at the very end."""
    target, new, old = folder(manifest.name), part(manifest.name) / "new", part(manifest.name) / "old"
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir()
        for name, array in arrays.items():
            _write_array(new / f"{name}.npy", array)
        write_text(new / MANIFEST, json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n")
        if target.exists():
            target.rename(old)
        new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        _restore(manifest.name)


def _restore(name: str) -> None:
    """Put the former version back if a replacement was interrupted between its two renames; else it is not needed."""
    old = part(name) / "old"
    if old.exists() and not folder(name).exists():
        old.rename(folder(name))
    shutil.rmtree(old, ignore_errors=True)


def _write_array(path: Path, array: NDArray[Any]) -> None:
    """`numpy.save`, which does not say why a write fails when the disk is full."""
    array = np.ascontiguousarray(array)  # or the header would announce Fortran's order, in which _raw is not
    with path.open("wb") as file:
        file.write(_header(array.dtype.str, array.shape))
        file.write(_raw(array))
        file.flush()
        os.fsync(file.fileno())


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
    return head.getvalue()


def read_manifest(name: str) -> Manifest:
    """The manifest of a stored data set, or FileNotFoundError if there is none."""
    try:
        document = json.loads((folder(name) / MANIFEST).read_text(encoding="utf-8"))
        arrays = {k: ArrayInfo(v["dtype"], tuple(v["shape"]), v["sha256"]) for k, v in document.pop("arrays").items()}
        manifest = Manifest(**(document | {"features": tuple(document["features"]), "arrays": arrays}))
    except (ValueError, KeyError, TypeError, AttributeError, NotADirectoryError) as error:
        raise DamagedError(f"its {MANIFEST} cannot be read: {error}") from None
    if manifest.version != VERSION or manifest.name != name:
        raise DamagedError(f"its {MANIFEST} is of '{manifest.name}', version {manifest.version}")
    if not arrays or manifest.examples != counted({k: stored.shape for k, stored in arrays.items()}):
        raise DamagedError(f"its {MANIFEST} contradicts itself")
    return manifest


def counted(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Examples by split, or in `all`, from the shapes of the arrays."""
    return {name[2:] or "all": shape[0] for name, shape in shapes.items() if name in ("y_train", "y_test", "y")}


def stored_bytes(manifest: Manifest) -> int:
    """The size of the arrays' files, each of which must be that of its array and a header."""
    total = 0
    for name, stored in manifest.arrays.items():
        path = folder(manifest.name) / f"{name}.npy"
        values, size = math.prod(stored.shape) * np.dtype(stored.dtype).itemsize, path.stat().st_size
        if size != len(_header(stored.dtype, stored.shape)) + values:
            raise DamagedError(f"{path.name} has {size} bytes")
        total += size
    return total


def read_arrays(manifest: Manifest) -> dict[str, NDArray[Any]]:
    """The arrays, memory-mapped and read-only, each compared with its checksum."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, stored in manifest.arrays.items():
        path = folder(manifest.name) / f"{name}.npy"
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        except (OSError, ValueError, EOFError) as error:
            raise DamagedError(f"{path.name} cannot be read: {error}") from None
        if (array.dtype.str, array.shape) != (stored.dtype, stored.shape) or checksum(array) != stored.sha256:
            raise DamagedError(f"{path.name} is not what was stored")
        arrays[name] = array
    return arrays


@contextmanager
def locked(name: str, progress: Progress) -> Iterator[None]:
    """One process at a time fetches or imports a data set; the lock ends with the process, however it ends."""
    path = part(name).with_name(f"{name}.lock")
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two writers at once are then the user's to avoid
        yield
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(0, None, f"waiting for another process that gets {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        _restore(name)
        yield
