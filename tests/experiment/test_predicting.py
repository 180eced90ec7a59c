"""Predictions for tables: named, in the table's order, with intervals; rows unlike the training data are flagged."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import fedprior
from fedprior.data.familiarity import FAR, unlike
from fedprior.errors import FedpriorError
from fedprior.experiment.opened import find_model, find_prior, run_folder
from fedprior.experiment.predicting import as_csv, predictions
from fedprior.methods import build


def patients(n: int = 120, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, stage = rng.normal(60, 10, n).round(), rng.choice(["I", "II", "III"], n)
    ill = age / 10 + (stage == "III") + rng.normal(size=n) > 6.5
    return pd.DataFrame(
        {
            "age": age,
            "stage": stage,
            "smoker": rng.choice(["yes", "no"], n),
            "site": np.array(["a", "b"])[np.arange(n) % 2],
            "outcome": np.where(ill, "=ill", "well"),
            "score": age + rng.normal(size=n),
        }
    )


def trained(tmp: Path, target: str, drop: str, **more: Any) -> Path:
    patients().drop(columns=drop).to_csv(tmp / "t.csv", index=False)
    data = fedprior.data.load("csv", path=tmp / "t.csv", target=target, client="site", **more)
    fedprior.run(build("fedavg"), data, model="softmax", rounds=4, workers=1, out=tmp / target)
    return tmp / target


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), "outcome", "score", scaling="shared")


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), "score", "outcome", scaling="shared")


def test_classes_by_name(classes: Path) -> None:
    model, path = find_model(classes, "b")
    assert path == classes / "models" / "b.safetensors"
    frame = patients(30, 5)
    found = predictions(model, frame)
    expected = model.predict(frame)
    assert list(found) == ["prediction", "probability_=ill", "probability_well", "unlike_training"]
    np.testing.assert_array_equal(found[["probability_=ill", "probability_well"]].to_numpy(), expected)
    assert found["prediction"].tolist() == [["=ill", "well"][k] for k in expected.argmax(1)]
    assert found.index.tolist() == list(range(1, 31))


def test_columns_in_any_order_and_without_target(classes: Path) -> None:
    model, _ = find_model(classes, "a")
    frame = patients(10, 5)
    mixed = frame[["smoker", "stage", "age"]].assign(extra=3)
    pd.testing.assert_frame_equal(predictions(model, frame), predictions(model, mixed))


@pytest.mark.parametrize("column", ["age", "stage", "smoker"])
def test_a_missing_column_is_told(classes: Path, column: str) -> None:
    with pytest.raises(FedpriorError, match=f"lacks '{column}'"):
        predictions(find_model(classes, "a")[0], patients(3).drop(columns=column))


def test_an_empty_table_is_told(classes: Path) -> None:
    with pytest.raises(FedpriorError, match="no rows"):
        predictions(find_model(classes, "a")[0], patients(3).head(0))


def test_a_spreadsheet_takes_nothing_for_a_formula(classes: Path) -> None:
    text = as_csv(predictions(find_model(classes, "a")[0], patients(40)))
    found = pd.read_csv(io.StringIO(text))
    assert set(found["prediction"]) == {"'=ill", "well"}
    assert not any(cell.startswith("=") for line in text.splitlines() for cell in line.split(","))


def test_a_number_has_central_intervals(number: Path) -> None:
    """The ends of the central 50 % interval of a normal distribution lie 0.6745 deviations from its mean."""
    model, _ = find_model(number, "a")
    frame = patients(20, 3)
    found, plain = predictions(model, frame), model.predict(frame)
    np.testing.assert_array_equal(found[["mean", "sd"]].to_numpy(), plain)
    np.testing.assert_allclose(found["high_50"] - found["mean"], 0.67449 * plain[:, 1], rtol=1e-4)
    for share in (50, 90):
        low, high = (norm.cdf(found[f"{end}_{share}"], plain[:, 0], plain[:, 1]) for end in ("low", "high"))
        np.testing.assert_allclose(high - low, share / 100, rtol=1e-4)


def test_rows_unlike_the_training_data_are_flagged(classes: Path) -> None:
    """Ages have mean 60 and deviation 10 or so: 250 is 19 deviations above, -40 ten below, and 90 is three."""
    model, _ = find_model(classes, "a")
    frame = patients(5, 1)
    frame["age"] = [60.0, 250.0, -40.0, 90.0, 60.0]
    frame["stage"] = ["I", "II", "III", "I", "IV"]
    with pytest.warns(fedprior.errors.FedpriorWarning, match="stage"):
        told = predictions(model, frame)["unlike_training"].tolist()
    assert told[0] == told[3] == ""
    assert "SD above the mean" in told[1]
    assert "SD below the mean" in told[2]
    assert told[4] == "stage: unknown level"


def test_the_flag_is_a_z_score_of_the_shared_statistics(classes: Path) -> None:
    encoder = find_model(classes, "a")[0].encoder
    assert encoder is not None
    mean, std = float(encoder.scaler.mean[0]), float(encoder.scaler.std[0])
    frame = patients(2).assign(age=[mean + (FAR - 0.01) * std, mean + (FAR + 0.01) * std])
    told = unlike(encoder, frame)
    assert told[0] == ""
    assert told[1] == "age: 4.0 SD above the mean"


def test_few_training_rows_are_flagged(classes: Path) -> None:
    encoder = find_model(classes, "a")[0].encoder
    assert encoder is not None
    assert sum(bool(why) for why in unlike(encoder, patients())) == 0


def test_a_gap_is_flagged_where_training_had_none(tmp_path: Path) -> None:
    folder = trained(tmp_path, "outcome", "score", missing="median", scaling="shared")
    frame = patients(2).astype({"smoker": object})
    frame.loc[1, "smoker"] = None
    assert predictions(find_model(folder, "a")[0], frame)["unlike_training"].tolist() == ["", "smoker: missing"]


def test_an_unfinished_run_names_the_command_that_continues_it(classes: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(classes / "config.toml", begun)
    with pytest.raises(FedpriorError, match=re.escape(f"continue it with `fedprior resume {begun}`")):
        find_model(begun, "a")


def test_where_models_are_found(classes: Path, tmp_path: Path) -> None:
    for place, site, told in [
        (classes, None, "which site"),
        (classes, "c", "unknown site 'c'"),
        (tmp_path / "none", "a", "no finished run"),
        (classes / "models" / "a.safetensors", "b", "the model of 'a' and not of 'b'"),
    ]:
        with pytest.raises(FedpriorError, match=told):
            find_model(place, site)
    assert find_model(classes / "models" / "a.safetensors")[0].client == "a"


def test_of_a_comparison_the_recommended_method(tmp_path: Path) -> None:
    patients().drop(columns="score").to_csv(tmp_path / "t.csv", index=False)
    data = fedprior.data.load("csv", path=tmp_path / "t.csv", target="outcome", client="site")
    out = tmp_path / "out"
    found = fedprior.compare([build("fedmap")], data, model="softmax", rounds=2, workers=1, out=out)
    assert run_folder(out).name == found.best
    assert run_folder(out, "local").name == "local"
    with pytest.raises(FedpriorError, match="unknown method 'fedprox'"):
        run_folder(out, "fedprox")
    prior, folder = find_prior(out, "fedmap")
    assert folder == out / "fedmap"
    assert prior.clients == 2
    (out / "verdict.json").write_text('{"recommended": "fedavg_ft"}')
    assert run_folder(out).name == "fedavg_ft"
