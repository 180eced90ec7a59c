"""Fog and frost: a random layer over the image.

Hendrycks & Dietterich's frost is a random piece of one of five photographs, at a fifth of their size. Their licence
does not let us ship them. At that size they are close to coloured noise, so frost is generated from statistics of 2,000
random 32 × 32 pieces of each: mean colour, standard deviations between and within pieces, and correlations between
neighbours (0.23 to 0.53 at distance 1, 0.16 to 0.47 at 2, 0.10 to 0.38 at 4; drawn: 0.41, 0.23, 0.10).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedprior.rng import Key

Images = NDArray[np.float32]

# Grey levels of R, G, B [5, 3]. Two of the five photographs are the same one.
FROST_COLOUR = np.array([[77, 148, 165], [198, 203, 212], [198, 203, 212], [143, 158, 171], [103, 114, 126]])
FROST_BETWEEN = np.array([[17, 9, 8], [8, 9, 10], [8, 9, 10], [10, 10, 11], [17, 16, 15]])
FROST_WITHIN = np.array([[22, 13, 13], [18, 18, 19], [18, 18, 19], [26, 26, 27], [35, 35, 34]])
FROST_DECAY = 0.9


def plasma(rngs: Sequence[np.random.Generator], height: int, width: int, decay: float) -> Images:
    """Fractal maps [n, height, width] by diamond-square on a torus: midpoints are the mean of four plus noise.

    Noise is uniform and shrinks by decay² with each halving of the step: the published code applies its amplitude
    twice, and the published severities assume that.
    """
    size = 1 << (max(height, width) - 1).bit_length()
    noise = np.stack([rng.random(size * size - 1, dtype=np.float32) for rng in rngs]) * 2 - 1
    field = np.zeros((len(rngs), size, size), np.float32)
    step, amplitude, used = size, 1.0, 0
    while step >= 2:
        half, cells = step // 2, size // step
        z = amplitude * noise[:, used : used + 3 * cells**2].reshape(-1, 3, cells, cells)
        corner = field[:, ::step, ::step]
        side = corner + np.roll(corner, -1, 1)
        centre = (side + np.roll(side, -1, 2)) / 4 + z[:, 0]
        field[:, half::step, half::step] = centre
        across = corner + np.roll(corner, -1, 2) + centre + np.roll(centre, 1, 1)
        down = side + centre + np.roll(centre, 1, 2)
        field[:, ::step, half::step] = across / 4 + z[:, 1]
        field[:, half::step, ::step] = down / 4 + z[:, 2]
        step, amplitude, used = half, amplitude / decay**2, used + 3 * cells**2
    return field


def fog(x: Images, keys: Sequence[Key], amount: float, decay: float) -> Images:
    """(x + amount · plasma) · m / (m + amount), m the image's largest value; the plasma runs from 0 to 1."""
    height, width = x.shape[2:]
    field = plasma([key.numpy() for key in keys], height, width, decay)
    low: Images = field.min((1, 2), keepdims=True)
    high: Images = field.max((1, 2), keepdims=True)
    layer = ((field - low) / (high - low))[:, None, :height, :width]
    top: Images = x.max((1, 2, 3), keepdims=True)
    return np.asarray((x + amount * layer) * (top / (top + amount)), np.float32)


def frost(x: Images, keys: Sequence[Key], image: float, ice: float) -> Images:
    """image · x + ice · texture; the texture is one of five, each image's own piece of it."""
    rngs = [key.numpy() for key in keys]
    kind = np.array([rng.integers(len(FROST_COLOUR)) for rng in rngs])
    offset = np.array([rng.standard_normal() for rng in rngs])[:, None]
    height, width = x.shape[2:]
    field = plasma(rngs, height, width, FROST_DECAY)[:, None, :height, :width]
    z = (field - field.mean((2, 3), keepdims=True)) / field.std((2, 3), keepdims=True)
    colour, within = FROST_COLOUR[kind] + offset * FROST_BETWEEN[kind], FROST_WITHIN[kind]  # [n, 3]
    texture = (colour[:, :, None, None] + within[:, :, None, None] * z).clip(0, 255) / 255
    if x.shape[1] == 1:
        texture = texture.mean(1, keepdims=True)
    return np.asarray(image * x + ice * texture, np.float32)
