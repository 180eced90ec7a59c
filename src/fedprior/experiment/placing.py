"""A folder that appears whole or not at all, and goes again when its run is refused before it began.

A new folder is prepared beside its place, as `.NAME.new`, and renamed. One that is there already and empty (it may be a
mount point, or where the user stands) is prepared in a `.new` of its own and filled from it, what makes it a run last.
What a crash leaves of either is cleared by the next attempt.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from fedprior.errors import FedpriorError
from fedprior.experiment.seal import EVENTS
from fedprior.files import INNER_LOCK, folder_lock, write_text

INNER = ".new"


def claim(folder: Path) -> None:
    """Refuse a folder that something lies in already."""
    if folder.exists() and not folder.is_dir():
        raise FedpriorError(f"'{folder}' is a file: choose a folder for the output.")
    if folder.is_dir() and set(folder.iterdir()) - {*_begun(folder), folder / INNER_LOCK}:
        raise FedpriorError(
            f"the output folder '{folder}' is already in use: choose another, or continue the run that it holds with "
            f"`fedprior resume {quote(str(folder))}`."
        )


def _begun(folder: Path) -> list[Path]:
    """What an attempt to fill an empty folder left in it."""
    inner = folder / INNER
    return [inner, *(folder / path.name for path in inner.iterdir())] if inner.is_dir() else []


def place(documents: Mapping[str, str], folder: Path) -> None:
    """Make a folder of text files; the last of them makes it what it is."""
    if folder.is_dir():
        _fill(documents, folder)
        return
    new = folder.with_name(f".{folder.name}{INNER}")
    shutil.rmtree(new, ignore_errors=True)
    for name, text in documents.items():
        write_text(new / name, text)
    try:
        new.rename(folder)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        claim(folder)  # another process may have been faster
        raise


def _fill(documents: Mapping[str, str], folder: Path) -> None:
    for left in reversed(_begun(folder)):  # `.new`, which tells what to clear, goes last
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    for target in (folder / INNER, folder):
        for name, text in documents.items():
            write_text(target / name, text)
    shutil.rmtree(folder / INNER)


@contextmanager
def at_work(folder: Path, begin: Callable[[], bool] | None = None, within: Path | None = None) -> Iterator[None]:
    """Hold a folder while a run is at work in it, begun if need be (`begin` tells whether it was).

    If the run is refused before its first round is done, a folder that was begun here goes again.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with folder_lock(folder, within):
            new = begin is not None and begin()
            shutil.rmtree(folder / INNER, ignore_errors=True)
            try:
                yield
            except Exception:
                if new and not any(path.stat().st_size for path in folder.rglob(EVENTS)):
                    _empty(folder)
                raise
    finally:
        with suppress(OSError):  # the first that is not empty ends it
            for path in made:
                path.rmdir()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
