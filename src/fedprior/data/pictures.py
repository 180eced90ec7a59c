"""The user's own images: a folder per site, in it a folder per class, in it PNG or JPEG files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprior.data.images import scaling
from fedprior.data.store.formats.pictures import decoded
from fedprior.data.table import Recipe, Table
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError
from fedprior.room import check_room

ENDINGS = (".png", ".jpg", ".jpeg")
WANTED = "give a folder with SITE/CLASS/*.png"
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
    check_room(f"reading '{path}'", 5 * len(files) * 3 * size * size, "give fewer or smaller images (data.size)")
    x = np.stack([_pixels(file, size, colours=colours) for file in files])
    y = np.array([classes.index(label) for label in labels], dtype=np.int64)
    prepare = scaling("images", "half", x, {})
    return Table(x, y, Classes(classes), RECIPE, {"site": sites}, prepare=prepare, split="random")


def found(path: Path) -> list[Path]:
    """The image files, in the order of sites, classes and names."""
    if not path.is_dir():
        raise FedpriorError(f"there is no folder '{path}': {WANTED}.")
    every = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    every = [file for file in every if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not every:
        raise FedpriorError(f"the folder '{path}' has no PNG or JPEG images: {WANTED}.")
    stray = [file for file in every if len(file.relative_to(path).parts) != 3]
    if stray:
        raise FedpriorError(f"'{stray[0]}' does not lie in the folder of a class at a site: {WANTED}.")
    return every


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
