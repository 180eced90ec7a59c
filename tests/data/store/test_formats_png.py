"""The PNG decoder against an encoder written byte by byte from the specification."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.store.miniature import png
from fedprior.data.store.formats.png import GAP, read
from fedprior.errors import FedpriorError


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(1, 7), st.integers(1, 4))
def test_round_trip(data: st.DataObject, height: int, width: int, channels: int) -> None:
    filters = data.draw(st.lists(st.integers(0, 4), min_size=height, max_size=height))
    seed, colours = data.draw(st.integers(0, 2**32)), data.draw(st.sampled_from([4, 256]))  # few colours tie Paeth
    pixels = np.random.default_rng(seed).integers(0, colours, (height, width, channels), dtype=np.uint8)
    assert (read(png(pixels, filters)) == pixels).all()


@pytest.mark.parametrize("kind", range(5))
def test_every_filter_alone_on_extreme_pixels(kind: int) -> None:
    pixels = np.random.default_rng(kind).choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), (12, 9, 3))
    assert (read(png(pixels, [kind] * 12)) == pixels).all()


@pytest.mark.parametrize("gap", [GAP - 1, GAP, GAP + 1])
def test_rows_that_look_above_far_apart(gap: int) -> None:
    filters = [4, *[1] * gap, 3, 2, *[0] * gap, 4]
    pixels = np.random.default_rng(gap).integers(0, 256, (len(filters), 3, 3), dtype=np.uint8)
    assert (read(png(pixels, filters)) == pixels).all()


def refusal(content: bytes) -> str:
    with pytest.raises(FedpriorError) as error:
        read(content)
    return str(error.value)


PIXELS = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)


@pytest.mark.parametrize("change", [{"depth": 16}, {"colour": 3}, {"interlaced": 1}])
def test_other_kinds_are_refused(change: dict[str, int]) -> None:
    assert "only PNG images with 8 bits" in refusal(png(PIXELS, [0, 0, 0], **change))


@pytest.mark.parametrize("change", [{"height": 0}, {"width": 2**31, "height": 2**31}])
def test_absurd_sizes_are_refused(change: dict[str, int]) -> None:
    assert "is not read" in refusal(png(PIXELS, [0, 0, 0], **change))


def test_too_few_rows() -> None:
    assert "cut short" in refusal(png(PIXELS, [0, 0, 0], height=4))


def test_damage() -> None:
    content = bytearray(png(PIXELS, [0, 1, 4]))
    content[-30] ^= 1
    assert "a checksum differs" in refusal(bytes(content))
    assert "no head" in refusal(bytes(content[:8]))


def test_filters_that_do_not_exist() -> None:
    content = png(PIXELS, [0, 0, 0])
    rows = bytearray(zlib.decompress(_body(content)))
    rows[0] = 5
    body = zlib.compress(bytes(rows))
    chunk = struct.pack(">I", len(body)) + b"IDAT" + body + struct.pack(">I", zlib.crc32(b"IDAT" + body))
    assert "filter that does not exist" in refusal(content[:33] + chunk)


def _body(content: bytes) -> bytes:
    """Both IDAT chunks of `png`."""
    at, body = 8, b""
    while at < len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        body += content[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return body
