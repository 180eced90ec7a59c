"""Writing files so that nothing is ever half-written: to a temporary file beside the target, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedprior.errors import FedpriorError

BRIEFLY = 0.1
"""Seconds after which a lock counts as held: it may be on its way out."""
INNER_LOCK = ".lock"
WITHOUT = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""What file systems without locks say; there, two processes at once are the user's to avoid."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing. A link stays one, and a device or a pipe (`/dev/stdout`) is written to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            file.write(content)
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """Write a whole text file or nothing."""
    write_bytes(path, content.encode())


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes another's place once it is full: nobody sees a part of it."""
    clear_unfinished(folder)
    new, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{which}.tmp") for which in ("new", "old"))
    new.mkdir(parents=True)
    try:
        yield new
        _sync(new)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        _sync(folder.parent)
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Ask the system to write a folder's entries down."""
    with suppress(OSError):  # not every system opens folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def file_lock(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock file, which is there only while it is held; forked workers do not hold it.

    The system lets go when this process ends, however it ends. Where another holds it, `filelock.Timeout` is raised;
    or, with `waiting`, that is called and the other is waited for.
    """
    lock = FileLock(path, timeout=BRIEFLY, poll_interval=BRIEFLY / 4)
    try:
        lock.acquire()
    except Timeout:
        if waiting is None:
            raise
        waiting()
        lock.acquire(timeout=-1)
    except OSError as error:
        if error.errno not in WITHOUT:
            raise
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held, so that nobody else can hold what is removed
            path.unlink()
        lock.release()


@contextmanager
def folder_lock(folder: Path, within: Path | None = None) -> Iterator[None]:
    """Keep other processes out of a folder. The lock lies beside it, or beside a folder that it is somewhere `within`.

    Where nothing can be written beside it, the lock lies in the folder.
    """
    place, inner = (path.absolute() for path in (within or folder, folder))
    name = ".".join(["", place.name, *(quote(part, safe=" ") for part in inner.relative_to(place).parts), "lock"])
    place.parent.mkdir(parents=True, exist_ok=True)
    path = place.parent / name if os.access(place.parent, os.W_OK) else inner / INNER_LOCK
    try:
        with file_lock(path):
            yield
    except Timeout:
        told = f"another process is at work in '{folder}': wait for it, or choose another folder."
        raise FedpriorError(told) from None


def clear_temporary(folder: Path) -> None:
    """Remove the temporary files that a killed process left; whoever calls this holds the folder's lock."""
    _remove(folder.rglob(".*.tmp"))


def clear_unfinished(path: Path) -> None:
    """Remove what processes that were killed had written of a file or folder; no other may be writing it."""
    _remove(path.parent.glob(f".{escape(path.name)}.*.tmp"))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def pack(tensors: Mapping[str, Tensor | NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Named tensors as safetensors."""
    arrays = {k: v for k, v in tensors.items() if isinstance(v, np.ndarray)}
    if len(arrays) == len(tensors):  # spares many small arrays the checks that tensors need
        plain = {k: v if v.flags.c_contiguous else v.copy() for k, v in arrays.items()}
        return safetensors.numpy.save(plain, dict(metadata or {}))
    return safetensors.torch.save(
        {k: torch.as_tensor(v).clone().contiguous() for k, v in tensors.items()}, dict(metadata or {})
    )


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file.

    They are copied to where PyTorch would put them: products of the same numbers may differ in the last bit if these
    begin at an odd address, as they do in a file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {k: file.get_tensor(k).clone() for k in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FedpriorError(f"'{path}' is missing or damaged and cannot be read: {error}.") from None
