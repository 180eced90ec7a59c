"""Output folders, which appear complete or not at all, and are removed if the run is refused before it starts.

A new folder is prepared beside its final place, as `.NAME.new`, and renamed. An existing empty folder (perhaps a mount
point or the working directory) is filled by way of a `.new` inside it; the file that makes it a run comes last. The
next attempt clears whatever a crash leaves behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from fedprior.errors import FedpriorError
from fedprior.experiment.seal import EVENTS
from fedprior.files import INNER_LOCK, clear_temporary, folder_lock, write_text

INNER = ".new"


def claim(folder: Path) -> None:
    """Refuse a folder that is not empty."""
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        what = "a file" if folder.exists() else "a link that leads nowhere"
        raise FedpriorError(f"'{folder}' is {what}: choose a folder for the output.")
    if folder.is_dir() and set(folder.iterdir()) - {*_begun(folder), folder / INNER_LOCK}:
        raise FedpriorError(
            f"the output folder '{folder}' is already in use: choose another, or, if it holds a run, continue "
            f"that with `fedprior resume {quote(str(folder))}`."
        )


def _begun(folder: Path) -> list[Path]:
    """What an unfinished attempt to fill an empty folder left in it."""
    inner = folder / INNER
    return [inner, *(folder / path.name for path in inner.iterdir())] if inner.is_dir() else []


def place(documents: Mapping[str, str], folder: Path) -> None:
    """Make a folder of text files; the last file is the one that marks it as complete."""
    if folder.is_dir():
        _fill(documents, folder)
        return
    new = folder.with_name(f".{folder.name}{INNER}")
    shutil.rmtree(new, ignore_errors=True)
    try:
        for name, text in documents.items():
            write_text(new / name, text)
        new.rename(folder)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        claim(folder)  # another process may have been faster
        raise


def _fill(documents: Mapping[str, str], folder: Path) -> None:
    _clear(folder)
    try:
        for target in (folder / INNER, folder):
            for name, text in documents.items():
                write_text(target / name, text)
    except OSError:  # such as a full disk
        _clear(folder)
        raise
    shutil.rmtree(folder / INNER)


def _clear(folder: Path) -> None:
    for left in reversed(_begun(folder)):  # `.new`, which lists what to clear, goes last
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


@contextmanager
def at_work(folder: Path, begin: Callable[[], bool] | None = None, within: Path | None = None) -> Iterator[None]:
    """Hold a folder's lock while a run works in it; `begin`, if given, begins it and returns whether it was new.

    If a new run is refused before its first round is done, its folder is removed again.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with folder_lock(folder, within):
            new = begin is not None and begin()
            shutil.rmtree(folder / INNER, ignore_errors=True)
            clear_temporary(folder)
            try:
                yield
            except Exception:
                if new and folder.is_dir() and not any(path.stat().st_size for path in folder.rglob(EVENTS)):
                    _empty(folder)
                raise
    finally:
        with suppress(OSError):  # until the first that is not empty
            for path in made:
                path.rmdir()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
