"""The ten corruptions of pFedFDA's CIFAR-S, at five severities each: `corrupt`.

Kinds and severities are Hendrycks & Dietterich's for CIFAR (arXiv 1903.12261 and their `make_cifar_c.py`). Deviations:
results are rounded, not truncated, to grey levels; frost is generated, not photographed (`weather`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprior.data.corruption import pixels, weather
from fedprior.errors import FedpriorError, unknown
from fedprior.rng import Key

__all__ = ["CORRUPTIONS", "PARAMETERS", "SEVERITIES", "corrupt"]

SEVERITIES = 5
_CHUNK = 256  # images at a time: temporaries stay near the cache, and memory stays flat

# Takes images in 0..1 [n, C, H, W], a key per image and the parameters of a severity; may leave 0..1.
Corruption = Callable[..., NDArray[np.float32]]


class _Kind(NamedTuple):
    apply: Corruption
    severities: tuple[tuple[float, ...], ...]  # [SEVERITIES][parameters]


# In the order of pFedFDA's list, by which it numbers them: client m gets corruption m mod 10.
_KINDS: Mapping[str, _Kind] = {
    "motion_blur": _Kind(pixels.motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "defocus_blur": _Kind(pixels.defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "gaussian_noise": _Kind(pixels.gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.1,))),
    "shot_noise": _Kind(pixels.shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": _Kind(pixels.impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "frost": _Kind(weather.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": _Kind(weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "jpeg_compression": _Kind(pixels.jpeg_compression, ((80,), (65,), (58,), (50,), (40,))),
    "brightness": _Kind(pixels.brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "contrast": _Kind(pixels.contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
}
CORRUPTIONS: tuple[str, ...] = tuple(_KINDS)
PARAMETERS: Mapping[str, tuple[tuple[float, ...], ...]] = {name: kind.severities for name, kind in _KINDS.items()}


def corrupt(images: NDArray[np.uint8], name: str, severity: int, key: Key) -> NDArray[np.uint8]:
    """The images [n, C, H, W], grey or RGB, after corruption `name` at `severity` 1 (mild) to 5.

    Image i draws from `key` folded with its index i, whatever else is in the stack. All severities of a
    corruption draw from the same streams, so a higher severity has the same angle, fog or frost, only stronger.
    """
    if name not in _KINDS:
        raise unknown("corruption", name, CORRUPTIONS)
    if isinstance(severity, bool) or not isinstance(severity, int | np.integer) or not 1 <= severity <= SEVERITIES:
        raise FedpriorError(f"severity {severity!r} of corruption '{name}' does not exist: choose 1 to {SEVERITIES}.")
    if images.dtype != np.uint8:
        raise FedpriorError(f"images to corrupt must be uint8 with values 0 to 255, not {images.dtype}.")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 2:
        raise FedpriorError(
            f"images to corrupt must be [n, C, H, W] with 1 or 3 channels and at least 2 x 2 pixels, "
            f"not {list(images.shape)}."
        )
    kind, key = _KINDS[name], key.fold("corruption", name)
    out = np.empty_like(images, order="C")
    for start in range(0, len(images), _CHUNK):
        x = images[start : start + _CHUNK].astype(np.float32, order="C") / np.float32(255)
        keys = [key.fold(start + i) for i in range(len(x))]
        x = kind.apply(x, keys, *kind.severities[severity - 1])
        out[start : start + _CHUNK] = np.rint(np.clip(x, 0, 1) * 255)
    return out
