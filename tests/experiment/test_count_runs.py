"""A count to predict, from the table to the model's card: the same road as for a number."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import PoissonRegressor

import fedprior
from fedprior.cli.main import main
from fedprior.data.frames import from_frame
from fedprior.experiment.predicting import predictions
from fedprior.experiment.references import PENALTIES, references
from fedprior.experiment.verdict import POOLED
from fedprior.methods import build
from fedprior.metrics import metrics_of
from fedprior.training import Train


def table(n: int = 240) -> pd.DataFrame:
    """Three wards; falls ~ Poisson(e^{0.5 + 0.5 age + 0.4 [ward y]})."""
    rng = np.random.default_rng(1)
    age, ward = rng.normal(size=n), np.arange(n) % 3
    falls = rng.poisson(np.exp(0.5 + 0.5 * age + 0.4 * (ward == 1)))
    return pd.DataFrame({"ward": np.array(["x", "y", "z"])[ward], "age": age, "falls": falls})


def data() -> fedprior.data.Federation:
    return from_frame(table(), site="ward", target="falls", kinds={"falls": "count"})


def test_a_count_from_python(tmp_path: Path) -> None:
    """Mean and deviation, the NLL recomputed from them, and the same from the model's file; whole ends of intervals."""
    federation = data()
    train = Train(optimizer="adam", lr=0.05, epochs=10, batch_size=16)
    result = fedprior.run(build("fedmap", train=train), federation, rounds=5, out=tmp_path / "run", workers=1)
    x, y = (part.numpy() for part in federation.test.client(1))
    mean, deviation = result.predict("y", x).T
    np.testing.assert_allclose(deviation**2, mean, rtol=1e-4)  # weights without uncertainty: Poisson's
    assert result.clients["nll"]["y"] == pytest.approx(-stats.poisson.logpmf(y, mean).mean(), rel=1e-4)
    assert set(metrics_of(federation.target)) <= set(result.scores)
    loaded = fedprior.load_model(tmp_path / "run" / "models" / "y.safetensors")
    found = predictions(loaded, table().head(20))
    assert list(found)[:6] == ["mean", "sd", "low_50", "high_50", "low_90", "high_90"]
    assert found["high_90"].tolist() == stats.poisson.ppf(0.95, found["mean"]).tolist()
    assert (found["low_90"] <= found["low_50"]).all()
    assert "entropy" not in result.calibration


def test_the_reference_is_scikit_learns_poisson_regression() -> None:
    federation = data()
    x = federation.train.x.double().numpy()
    y = np.concatenate(federation.labels("train"))
    scores = {}
    for C in PENALTIES:
        model = PoissonRegressor(alpha=1 / (C * len(y)), max_iter=1000, tol=1e-8).fit(x, y)
        for split in ("validation", "test"):
            parts = [federation.split(split).client(c) for c in range(3)]
            own = [-stats.poisson.logpmf(b.numpy(), model.predict(a.double().numpy())).mean() for a, b in parts]
            scores[C, split] = float(np.mean(own))
    best = min(PENALTIES, key=lambda C: scores[C, "validation"])
    assert references(federation)[POOLED].summary["nll"]["mean"] == pytest.approx(scores[best, "test"], abs=1e-4)


def command(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedprior", *args])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_count_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """run, predict, card and export; a method that needs classes, and a column that holds no counts, say so."""
    monkeypatch.chdir(tmp_path)
    table().to_csv("falls.csv", index=False)
    source = ("--data", "csv", "data.path=falls.csv", "data.target=falls", "data.client=ward")
    counted = (*source, "data.target_kind=count", "--rounds", "20")
    assert command(monkeypatch, "run", "--method", "pfedfda", *counted) == 2
    assert "the target here is a number" in capsys.readouterr().err
    assert command(monkeypatch, "run", "--method", "mixed", *counted, "data.target=age") == 2
    assert "needs a whole number from 0 on in every row" in capsys.readouterr().err
    assert command(monkeypatch, "run", "--method", "mixed", *counted, "--out", "out") == 0
    assert "fixed effects" in capsys.readouterr().out
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["target"]["kind"] == "count"
    assert command(monkeypatch, "predict", "out", "falls.csv", "--site", "x", "--out", "found.csv") == 0
    found = pd.read_csv("found.csv")
    assert (found["high_90"] == found["high_90"].round()).all()
    assert (found["sd"] ** 2 > found["mean"] * 0.999).all()
    assert command(monkeypatch, "card", "out", "--site", "x") == 0
    assert "falls, a count" in "".join(path.read_text() for path in Path().rglob("*.md")) + capsys.readouterr().out


@pytest.mark.parametrize("name", ["fedmap", "mixed", "stack"])
def test_exported_counts(name: str) -> None:
    """Mean and deviation, in ONNX too."""
    pytest.importorskip("onnxruntime")
    from fedprior.experiment.exporting import as_onnx

    result = fedprior.run(build(name), data(), rounds=3, workers=1)
    assert as_onnx(result.model("x"))  # checked against our own predictions while it is made


def test_a_stack_of_counts_explains_itself() -> None:
    """Experts of counts are mixed by moments: weights add up to 1, and the NLL is that of a distribution."""
    result = fedprior.run(build("stack"), data(), rounds=6, workers=1)
    assert np.isfinite(result.scores["nll"]["mean"])
    assert result.explanation.sentences
