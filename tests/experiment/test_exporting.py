"""ONNX files predict what our models predict, from raw rows, in another runtime."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch

import fedprior
from fedprior.data.federation import from_arrays
from fedprior.errors import FedpriorError
from fedprior.experiment import exporting
from fedprior.experiment.exporting import as_onnx, onnx_inputs
from fedprior.experiment.personal import PersonalModel
from fedprior.methods import build
from fedprior.protocol import METHODS
from support import TRAIN, federation, regression

DRAWN = {"prediction": "bma", "prediction_draws": 3}
OPTIONS: dict[str, dict[str, Any]] = {"pfedvem": DRAWN, "pfedbayes": DRAWN}
"""Methods that draw, with draws."""
WRAPPED = ("fedmap+cal", "fedprox+ft", "fedavg+dp+cal")


def session(content: bytes) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(onnx.load_from_string(content))
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def model(name: str, options: dict[str, Any]) -> PersonalModel:
    data = federation((20, 9), torch.float32)
    method = build(name, options, TRAIN)
    return fedprior.run(method, data, model={"name": "mlp", "hidden": [4]}, rounds=3, workers=1).model("site-0")


@pytest.mark.parametrize("name", sorted([*METHODS, *WRAPPED]))
def test_another_runtime_predicts_the_same(name: str) -> None:
    """Every registered method has a finite network; a mixture is one of several."""
    own = model(name, OPTIONS.get(name, {}))
    x = np.random.default_rng(1).normal(size=(33, 4)).astype(np.float32)
    (found,) = session(as_onnx(own)).run(None, {"rows": x})
    np.testing.assert_allclose(found, own.predict(x), atol=2e-6)


def table(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    dose = rng.normal(1e6, 3.0, n)  # single precision would lose half of its digits
    stage = rng.choice(np.array(["I", "II", "III", None], dtype=object), n)
    ill = (dose > 1e6) ^ (stage == "III")
    return pd.DataFrame(
        {
            "dose": np.where(rng.random(n) < 0.1, np.nan, dose),
            "stage": stage,
            "smoker": rng.choice(["yes", "no"], n),
            "site": np.array(["a", "b"])[np.arange(n) % 2],
            "outcome": np.where(ill, "ill", "well"),
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> PersonalModel:
    place = tmp_path_factory.mktemp("export")
    table(200, 0).to_csv(place / "t.csv", index=False)
    options: dict[str, Any] = {"missing": "median", "indicators": True, "scaling": "shared"}
    data = fedprior.data.load("csv", path=place / "t.csv", target="outcome", client="site", **options)
    return fedprior.run(build("fedavg"), data, model={"name": "mlp"}, rounds=5, workers=1).model("b")


@pytest.fixture(scope="module")
def content(trained: PersonalModel) -> bytes:
    return as_onnx(trained)


def test_the_encoder_is_in_the_file(trained: PersonalModel, content: bytes) -> None:
    """Numbers with gaps, levels with gaps, an unknown level, yes/no and indicators, columns in another order."""
    frame = table(50, 7)
    frame.loc[3, "stage"] = "IV"
    mixed = frame[["stage", "site", "smoker", "dose"]]
    assert trained.encoder is not None
    (found,) = session(content).run(None, {"rows": onnx_inputs(trained.encoder, mixed)})
    np.testing.assert_allclose(found, trained.predict(frame), atol=2e-6)
    assert np.ptp(found[:, 0]) > 0.2


def test_the_codes_are_those_of_the_documentation(trained: PersonalModel) -> None:
    stages: list[Any] = ["III", "IV", None]
    frame = table(3, 0).assign(stage=stages, smoker=["yes", "no", "yes"], dose=[1.5, np.nan, 2.0])
    found = onnx_inputs(trained.encoder, frame)
    np.testing.assert_array_equal(found, [[1.5, 2.0, 1.0], [np.nan, -1.0, 0.0], [2.0, np.nan, 1.0]])


def test_the_metadata_name_columns_levels_and_classes(content: bytes) -> None:
    told = json.loads(session(content).get_modelmeta().custom_metadata_map["fedprior"])
    assert [column["name"] for column in told["columns"]] == ["dose", "stage", "smoker"]
    assert told["columns"][1]["levels"] == ["I", "II", "III"]
    assert told["classes"] == ["ill", "well"]
    assert told["site"] == "b"


@pytest.mark.parametrize("name", ["fedmap", "mixed", "stack", "fedmap+cal"])
def test_a_number_has_mean_and_deviation(name: str) -> None:
    data = regression((30, 20), torch.float32)
    own = fedprior.run(build(name, train=TRAIN), data, model="softmax", rounds=2, workers=1).model("site-1")
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    there = session(as_onnx(own))
    assert [output.name for output in there.get_outputs()] == ["mean", "sd"]
    np.testing.assert_allclose(np.stack(there.run(None, {"rows": x}), 1), own.predict(x), rtol=1e-5)


def test_a_convolutional_network_with_scaled_images() -> None:
    rng = np.random.default_rng(0)
    sites = {k: (rng.normal(5, 2, size=(12, 1, 16, 16)), np.arange(12) % 2) for k in "ab"}
    data = from_arrays(sites, classes=2, standardise=True)
    own = fedprior.run(build("fedavg", train=TRAIN), data, model="lenet5", rounds=1, workers=1).model("a")
    x = rng.normal(5, 2, size=(3, 1, 16, 16))
    (found,) = session(as_onnx(own)).run(None, {"rows": x})
    np.testing.assert_allclose(found, own.predict(x, raw=True), atol=1e-5)


def test_a_network_that_predicts_something_else_is_refused(
    trained: PersonalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = exporting.Network.forward

    def wrong(self: Any, rows: torch.Tensor) -> Any:
        found = plain(self, rows)
        assert isinstance(found, torch.Tensor)
        return found * 0.99

    monkeypatch.setattr(exporting.Network, "forward", wrong)
    with pytest.raises(FedpriorError, match="does not predict what the model predicts: nothing was written"):
        as_onnx(trained)


def test_a_network_that_cannot_be_exported_says_so() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(x if x.sum() > 0 else -x)  # which branch depends on the rows
            return out

    data = federation((9, 9), torch.float32)
    own = fedprior.run(build("fedavg", train=TRAIN), data, model=Odd(), rounds=1, workers=1).model("site-0")
    with pytest.raises(FedpriorError, match="network of FedAvg cannot be written as ONNX"):
        as_onnx(own)


def test_the_same_model_gives_the_same_predictions_after_export(trained: PersonalModel, content: bytes) -> None:
    """Tracing must leave nothing behind in the network."""
    frame = table(20, 3)
    before = trained.predict(frame)
    assert len(content) > 0
    np.testing.assert_array_equal(trained.predict(frame), before)
