"""From stored pixels to what a network takes: float32, scaled by constants that no client's data has a part in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError

Normalise = Literal["channel", "image", "half", "unit", "pixel"]
"""(pixel / 255 - mean) / std, where mean and std are

channel: those of the training pixels of each channel (ImageNet's for photographs), as commonly published
image: the same mean, and the mean over images of each image's own std: pFedVEM's constants for CIFAR
half: 0.5 and 0.5, so that values lie in -1..1 (pFedFDA; pFedBreD's CIFAR10)
unit: 0 and 1, so that values lie in 0..1 (pFedBreD's FEMNIST)
pixel: those of each pixel over all examples, with 0.001 added to std (pFedBreD's MNIST; looks at all clients' data)
"""

Numbers = tuple[float, ...]
CHANNEL: dict[str, tuple[Numbers, Numbers]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "office_caltech": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
IMAGE: dict[str, tuple[Numbers, Numbers]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5074, 0.4867, 0.4411), (0.2011, 0.1987, 0.2025)),
}


def scaling(name: str, how: Normalise, x: NDArray[np.uint8]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The function from pixels [n, C, H, W] of the data set `name` to floats."""
    if how == "pixel":
        mean, std = moments(x)
        return _affine(mean, std + 0.001)
    known = {"channel": CHANNEL, "image": IMAGE}.get(how)
    if known is None:
        return _affine(np.array(0.5), np.array(0.5)) if how == "half" else _affine(np.array(0.0), np.array(1.0))
    if name not in known:
        raise FedpriorError(f"normalise={how} is not known for {name}: use half, unit or pixel.")
    mean, std = (np.array(numbers)[:, None, None] for numbers in known[name])
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
