"""Noise, blur, compression and tone. Images are [n, C, H, W] in 0..1; results may leave that: the caller clips."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image

from fedprior.rng import Key

Images = NDArray[np.float32]


def gaussian_noise(x: Images, keys: Sequence[Key], std: float) -> Images:
    """x + N(0, std²), independent for each channel of each pixel."""
    z = np.empty_like(x)
    for row, key in zip(z, keys, strict=True):
        key.numpy().standard_normal(out=row, dtype=np.float32)
    return x + np.float32(std) * z


def shot_noise(x: Images, keys: Sequence[Key], photons: float) -> Images:
    """Poisson(photons · x) / photons: a white pixel counts `photons` of them, and the variance is x / photons."""
    counts = np.empty_like(x)
    for row, rate, key in zip(counts, photons * x, keys, strict=True):
        row[...] = key.numpy().poisson(rate)
    return counts / np.float32(photons)


def impulse_noise(x: Images, keys: Sequence[Key], amount: float) -> Images:
    """Salt and pepper: a value becomes 0 or 1, each with probability amount / 2."""
    u = np.empty_like(x)
    for row, key in zip(u, keys, strict=True):
        key.numpy().random(out=row, dtype=np.float32)
    return np.where(u < amount / 2, np.float32(0), np.where(u >= 1 - amount / 2, np.float32(1), x))


def disk(radius: float, alias: float) -> NDArray[np.float64]:
    """The kernel [5, 5] of a lens out of focus: a disk of pixels, smoothed by a 3 × 3 Gaussian of std `alias`.

    Radii below 1 cover the centre only, which leaves the Gaussian. Up to radius 1.9 the kernel fits, and sums to one.
    """
    row, column = np.mgrid[-2:3, -2:3]
    flat = (row**2 + column**2 <= radius**2).astype(np.float64)
    tap = np.exp(-(np.arange(-1, 2) ** 2) / (2 * alias**2))
    smooth = sum(tap[i] * np.eye(5, k=i - 1) for i in range(3)) / tap.sum()  # [5, 5], banded
    return np.asarray(smooth @ (flat / flat.sum()) @ smooth.T)


def defocus_blur(x: Images, keys: Sequence[Key], radius: float, alias: float) -> Images:
    """The image under a `disk`, mirrored at the border (the border's pixel once)."""
    height, width = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    out = np.zeros_like(x)
    for (row, column), weight in np.ndenumerate(disk(radius, alias).astype(np.float32)):
        if weight > 1e-6:  # alias 0.1 puts e⁻⁵⁰ beside the disk
            out += weight * padded[:, :, row : row + height, column : column + width]
    return out


def trail(radius: float, sigma: float) -> NDArray[np.float64]:
    """The weights [2 radius + 1] of a moving camera: half a Gaussian from its peak on, as in ImageMagick."""
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    return np.asarray(weights / weights.sum())


def motion_blur(x: Images, keys: Sequence[Key], radius: float, sigma: float) -> Images:
    """Every pixel averaged along a `trail` of nearest pixels, at an angle U(-45°, 45°) drawn per image.

    Steps are one pixel long, coordinates are rounded half down, and border pixels are repeated outside.
    """
    angle = np.deg2rad([key.numpy().uniform(-45, 45) for key in keys])  # [n]
    weights = trail(radius, sigma).astype(np.float32)
    reach = len(weights) - 1
    padded = np.pad(x, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    windows = sliding_window_view(padded, x.shape[2:], axis=(2, 3))  # [n, C, rows, columns, H, W], a view
    out = np.zeros_like(x)
    for step, weight in enumerate(weights):
        row = np.ceil(step * np.sin(angle) - 0.5).astype(np.int64) + reach
        column = np.ceil(step * np.cos(angle) - 0.5).astype(np.int64) + reach
        if weight > 1e-5:  # what is left out stays below 0.01 grey levels
            out += weight * windows[np.arange(len(x)), :, row, column]
    return out


def jpeg_compression(x: Images, keys: Sequence[Key], quality: float) -> Images:
    """Written as JPEG at `quality`, and read again."""
    levels = np.rint(np.moveaxis(x, 1, -1) * 255).astype(np.uint8)  # [n, H, W, C]
    for picture in levels:
        file = io.BytesIO()
        Image.fromarray(picture.squeeze(-1) if x.shape[1] == 1 else picture).save(file, "JPEG", quality=int(quality))
        with Image.open(file) as again:
            picture[...] = np.asarray(again).reshape(picture.shape)
    return np.asarray(np.moveaxis(levels, -1, 1) / np.float32(255))


def brightness(x: Images, keys: Sequence[Key], shift: float) -> Images:
    """HSV's value V = max(R, G, B) becomes min(V + shift, 1). Hue and saturation stay: R, G, B scale by V' / V.

    Black has no hue and becomes grey.
    """
    value: Images = x.max(1, keepdims=True)  # [n, 1, H, W]
    raised = np.minimum(value + np.float32(shift), 1)
    return np.asarray(np.where(value > 0, x * (raised / np.where(value > 0, value, 1)), raised))


def contrast(x: Images, keys: Sequence[Key], factor: float) -> Images:
    """Distances to the mean of the image's channel shrink: (x - mean) · factor + mean."""
    mean: Images = x.mean((2, 3), keepdims=True)
    return (x - mean) * np.float32(factor) + mean
