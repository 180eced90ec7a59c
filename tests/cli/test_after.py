"""The commands for what comes after training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedprior
from fedprior.cli.main import app
from fedprior.errors import FedpriorError
from fedprior.methods import build

RUNNER = CliRunner()


def table(n: int, seed: int, site: str) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": site, "ill": np.where(x.sum(1) > 0, "yes", "no")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("after")
    pd.concat([table(40, k, f"s{k}") for k in range(3)]).to_csv(place / "all.csv", index=False)
    table(30, 9, "new").to_csv(place / "basel.csv", index=False)
    data = fedprior.data.load("csv", path=place / "all.csv", target="ill", client="site", scaling="shared")
    fedprior.run(build("fedmap"), data, model="softmax", rounds=3, workers=1, out=place / "run")
    return place


def said(*words: str) -> str:
    found = RUNNER.invoke(app, list(words), catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


def test_join_then_predict(folder: Path, tmp_path: Path) -> None:
    run, new = str(folder / "run"), str(folder / "basel.csv")
    told = said("join", run, new, "--draws", "3")
    assert "shared model" in told
    assert "basel.safetensors" in told
    document = json.loads((folder / "run" / "joined" / "basel.json").read_text())
    assert [point["rows"] for point in document["curve"]["points"]] == [5, 10, 20]
    out = tmp_path / "p.csv"
    assert "30 predictions" in said("predict", run, new, "--site", "basel", "--out", str(out))
    printed = said("predict", run, new, "--site", "basel")
    assert printed == out.read_text()
    found = pd.read_csv(out)
    assert (found["probability_no"] + found["probability_yes"]).to_numpy() == pytest.approx(np.ones(30), abs=1e-5)
    alone = said("predict", str(folder / "run" / "joined" / "basel.safetensors"), new)
    assert alone == printed


def test_join_as_json(folder: Path) -> None:
    found = json.loads(said("join", str(folder / "run"), str(folder / "basel.csv"), "--draws", "0", "--json"))
    assert found["site"] == "basel"
    assert found["curve"] is None


def test_export_and_card(folder: Path, tmp_path: Path) -> None:
    run = folder / "run"
    told = said("export", str(run), "--site", "s1")
    assert "s1.onnx" in told
    assert (run / "exported" / "s1.onnx").stat().st_size > 1000
    out = tmp_path / "s1.safetensors"
    said("export", str(run), "--site", "s1", "--format", "safetensors", "--out", str(out))
    assert out.read_bytes() == (run / "models" / "s1.safetensors").read_bytes()
    assert len(said("card", str(run), "--site", "s1").split()) >= 1
    assert (run / "models" / "s1.md").read_text().startswith("# Model of s1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["join", "{run}", "{new}", "--site-name", "s1"], "has a site 's1' already"),
        (["join", "{run}", "{run}/none.csv"], "there is no file"),
        (["join", "{run}/models", "{new}"], "no finished run"),
        (["predict", "{run}", "{new}"], "which site"),
        (["export", "{run}/models/s1.safetensors", "--format", "safetensors"], "is the model itself"),
        (["export", "{run}", "--site", "s1", "--format", "safetensors", "--out", "{run}"], "is a folder"),
        (["predict", "{run}", "{new}", "--site", "s1", "--out", "{run}"], "is a folder"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(folder: Path, words: list[str], told: str) -> None:
    filled = [word.format(run=folder / "run", new=folder / "basel.csv") for word in words]
    with pytest.raises(FedpriorError, match=told):
        RUNNER.invoke(app, filled, catch_exceptions=False)
    assert not (folder / "run" / "joined" / "s1.safetensors").exists()


def test_a_run_without_a_prior_says_so(folder: Path, tmp_path: Path) -> None:
    data = fedprior.data.load("csv", path=folder / "all.csv", target="ill", client="site")
    fedprior.run(build("fedamp"), data, model="softmax", rounds=1, workers=1, out=tmp_path / "run")
    with pytest.raises(FedpriorError, match="keeps a part for each client at the server"):
        RUNNER.invoke(app, ["join", str(tmp_path / "run"), str(folder / "basel.csv")], catch_exceptions=False)
