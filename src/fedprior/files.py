"""Writing files so that nothing is ever half-written: to a temporary file beside the target, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedprior.errors import FedpriorError

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """Write a whole text file or nothing."""
    write_bytes(path, content.encode())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the system lets go when this one ends, however it ends."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # workers may have inherited the handle
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        told = f"another process is at work in '{folder}': wait for it, or choose another --out."
        raise FedpriorError(told) from None
    except OSError:  # a file system without locks
        pass


def pack(tensors: Mapping[str, Tensor | NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Named tensors as safetensors."""
    plain = {k: torch.as_tensor(v).contiguous() for k, v in tensors.items()}
    return save({k: v.clone() for k, v in plain.items()}, dict(metadata or {}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {k: file.get_tensor(k) for k in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FedpriorError(f"'{path}' is missing or damaged and cannot be read: {error}.") from None


def file_name(client: str) -> str:
    """A client's name as a file name: letters, digits, `-`, `_`, `.` and spaces stay, the rest is escaped."""
    name = quote(client, safe=" ")
    return name if name.strip(".") else name.replace(".", "%2E")
