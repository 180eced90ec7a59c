"""Files as a stream of members, wherever they lie: in folders, in archives, compressed, or archives in archives.

Formats are recognised by the first bytes, never by the name. Nothing is extracted to the disk, so a member's path is
only a label. Members come one at a time and are read on demand: no more than one is in memory.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fedprior.errors import FedpriorError

HEAD = 4096
CHUNK = 1 << 20
LIMIT = 4 << 30
"""The largest member that is read; a larger one is a mistake or a decompression bomb."""

ZIP = b"PK\x03\x04"
COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"\x5d\0\0": lzma.open,  # the older container, .lzma
}
BROKEN = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, RuntimeError)
"""Errors of the standard library on archives that are damaged, encrypted or of an unknown kind."""


@dataclass(frozen=True)
class Member:
    """One file of whatever was given. It can be read until the next one is requested."""

    path: str
    head: bytes  # its first bytes
    file: IO[bytes]

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.path).name

    def read(self) -> bytes:
        """All of it."""
        with _plain_errors(self.path):
            self.file.seek(0)
            content = self.file.read(LIMIT + 1)
        if len(content) > LIMIT:
            raise FedpriorError(f"'{self.path}' is larger than {LIMIT >> 30} GiB and is not read: give smaller files.")
        return content

    def copy(self, target: IO[bytes]) -> None:
        """Copy all of it to a file in pieces, for members too large for memory."""
        with _plain_errors(self.path):
            self.file.seek(0)
        while chunk := self._chunk():
            target.write(chunk)  # errors of the target pass through
            if target.tell() > 4 * LIMIT:
                raise FedpriorError(f"'{self.path}' has more than {4 * LIMIT >> 30} GiB and is not read: give less.")

    def _chunk(self) -> bytes:
        with _plain_errors(self.path):
            return self.file.read(CHUNK)


def members(paths: Iterable[Path]) -> Iterator[Member]:
    """Every file in the given files, folders and archives, in the order of their names."""
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise FedpriorError(f"there is no file '{path}': give the path of a file, folder or archive.")
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            if file.resolve() in seen:
                raise FedpriorError(f"'{file}' is given twice: give every file once.")
            seen.add(file.resolve())
            with _plain_errors(str(file)), file.open("rb") as stream:
                yield from _expand(file.relative_to(path.parent).as_posix(), stream)


def digest(paths: Iterable[Path]) -> str:
    """SHA-256 over the contents and paths of all members, without the outermost folder.

    It is the same however an archive is packed and whatever its own folder is called.
    """
    found = []
    for member in members(paths):
        with _plain_errors(member.path):
            member.file.seek(0)
            content = hashlib.file_digest(member.file, "sha256").hexdigest()  # type: ignore[arg-type]  # any stream
        found.append(f"{content} {'/'.join(PurePosixPath(member.path).parts[1:])}")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


@contextmanager
def _plain_errors(path: str) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        raise FedpriorError(f"'{path}' is damaged, truncated or encrypted ({error}): get it again.") from None
    except OSError as error:
        raise FedpriorError(f"'{path}' cannot be read: {error.strerror or error}.") from None


def _expand(path: str, file: IO[bytes]) -> Iterator[Member]:
    head = file.read(HEAD)
    file.seek(0)
    opener = next((opener for magic, opener in COMPRESSED.items() if head.startswith(magic)), None)
    if opener is not None:
        with opener(file) as inner:
            yield from _expand(path, inner)
    elif head[257:262] == b"ustar":
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for info in archive:
                inside = archive.extractfile(info) if info.isfile() else None
                if inside is not None:
                    yield from _expand(info.name, inside)
    elif head.startswith(ZIP) and not _is_npz(file):
        with zipfile.ZipFile(file) as folder:
            for name in sorted(n for n in folder.namelist() if not n.endswith("/")):
                with folder.open(name) as inside:
                    yield from _expand(name, inside)
    else:
        yield Member(path, head, file)


def _is_npz(file: IO[bytes]) -> bool:
    """Whether a zip file is NumPy's, which is one member and not an archive of files."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    file.seek(0)
    return bool(names) and all(name.endswith(".npy") for name in names)
