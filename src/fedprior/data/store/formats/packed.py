"""Colour images packed without loss: planes green, red - green, blue - green; median-edge residuals; deflate.

The buffer is a sequence of blocks of up to 5,000 images: the length of a block as 8 bytes, little-endian, then its
residuals [3, n, height, width], compressed. A value is predicted as the median of left, above and left + above -
corner; arithmetic is modulo 256.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError

BLOCK = 5000


def unpack(buffer: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The images [n, height, width, 3] in a buffer of bytes."""
    content, at = buffer.tobytes(), 0
    pixels = np.empty(shape, np.uint8)
    for first in range(0, shape[0], BLOCK):
        length = int.from_bytes(content[at : at + 8], "little")
        residual = zlib.decompress(content[at + 8 : at + 8 + length])
        n = min(BLOCK, shape[0] - first)
        if shape[3:] != (3,) or len(residual) != 3 * n * shape[1] * shape[2]:
            raise FedpriorError("its packed images do not have the stated shape: get it again.")
        pixels[first : first + n] = _block(np.frombuffer(residual, np.uint8).reshape(3, n, *shape[1:3]))
        at += 8 + length
    return pixels


def _block(residual: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Residuals [3, n, height, width] -> images [n, height, width, 3]."""
    planes = np.ascontiguousarray(residual.transpose(2, 3, 0, 1)).astype(np.int16)  # one pixel of all images at a time
    height, width = planes.shape[:2]
    for row in range(height):
        for column in range(width):
            if row and column:
                left, above, corner = planes[row, column - 1], planes[row - 1, column], planes[row - 1, column - 1]
                lowest, highest = np.minimum(left, above), np.maximum(left, above)
                predicted = np.minimum(np.maximum(left + above - corner, lowest), highest)
            elif row or column:
                predicted = planes[row, column - 1] if column else planes[row - 1, column]
            else:
                continue
            planes[row, column] += predicted
            planes[row, column] &= 255
    planes[:, :, 1:] += planes[:, :, :1]
    green, red, blue = (planes[:, :, k].astype(np.uint8) for k in range(3))  # [height, width, n]; the cast is mod 256
    return np.stack([red, green, blue], -1).transpose(2, 0, 1, 3)
