"""Folders of images: SITE/CLASS/*.png."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from PIL import Image

from fedprior.data.datasets import load
from fedprior.data.pictures import holds_images, images
from fedprior.data.reading import read_file
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError
from fedprior.experiment.exporting import as_onnx
from fedprior.experiment.opened import find_model
from fedprior.report.card import card
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
    with pytest.raises(FedpriorError, match="there is no folder of images"):
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


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> str:
    out, few = tmp_path / "run", ["data.size=16", "--rounds", "4", "model.name=mlp", "train.lr=0.01"]
    found = command("run", "--method", "fedmap", "--data", "images", f"data.path={folder}", *few, "--out", str(out))
    assert found.code in (0, None), found.err
    return str(out)


def test_a_folder_of_images_is_predicted(run: str, folder: Path, tmp_path: Path) -> None:
    """Dark and light are easily told apart; the ONNX file takes levels of 0 to 255 and gives the same."""
    found = command("predict", run, str(folder / "south"), "--site", "south", "--out", str(tmp_path / "p.csv"))
    assert found.code in (0, None), found.err
    table = pd.read_csv(tmp_path / "p.csv")
    assert list(table) == ["row", "file", "prediction", "probability_dark", "probability_light"]
    assert table["file"][0] == "dark/0.png"
    assert [name.split("/")[0] for name in table["file"]] == list(table["prediction"])
    model, _ = find_model(Path(run), "south")
    x = images(folder, size=16).x[20:]  # the south's
    assert model.predict(x, raw=True)[:, 0] == pytest.approx(table["probability_dark"].to_numpy(), abs=1e-5)
    session = onnxruntime.InferenceSession(as_onnx(model))
    assert session.run(None, {"rows": x.astype(np.float64)})[0] == pytest.approx(model.predict(x, raw=True), abs=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["fedprior"])["classes"] == ["dark", "light"]
    assert "images in colour, resized to 16 × 16 pixels. Predicted: one of dark, light" in card(Path(run), "south")


def test_a_site_with_images_joins(run: str, folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "east"
    (folder / "south").rename(new)
    found = command("join", run, str(new), "--draws", "2")
    assert found.code in (0, None), found.err
    assert "model of east, trained on 20 rows" in found.out
    assert command("predict", run, str(new), "--site", "east").out.count("\n") == 21
    (new / "dark").rename(new / "black")
    assert "has a folder 'black', but the run's classes are dark, light" in refused(
        ["join", run, str(new), "--site-name", "west"], tmp_path
    )


def test_what_is_no_folder_of_images(run: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    told = refused(["predict", run, str(tmp_path / "a.csv"), "--site", "north"], tmp_path)
    assert "there is no folder of images" in told
    assert "does not lie in the folder of a class: give a folder with CLASS/*.png" in refused(
        ["join", run, str(folder), "--site-name", "west"], tmp_path
    )
    with pytest.raises(FedpriorError, match="is a folder: give one CSV"):
        read_file(folder)
