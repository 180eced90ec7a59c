"""The interface of every format: a reader that sees each member once and then returns arrays.

The canonical arrays: images uint8 [n, channels, height, width], classes int64 [n] from 0, columns int64 or text [n].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprior.data.store.members import Member
from fedprior.errors import FedpriorError

Arrays = dict[str, NDArray[Any]]
"""x_train, y_train, x_test, y_test, or x and y where there is no split; columns are named likewise."""


class Reader(Protocol):
    """Reads one format for one data set."""

    def take(self, member: Member) -> bool:
        """Read a member if it is of this format; return whether it was."""

    def arrays(self) -> Arrays:
        """What has been taken, as canonical arrays."""


class Part(NamedTuple):
    """Examples of one file."""

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]] = {}


def images(x: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Images in any usual layout as uint8 [n, *shape]; floats are taken to lie between 0 and 1."""
    pixels = np.asarray(x)
    if np.issubdtype(pixels.dtype, np.floating):
        if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
            raise FedpriorError("the images are floats outside 0 to 1: give bytes, or divide them by 255.")
        pixels = np.rint(pixels * 255)
    elif pixels.size and not (pixels.min() >= 0 and pixels.max() <= 255):
        raise FedpriorError("the pixels lie outside 0 to 255: give bytes.")
    layout = pixels.shape[1:]
    if len(shape) == 3 and layout == (*shape[1:], shape[0]) and layout != shape:
        pixels = np.moveaxis(pixels, -1, 1)
    elif shape[:1] == (1,) and layout in (shape[1:], (int(np.prod(shape)),)):
        pixels = pixels.reshape(-1, *shape)
    return np.ascontiguousarray(pixels, dtype=np.uint8)


def labels(y: ArrayLike) -> NDArray[np.int64]:
    """Classes as int64 [n]; Keras keeps them as [n, 1]."""
    classes = np.asarray(y)
    if not np.issubdtype(classes.dtype, np.integer):
        raise FedpriorError(f"the labels are of type {classes.dtype}: give whole numbers from 0.")
    return np.ascontiguousarray(classes.reshape(-1), dtype=np.int64)


def by_size(parts: Sequence[Part]) -> Arrays:
    """Two parts, of which the larger one is the training data."""
    if len(parts) != 2:
        raise FedpriorError(
            f"there are {len(parts)} sets of examples, but one training set and one test set are needed."
        )
    train, test = sorted(parts, key=lambda part: (-len(part.y), "train" not in part.name))
    return by_split({"train": [train], "test": [test]})


def by_name(parts: Sequence[Part]) -> Arrays:
    """Parts in the order of their names; `test` in the name makes it test data."""
    ordered = sorted(parts, key=lambda part: part.name)
    return by_split(
        {"train": [p for p in ordered if not is_test(p.name)], "test": [p for p in ordered if is_test(p.name)]}
    )


def is_test(name: str) -> bool:
    """Whether a file's name says that it holds test data."""
    return "test" in name.lower()


def by_split(splits: Mapping[str, Sequence[Part]]) -> Arrays:
    """Parts put together; the split "" has arrays without a suffix."""
    arrays: Arrays = {}
    for split, parts in splits.items():
        if not parts:
            raise FedpriorError(f"there is no {split} data among the files: give the training and the test files.")
        suffix = f"_{split}" if split else ""
        arrays[f"x{suffix}"] = np.concatenate([part.x for part in parts])
        arrays[f"y{suffix}"] = np.concatenate([part.y for part in parts])
        for column in parts[0].columns:
            arrays[f"{column}{suffix}"] = np.concatenate([part.columns[column] for part in parts])
    return arrays
