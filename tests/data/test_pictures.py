"""Folders of images: SITE/CLASS/*.png."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprior.data.datasets import load
from fedprior.data.pictures import holds_images, images
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError
from hostile.cases import command, refused

SITES = ("north", "south")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites with ten light and ten dark images each, plain ones; those of the south are a little yellow."""
    for site, extra in zip(SITES, (0, 15), strict=True):
        for name, level in (("dark", 40), ("light", 200)):
            place = tmp_path / "images" / site / name
            place.mkdir(parents=True)
            for k in range(10):
                Image.new("RGB", (20, 30), (level + extra, level + extra, level)).save(place / f"{k}.png")
    return tmp_path / "images"


def test_pixels_sites_and_classes_are_the_folders(folder: Path) -> None:
    """A level of v becomes v / 127.5 - 1, whatever the size; grey is 0.299 r + 0.587 g + 0.114 b."""
    found = load("images", path=str(folder), size=16)
    assert found.clients == SITES
    assert found.shape == (3, 16, 16)
    assert found.target == Classes(("dark", "light"))
    values = np.unique(found.train.x.numpy())
    assert values == pytest.approx([v / 127.5 - 1 for v in (40, 55, 200, 215)], abs=1e-6)
    grey = images(folder, size=16, colours=False).x
    assert grey.shape == (40, 1, 16, 16)
    assert set(np.unique(grey)) == {40, 200, round(0.886 * 55 + 0.114 * 40), round(0.886 * 215 + 0.114 * 200)}


def test_what_is_no_such_folder(folder: Path, tmp_path: Path) -> None:
    assert holds_images(folder)
    assert not holds_images(tmp_path)
    (folder / "north" / "dark" / "bad.png").write_bytes(b"\x89PNG nothing more")
    with pytest.raises(FedpriorError, match=r"bad\.png' is not an image that can be read"):
        images(folder)
    (folder / "north" / "stray.png").write_bytes(b"")
    with pytest.raises(FedpriorError, match=r"stray\.png' does not lie in the folder of a class"):
        images(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedpriorError, match="has no PNG or JPEG images"):
        images(tmp_path / "empty")
    with pytest.raises(FedpriorError, match="there is no folder"):
        images(tmp_path / "nowhere")


def test_one_class_is_nothing_to_tell_apart(folder: Path) -> None:
    for site in SITES:
        for file in (folder / site / "light").iterdir():
            file.unlink()
    with pytest.raises(FedpriorError, match="images of one class only, 'dark'"):
        images(folder)


def test_compared_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    assert "give no column" in refused(["compare", str(folder), "--site", "hospital"], tmp_path)
    out, few = tmp_path / "out", ["--splits", "2", "--rounds", "2", "--methods", "local,fedavg_ft", "data.size=16"]
    found = command("compare", str(folder), "--out", str(out), *few)
    assert found.code in (0, None), found.err
    verdict = json.loads((out / "verdict.json").read_text())
    assert set(verdict["methods"]) == {"local", "fedavg_ft"}
    assert set(verdict["sites"]) == set(SITES)
    assert (out / "report.html").is_file()
