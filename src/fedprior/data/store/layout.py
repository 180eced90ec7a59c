"""A stored data set on the disk: `<data dir>/<name>/` with one `.npy` file per array and `manifest.json`.

    x_train.npy  uint8 [n, channels, height, width]     y_train.npy  int64 [n]     and _test likewise, or
    x.npy        where there is no split                y.npy        int64 [n]
    writer.npy, domain.npy, site.npy, user.npy, coarse.npy (or coarse_train.npy ...)   columns: int64 or text [n]

Arrays are memory-mapped, never pickled. A folder is made below `<data dir>/.part` and renamed when it is complete;
downloads are kept there too, so an interrupted one continues where it stopped.
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
from platformdirs import user_cache_path

from fedprior.errors import FedpriorError, shown
from fedprior.files import file_lock, write_text

VERSION = 1
MANIFEST = "manifest.json"
Progress = Callable[[int, int | None, str], None]
"""Called with the bytes done, all bytes (None if unknown) and what is being done."""


class DamagedError(Exception):
    """Why a stored data set cannot be used."""


@dataclass(frozen=True)
class ArrayInfo:
    """One array as listed in the manifest."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class StoredManifest:
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
    return user_cache_path("fedprior", appauthor=False)


def folder(name: str) -> Path:
    """Where a data set is once it is complete."""
    return data_dir() / name


def part(name: str) -> Path:
    """Where its downloads are kept; created if needed."""
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


def write(manifest: StoredManifest, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Store arrays under the manifest's name, all or nothing; an earlier version is replaced at the very end."""
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
    array = np.ascontiguousarray(array)  # or the header would announce Fortran order, which _raw does not have
    with path.open("wb") as file:
        file.write(_header(array.dtype.str, array.shape))
        file.write(_raw(array))
        file.flush()
        os.fsync(file.fileno())


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
    return head.getvalue()


def read_manifest(name: str) -> StoredManifest:
    """The manifest of a stored data set, or FileNotFoundError if there is none."""
    try:
        document = json.loads((folder(name) / MANIFEST).read_text(encoding="utf-8"))
        arrays = {k: _info(k, v) for k, v in document.pop("arrays").items()}
        manifest = StoredManifest(**(document | {"features": tuple(document["features"]), "arrays": arrays}))
    except (ValueError, KeyError, TypeError, AttributeError, NotADirectoryError, RecursionError) as error:
        raise DamagedError(f"its {MANIFEST} cannot be read: {error}") from None
    if manifest.version != VERSION or manifest.name != name:
        raise DamagedError(f"its {MANIFEST} is of '{manifest.name}', version {manifest.version}")
    if not arrays or manifest.examples != counted({k: stored.shape for k, stored in arrays.items()}):
        raise DamagedError(f"its {MANIFEST} contradicts itself")
    return manifest


def _info(name: str, told: Mapping[str, Any]) -> ArrayInfo:
    """One array of a manifest; only types that are numbers or text, and shapes that an array can have."""
    dtype, shape, total = told["dtype"], tuple(told["shape"]), told["sha256"]
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in "biufU" or np.dtype(dtype).str != dtype:
        raise ValueError(f"{name} is of type {shown(dtype)}")
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(shape) * np.dtype(dtype).itemsize >= 2**62:
        raise ValueError(f"{name} is of shape {shown(shape)}")
    if not isinstance(total, str):
        raise ValueError(f"{name} has the checksum {shown(total)}")
    return ArrayInfo(dtype, shape, total)


def counted(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Examples by split, or in `all`, from the shapes of the arrays."""
    return {name[2:] or "all": shape[0] for name, shape in shapes.items() if name in ("y_train", "y_test", "y")}


def stored_bytes(manifest: StoredManifest) -> int:
    """The size of the arrays' files, each of which must be that of its array and a header."""
    total = 0
    for name, stored in manifest.arrays.items():
        path = folder(manifest.name) / f"{name}.npy"
        values, size = math.prod(stored.shape) * np.dtype(stored.dtype).itemsize, path.stat().st_size
        if size != len(_header(stored.dtype, stored.shape)) + values:
            raise DamagedError(f"{path.name} has {size} bytes")
        total += size
    return total


def read_arrays(manifest: StoredManifest) -> dict[str, NDArray[Any]]:
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
    """One process at a time fetches or imports a data set; the lock ends with the process, even after a crash."""
    path = part(name).with_name(f"{name}.lock")
    with file_lock(path, lambda: progress(0, None, f"waiting for another process to get {name}")):
        _restore(name)
        yield
