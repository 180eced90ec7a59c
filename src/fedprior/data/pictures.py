"""The user's own images: a folder per site, in it a folder per class, in it PNG or JPEG files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprior.data.columns import check_text
from fedprior.data.scaling import Scaler
from fedprior.data.store.formats.pictures import decoded
from fedprior.data.table import Recipe, Table
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError, FedpriorWarning
from fedprior.room import check_room

ENDINGS = (".png", ".jpg", ".jpeg")
OTHERS = (".bmp", ".dcm", ".gif", ".nii", ".tif", ".tiff", ".webp")
"""Endings of images that are not read, and should not be missed in silence."""
WANTED, ONE_SITE = "give a folder with SITE/CLASS/*.png", "give a folder with CLASS/*.png"
PIXELS = Scaler(None, np.array(127.5), np.array(127.5))
"""From levels of 0 to 255 to values between -1 and 1."""
NEEDED = 13
"""Bytes for each level while a federation is made: as it is stored, in double precision and in single."""
RECIPE: Recipe = {
    "model": {"name": "lenet5"},
    "train": {"optimizer": "adam", "lr": 0.001, "batch_size": 16, "epochs": 5},
    "settings": {"rounds": 20, "eval_every": 2},
    "methods": {"stack": {"scores": "holdout"}},
}


def images(
    path: Annotated[Path, Field(description="a folder with SITE/CLASS/*.png")],
    size: Annotated[int, Field(ge=16, le=512, description="height and width to which images are resized")] = 32,
    colours: Annotated[bool, Field(description="three channels, or one of grey values")] = True,
) -> Table:
    """Your own images: one folder per site, in it one per class, in it PNG or JPEG files.

    Sites need not have all classes. Images are resized to squares, and pixels lie between -1 and 1.
    """
    files = found(path)
    sites, labels = (np.array([file.parts[k] for file in files], dtype=object) for k in (-3, -2))
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise FedpriorError(f"'{path}' has images of one class only, '{classes[0]}': {WANTED} for two or more classes.")
    x = pixels(path, files, (3 if colours else 1, size, size))
    y = np.array([classes.index(label) for label in labels], dtype=np.int64)
    return Table(x, y, Classes(classes), RECIPE, {"site": sites}, scaler=PIXELS, split="random")


def labelled(path: Path, shape: tuple[int, ...], classes: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """The images of one site, CLASS/*.png, as pixels [n, *shape] and class numbers [n]."""
    files = found(path, 2, ONE_SITE)
    for name in sorted({file.parent.name for file in files} - set(classes)):
        raise FedpriorError(
            f"'{path}' has a folder '{name}', but the run's classes are {', '.join(classes)}: rename it."
        )
    return pixels(path, files, shape), np.array([classes.index(file.parent.name) for file in files], dtype=np.int64)


def loose(path: Path, shape: tuple[int, ...]) -> tuple[list[str], NDArray[np.uint8]]:
    """The names of the images in a folder, at any depth, and their pixels [n, *shape]."""
    files = found(path, None, "give a folder of them")
    names = [file.relative_to(path).as_posix() for file in files]
    check_text("file", names)
    return names, pixels(path, files, shape)


def pixels(path: Path, files: list[Path], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Image files as levels of 0 to 255 [n, channels, size, size]; three channels, or one of grey values."""
    room = NEEDED * len(files) * math.prod(shape)
    check_room(f"reading '{path}'", room, "give fewer or smaller images (data.size)")
    return np.stack([_pixels(file, shape[1], colours=shape[0] == 3) for file in files])


def found(path: Path, depth: int | None = 3, wanted: str = WANTED) -> list[Path]:
    """The image files in the order of their names, that many levels below the folder, or at any level."""
    if not path.is_dir():
        raise FedpriorError(f"there is no folder of images '{path}': {wanted}.")
    files = sorted(_files(path))
    every = [file for file in files if file.suffix.lower() in ENDINGS and file.is_file()]
    if not every:
        raise FedpriorError(f"the folder '{path}' has no PNG or JPEG images: {wanted}.")
    others = [file for file in files if file.suffix.lower() in OTHERS]
    if others:
        told = f"{len(others)} images such as '{others[0]}' are neither PNG nor JPEG and are left out: convert them."
        warnings.warn(told, FedpriorWarning, stacklevel=3)
    stray = [file for file in every if depth is not None and len(file.relative_to(path).parts) != depth]
    if stray:
        raise FedpriorError(
            f"'{stray[0]}' does not lie in the folder of a class{' at a site' * (depth == 3)}: {wanted}."
        )
    return every


def _files(top: Path) -> Iterator[Path]:
    """All files below a folder that are not hidden. Links to folders are followed, but not to one that they lie in."""
    waiting: list[tuple[Path, tuple[Path, ...]]] = [(top, ())]
    while waiting:
        folder, above = waiting.pop()
        inside = (*above, folder.resolve())
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            if not path.is_dir():
                yield path
            elif path.resolve() not in inside:
                waiting.append((path, inside))


def holds_images(path: Path) -> bool:
    """Whether a folder has image files two folders below, and is no folder of tables."""
    return path.is_dir() and any(file.suffix.lower() in ENDINGS for file in path.glob("*/*/*"))


def _pixels(file: Path, size: int, *, colours: bool) -> NDArray[np.uint8]:
    """[channels, size, size]."""
    try:
        found = decoded(file.read_bytes(), (size, size))
    except FedpriorError:
        raise FedpriorError(f"'{file}' is not an image that can be read: replace or remove it.") from None
    grey = np.rint(found @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)[..., None]
    return np.ascontiguousarray((found if colours else grey).transpose(2, 0, 1))
