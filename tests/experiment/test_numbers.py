"""A target that is a number, from Python and from the command line: the same road as for classes. And raw tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedprior
from fedprior.cli.main import main
from fedprior.data.federation import Federation, from_arrays
from fedprior.errors import FedpriorError, FedpriorWarning
from fedprior.methods import build
from fedprior.methods.fedmap import FedMAP
from fedprior.training import Train

QUICK = Train(optimizer="adam", lr=0.05, epochs=10, batch_size=8)


def table(n: int = 90) -> pd.DataFrame:
    """Three wards; the stay in hours is 200 + 50 · age + 20 for stage b, with noise of deviation 5."""
    rng = np.random.default_rng(1)
    age, stage = rng.normal(size=n), rng.integers(0, 2, n)
    stay = 200 + 50 * age + 20 * stage + 5 * rng.normal(size=n)
    wards, stages = np.array(["x", "y", "z"])[np.arange(n) % 3], np.array(["a", "b"])[stage]
    return pd.DataFrame({"ward": wards, "age": age, "stage": stages, "stay": stay})


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    table().to_csv(tmp_path / "stays.csv", index=False)
    return tmp_path / "stays.csv"


def stays(csv: Path) -> Federation:
    loaded: Federation = fedprior.data.load("csv", path=str(csv), target="stay", client="ward")
    return loaded


def arrays() -> Federation:
    """y = 100 + 5 x₀ + noise of deviation 1."""
    rng = np.random.default_rng(0)
    sites = {}
    for name in "abc":
        x = rng.normal(size=(60, 3))
        sites[name] = (x, 100 + 5 * x[:, 0] + rng.normal(size=60))
    return from_arrays(sites, target="number")


def test_a_regression_from_python(tmp_path: Path) -> None:
    """Mean and deviation in the target's own unit, RMSE recomputed from them, and the same from the model's file."""
    data = arrays()
    result = fedprior.run(FedMAP(train=QUICK), data, rounds=10, out=tmp_path / "run", reference="local")
    x, y = (part.numpy() for part in data.test.client(0))
    found = result.predict("a", x)
    assert found.shape == (len(y), 2)
    rmse = float(np.sqrt(np.mean((found[:, 0] - y) ** 2)))
    assert result.clients["rmse"]["a"] == pytest.approx(rmse, rel=1e-4)
    assert 0.3 < rmse < 2, "noise has deviation 1, the target 5"
    assert (found[:, 1] > 0.3).all()
    assert (found[:, 1] < 4).all()
    assert {"rmse", "mae", "nll"} <= set(result.clients.columns)
    assert "accuracy" not in result.clients
    loaded = fedprior.load_model(tmp_path / "run" / "models" / "a.safetensors")
    np.testing.assert_array_equal(loaded.predict(x), found)
    assert "RMSE" in repr(result)
    assert result.gain().mean == pytest.approx(result.clients["gain"].mean())


def test_a_regression_is_read_by_the_same_call(tmp_path: Path) -> None:
    whole, again = (fedprior.run(FedMAP(train=QUICK), arrays(), rounds=3, out=tmp_path / "run") for _ in range(2))
    pd.testing.assert_frame_equal(again.clients, whole.clients)


@pytest.mark.parametrize("name", ["pfedfda", "fedpac", "fedrod"])
def test_methods_that_need_classes_are_refused(name: str) -> None:
    with pytest.raises(FedpriorError, match="predicts classes, but the target here is a number") as error:
        fedprior.run(build(name), arrays(), rounds=1)
    assert "\n" not in str(error.value)


def command(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedprior", *args])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_regression_from_the_command_line(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column of numbers with decimals is a number to predict; and a method that needs classes says so."""
    monkeypatch.chdir(tmp_path)
    data = ("--data", "csv", f"data.path={csv}", "data.target=stay", "data.client=ward", "--rounds", "2")
    assert command(monkeypatch, "run", "--method", "pfedfda", *data, "--out", "out") == 2
    assert "the target here is a number" in capsys.readouterr().err
    assert not Path("out").exists()
    assert command(monkeypatch, "run", "--method", "fedmap", *data, "--out", "out", "train.epochs=2") == 0
    shown = capsys.readouterr()
    assert "RMSE" in shown.out
    assert "validation NLL" in shown.err
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["target"]["kind"] == "number"
    assert summary["target"]["deviation"] > 20
    assert summary["selected"]["personal"]["test"]["rmse"]["mean"] > 0
    model = fedprior.load_model("out/models/x.safetensors")
    mean, deviation = model.predict(table().drop(columns=["stay", "ward"])).T
    assert 100 < mean.mean() < 300
    assert (deviation > 0).all()


# Tables


def test_a_table_in_any_order(csv: Path, tmp_path: Path) -> None:
    """Columns are found by name, others are not looked at; a single row is a table too; files predict alike."""
    result = fedprior.run(FedMAP(train=QUICK), stays(csv), rounds=1, out=tmp_path / "run")
    rows = table().head(12)
    expected = result.predict("x", rows)
    assert len(np.unique(expected[:, 0])) == 12
    for other in (rows[["stage", "age"]], rows[["stay", "age", "ward", "stage"]], rows.assign(extra="?")):
        np.testing.assert_array_equal(result.predict("x", other), expected)
    np.testing.assert_allclose(result.predict("x", rows.tail(1)), expected[-1:], rtol=1e-5)
    loaded = fedprior.load_model(tmp_path / "run" / "models" / "x.safetensors")
    np.testing.assert_array_equal(loaded.predict(rows[["stage", "age"]]), expected)


def test_a_missing_column_is_told(csv: Path) -> None:
    result = fedprior.run(FedMAP(train=QUICK), stays(csv), rounds=1)
    with pytest.raises(FedpriorError, match="lacks 'stage'") as error:
        result.predict("x", table()[["age", "ward"]])
    assert "\n" not in str(error.value)
    plain = fedprior.run(FedMAP(train=QUICK), arrays(), rounds=1)
    with pytest.raises(FedpriorError, match="trained on arrays, not on a table"):
        plain.predict("a", table())


@pytest.mark.filterwarnings("default")
def test_unknown_levels_warn(csv: Path) -> None:
    """Two rows of stage c: told once, with the column and the count; the other rows are predicted as ever."""
    result = fedprior.run(FedMAP(train=QUICK), stays(csv), rounds=1)
    rows = table().head(6)
    expected = result.predict("x", rows)
    odd = rows.assign(stage=["c", "c", *rows["stage"][2:]])
    with pytest.warns(FedpriorWarning, match="'stage' in 2 rows") as told:
        found = result.predict("x", odd)
    assert len(told) == 1
    np.testing.assert_allclose(found[2:], expected[2:], rtol=1e-5)
    assert np.isfinite(found).all()
