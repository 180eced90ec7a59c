"""From stored pixels to what a network takes: float32, scaled by constants that do not depend on any client's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprior.data import store
from fedprior.data.registry import register_dataset
from fedprior.data.store.record import Record
from fedprior.data.table import Recipe, Table
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError

Normalise = Annotated[
    Literal["channel", "image", "half", "unit", "pixel"],
    Field(description="how pixels are scaled: by published constants, to -1..1 (half), to 0..1 (unit), or per pixel"),
]
"""(pixel / 255 - mean) / std, where mean and std are

channel: those of the training pixels of each channel (ImageNet's for photographs), as commonly published
image: the same mean, and the mean over images of each image's own std: pFedVEM's constants for CIFAR
half: 0.5 and 0.5, so that values lie in -1..1 (pFedFDA; pFedBreD's CIFAR10)
unit: 0 and 1, so that values lie in 0..1 (pFedBreD's FEMNIST)
pixel: those of each pixel over all examples, with 0.001 added to std (pFedBreD's MNIST; looks at all clients' data)
"""

Numbers = tuple[float, ...]
Constants = Mapping[str, tuple[Numbers, Numbers]]
"""Mean and std of each channel, for `channel` and `image`, where a data set has them."""


def register_images(
    record: Record,
    *,
    recipe: Recipe,
    normalise: Normalise,
    constants: Constants | None = None,
    partition: str = "dirichlet",
) -> None:
    """Register stored images as a data set, with a default for `normalise`."""

    def read(normalise: Normalise = normalise) -> Table:
        pool = store.load(record.name).pool()
        return Table(
            pool.x,
            pool.y,
            Classes.numbered(record.classes),
            recipe,
            pool.client_columns,
            prepare=scaling(record.name, normalise, pool.x, constants or {}),
            official=pool.official,
            coarse=pool.columns.get("coarse"),
        )

    read.__name__, read.__doc__ = record.name, f"{record.title}."
    register_dataset(record=record, partition=partition, images=True)(read)


def scaling(
    name: str, how: Normalise, x: NDArray[np.uint8], constants: Constants
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The function from pixels [n, C, H, W] of the data set `name` to floats."""
    if how == "pixel":
        mean, std = moments(x)
        return _affine(mean, std + 0.001)
    if how in ("half", "unit"):
        return _affine(np.array(0.5), np.array(0.5)) if how == "half" else _affine(np.array(0.0), np.array(1.0))
    if how not in constants:
        raise FedpriorError(f"normalise={how} is not available for {name}: use half, unit or pixel.")
    mean, std = (np.array(numbers)[:, None, None] for numbers in constants[how])
    return _affine(mean, std)


def _affine(mean: NDArray[Any], std: NDArray[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    factor, offset = (1 / (255 * std)).astype(np.float32), (mean / std).astype(np.float32)

    def prepare(x: NDArray[Any]) -> NDArray[Any]:
        scaled = x.astype(np.float32)
        scaled *= factor
        scaled -= offset
        return scaled

    return prepare


def moments(x: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each pixel / 255, [C, H, W] each."""
    total, squares = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for start in range(0, len(x), 4096):
        block = x[start : start + 4096].astype(np.float64) / 255
        total += block.sum(0)
        squares += (block * block).sum(0)
    mean = total / len(x)
    return mean, np.sqrt(np.maximum(squares / len(x) - mean**2, 0))
