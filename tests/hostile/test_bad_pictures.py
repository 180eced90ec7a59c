"""Folders of images as they come: damaged, linked, of other kinds, with any name. All are read, or one sentence."""

from __future__ import annotations

import io
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedprior.data.pictures import images, loose
from fedprior.data.store.formats.pictures import decoded
from fedprior.errors import FedpriorError, FedpriorWarning
from hostile.cases import DRAWN, command, one_sentence, refused

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 2**16, (16, 16)).astype(np.uint16)


def encoded(pixels: Any, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


COLOURS = RNG.integers(0, 256, (16, 16, 3)).astype(np.uint8)
GOOD = [encoded(COLOURS), encoded(COLOURS, "JPEG"), encoded(GREY)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites with six images of two classes each."""
    place = tmp_path / "images"
    for k in range(24):
        path = place / "ab"[k % 2] / "xy"[k // 2 % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(RNG.integers(0, 256, (16, 16, 3)).astype(np.uint8)))
    return place


def sizes(folder: Path) -> dict[str, int]:
    """The images of each site."""
    sites = images(folder, size=16).columns["site"]
    return {str(site): int((sites == site).sum()) for site in set(sites)}


@pytest.mark.filterwarnings("ignore")
@DRAWN
@given(st.sampled_from(GOOD), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=5), st.floats(0, 1))
def test_damaged_images(good: bytes, changes: list[tuple[float, int]], kept: float) -> None:
    content = bytearray(good)
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    if kept < 0.5:
        del content[int(kept * len(content)) :]
    try:
        assert decoded(bytes(content), (16, 16)).shape == (16, 16, 3)
    except FedpriorError:
        with one_sentence():
            decoded(bytes(content), (16, 16))


def png(width: int, height: int) -> bytes:
    """A small file that says that it is large."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"GIF89a", GOOD[0][:60], png(10**5, 10**5), png(2**31 - 1, 1), png(0, 0)],
    ids=["empty", "GIF", "cut off", "a bomb", "a line without end", "no pixels"],
)
def test_files_that_are_no_images(folder: Path, content: bytes) -> None:
    (folder / "a" / "x" / "0.png").write_bytes(content)
    told = refused(["compare", str(folder), "--rounds", "1", "--out", str(folder.parent / "out")], folder.parent)
    assert "0.png' is not an image that can be read" in told


def test_grey_values_of_16_bits_keep_their_order() -> None:
    """As X-rays have them: the upper 8 bits of each, where values above 255 would all become white."""
    assert np.array_equal(decoded(GOOD[2])[..., 0], GREY >> 8)
    with pytest.warns(FedpriorWarning, match="nearly black"):
        decoded(encoded((GREY >> 4).astype(np.uint16)))


def test_sites_that_are_links_count(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    shutil.move(folder / "b", elsewhere)
    (folder / "b").symlink_to(elsewhere)
    assert sizes(folder) == {"a": 12, "b": 12}


@pytest.mark.timeout(60)
def test_links_in_circles_end(folder: Path) -> None:
    (folder / "a" / "x" / "up").symlink_to(folder)
    (folder / "round").symlink_to(folder)
    (folder / "a" / "self.png").symlink_to(folder / "a" / "self.png")
    (folder / "a" / "x" / "other").symlink_to(folder / "c")
    (folder / "c").mkdir()
    (folder / "c" / "x").symlink_to(folder / "a" / "x")
    os.mkfifo(folder / "a" / "x" / "pipe.png")
    assert sizes(folder) == {"a": 12, "b": 12, "c": 6}


def test_other_kinds_of_images_are_not_missed_in_silence(folder: Path) -> None:
    for k in range(3):
        Image.new("L", (16, 16)).save(folder / "a" / "x" / f"{k}.tiff")
    with pytest.warns(FedpriorWarning, match=r"3 images such as '.*0.tiff' are neither PNG nor JPEG and are left out"):
        images(folder, size=16)


def test_names_that_are_not_text(folder: Path) -> None:
    """Of a class: refused before training. Of a file: when it is to be written beside its prediction."""
    odd = os.fsdecode(b"\xff")
    shutil.copytree(folder / "a" / "x", folder / "a" / odd)
    told = refused(["compare", str(folder), "--rounds", "1", "--out", str(folder.parent / "out")], folder.parent)
    assert told.startswith("error: the class name")
    with one_sentence():
        loose(folder, (3, 16, 16))


def test_a_device_is_written_to_and_stays_one(folder: Path) -> None:
    """`--out /dev/stdout` must not become a file, whoever has the right to replace it; a link stays a link."""
    run = folder.parent / "run"
    data = ["--data", "images", f"data.path={folder}", "data.size=16", "model.name=softmax"]
    given = ["run", "--method", "fedavg", *data, "--no-local", "--rounds", "1", "--workers", "1", "--quiet"]
    assert command(*given, "--out", str(run)).code in (0, None)
    target, link, pipe = (folder.parent / name for name in ("target.csv", "link.csv", "pipe"))
    target.write_text("old")
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for out in (link, pipe):
        said = command("predict", str(run), str(folder), "--site", "a", "--out", str(out))
        assert said.code in (0, None), said
    assert link.is_symlink()
    assert pipe.is_fifo()
    assert os.read(reader, 10**5) == target.read_bytes()
    os.close(reader)


def test_an_index_that_names_anothers_model(folder: Path) -> None:
    run = folder.parent / "run"
    data = ["--data", "images", f"data.path={folder}", "data.size=16", "model.name=softmax"]
    given = ["run", "--method", "local", *data, "--rounds", "1", "--workers", "1", "--quiet"]
    assert command(*given, "--out", str(run)).code in (0, None)
    (run / "models" / "index.json").write_text('{"a": "b.safetensors", "b": "a.safetensors"}')
    for arguments in (["predict", str(run), str(folder), "--site", "a"], ["card", str(run)]):
        assert "belongs to 'b' and not to 'a'" in refused(arguments, run)
