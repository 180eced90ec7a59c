"""What a run gives back: a table, models that predict alone, and the same again from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedprior.data.federation import Federation, from_arrays
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError
from fedprior.experiment.config import Settings
from fedprior.experiment.journal import jsonable
from fedprior.experiment.loaded import load_result
from fedprior.experiment.loop import execute
from fedprior.experiment.result import Result, load_model
from fedprior.files import pack
from fedprior.metrics import metrics_of
from support import CLASSES, FEATURES, bound, federation, same

METRICS = metrics_of(Classes.numbered(CLASSES))
MODEL = {"name": "mlp", "hidden": [6]}


def go(name: str, data: Federation, folder: Path | None = None, **more: Any) -> Result:
    return execute(
        bound(name, data, module=more.pop("module", None), **more.pop("options", {})),
        data,
        Settings(rounds=2, seed=4),
        model=more.pop("model", MODEL),
        folder=folder,
        **more,
    )


@pytest.fixture(scope="module")
def data() -> Federation:
    return federation(dtype=torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def local(data: Federation) -> Result:
    return go("local", data)


@pytest.fixture(scope="module")
def result(data: Federation, local: Result, folder: Path) -> Result:
    return go("fedmap", data, folder, reference=local)


def test_the_table_of_clients(data: Federation, local: Result, result: Result) -> None:
    """One row a client; its metrics; and, with a reference, the gain as the difference of the two accuracies."""
    frame = result.clients
    assert list(frame.columns) == [
        *("train", "test", *METRICS),
        *("local_accuracy", "gain", "gain_low", "gain_high"),
    ]
    assert frame.index.name == "client"
    assert tuple(frame.index) == data.clients
    assert tuple(frame["train"]) == data.train.size
    assert tuple(frame["test"]) == data.test.size
    np.testing.assert_array_equal(frame["local_accuracy"], local.clients["accuracy"])
    np.testing.assert_allclose(frame["gain"], frame["accuracy"] - frame["local_accuracy"], atol=1e-12)
    assert (frame["gain_low"] <= frame["gain_high"]).all()
    assert list(local.clients.columns) == ["train", "test", *METRICS]


def test_accuracy_is_that_of_the_model_on_the_clients_own_test_split(data: Federation, result: Result) -> None:
    for c, client in enumerate(data.clients):
        x, y = data.test.client(c)
        accuracy = (result.predict(client, x).argmax(1) == y.numpy()).mean()
        assert result.clients.loc[client, "accuracy"] == pytest.approx(accuracy)


def test_gain(data: Federation, result: Result) -> None:
    """The mean over clients, each counting the same; the shares that gained and lost; the same each time."""
    found = result.gain()
    gains = result.clients["gain"].to_numpy()
    assert found.mean == pytest.approx(gains.mean())
    assert found.helped == pytest.approx((gains > 0).mean())
    assert found.harmed == pytest.approx((gains < 0).mean())
    assert result.summary["gain"]["mean"] == found.mean
    assert result.gain().mean_low == found.mean_low
    assert found.clients.shape == (len(data),)


def test_a_run_is_no_better_than_itself(data: Federation, local: Result) -> None:
    found = go("local", data, reference=local).gain()
    assert (found.clients == 0).all()
    assert (found.mean, found.helped, found.harmed) == (0, 0, 0)


def test_no_gain_without_a_reference(local: Result) -> None:
    with pytest.raises(FedpriorError, match="no reference"):
        local.gain()


@pytest.mark.parametrize("ask", [Result.model, lambda r, c: r.predict(c, np.zeros((1, FEATURES)))])
def test_an_unknown_client_names_the_nearest(ask: Any, result: Result) -> None:
    with pytest.raises(FedpriorError, match=r"unknown client 'site6': did you mean 'site-6'\?"):
        ask(result, "site6")


@pytest.mark.parametrize("ask", [Result.mean, Result.gain, Result.example_scores])
def test_an_unknown_metric_names_the_nearest(ask: Any, result: Result) -> None:
    with pytest.raises(FedpriorError, match=r"unknown metric 'accurracy'.*: did you mean 'accuracy'"):
        ask(result, "accurracy")


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, list])
def test_predictions_are_probabilities(kind: Any, result: Result) -> None:
    """For arrays, tensors and lists; one row an example, one column a class, summing to 1."""
    x = np.random.default_rng(0).normal(size=(9, FEATURES)).astype(np.float32)
    found = result.predict("site-3", kind(x.tolist()) if kind is list else kind(x))
    assert found.shape == (9, CLASSES)
    assert found.dtype == np.float32
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)


def test_predicting_leaves_the_number_of_threads(result: Result) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        result.predict("site-0", np.zeros((1, FEATURES)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_loaded_model_is_the_clients_own(data: Federation, result: Result, folder: Path) -> None:
    """Its name, its options and its numbers; two clients' models differ."""
    x = data.test.x
    loaded = [load_model(folder / "models" / f"{client}.safetensors") for client in data.clients]
    assert [model.client for model in loaded] == list(data.clients)
    assert loaded[0].method.hyperparameters() == result.method.hyperparameters()
    for model in loaded:
        assert (model.predict(x) == result.predict(model.client, x)).all()
    assert (loaded[0].predict(x) != loaded[1].predict(x)).any()


def test_a_model_takes_what_the_site_measures(tmp_path: Path) -> None:
    """Sites measure in units of their own; with a missing value the file alone gives what the federation gave.

    Row 0 of a's training examples, put in as measured, is its scaled row; NaN becomes the median of that feature.
    """
    rng = np.random.default_rng(2)
    sites = {k: (7 + 1000**i * rng.normal(size=(30, FEATURES)), np.arange(30) % CLASSES) for i, k in enumerate("ab")}
    sites["a"][0][5, 2] = np.nan
    federation = from_arrays(sites, standardise=True, impute=True)
    result = go("fedmap", federation, tmp_path)
    for c, client in enumerate("ab"):
        model, raw = load_model(tmp_path / "models" / f"{client}.safetensors"), sites[client][0]
        scaled = torch.cat([federation.split(s).client(c)[0] for s in ("train", "validation", "test")])
        ours, theirs = (p[np.lexsort(p.T)] for p in (model.predict(raw, raw=True), model.predict(scaled)))
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)
        assert (model.predict(raw, raw=True) == result.predict(client, raw, raw=True)).all()
    assert not np.allclose(model.predict(raw), model.predict(raw, raw=True))


def test_without_scaling_raw_is_the_same(data: Federation, result: Result, folder: Path) -> None:
    model = load_model(folder / "models" / "site-0.safetensors")
    assert model.encoder is None
    assert (model.predict(data.test.x, raw=True) == result.predict("site-0", data.test.x)).all()


def test_a_model_of_two_classes_with_one_output(tmp_path: Path) -> None:
    """p = (1 - σ(z), σ(z)): two columns, also after a round trip."""
    rng = np.random.default_rng(1)
    two = from_arrays({k: (rng.normal(size=(20, FEATURES)), np.arange(20) % 2) for k in "ab"})
    module = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 1))
    result = go("fedavg", two, tmp_path, module=module, model={"name": "custom"})
    found = load_model(tmp_path / "models" / "a.safetensors", module).predict(two.test.x)
    arrays = result.model("a").arrays
    z = two.test.x.numpy() @ arrays["w/1.weight"].T + arrays["w/1.bias"]
    np.testing.assert_allclose(found[:, 1], 1 / (1 + np.exp(-z[:, 0])), rtol=1e-5)
    assert (found == result.predict("a", two.test.x)).all()


def own() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def test_a_network_of_ones_own_must_be_handed_over(data: Federation, tmp_path: Path) -> None:
    result = go("fedmap", data, tmp_path, module=own(), model={"name": "custom"})
    path = tmp_path / "models" / "site-2.safetensors"
    with pytest.raises(FedpriorError, match=r"load_model\(path, module\)"):
        load_model(path)
    assert (load_model(path, own()).predict(data.test.x) == result.predict("site-2", data.test.x)).all()


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_foreign_file_is_refused(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    (tmp_path / "foreign.safetensors").write_bytes(pack({"weight": np.zeros(3)}, metadata))
    with pytest.raises(FedpriorError, match=r"foreign\.safetensors' holds no fedprior model"):
        load_model(tmp_path / "foreign.safetensors")


def test_other_files_of_a_run_are_no_models(result: Result, folder: Path) -> None:
    assert result.name == "fedmap"
    with pytest.raises(FedpriorError, match="no fedprior model"):
        load_model(folder / "predictions.safetensors")
    with pytest.raises(FedpriorError, match=r"summary\.json"):
        load_model(folder / "summary.json")


@pytest.mark.parametrize("content", [None, b"", b"not tensors at all"])
def test_a_missing_or_damaged_model_is_told(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FedpriorError, match=r"model\.safetensors"):
        load_model(path)


def test_a_loaded_result_equals_the_original(data: Federation, local: Result, result: Result, folder: Path) -> None:
    loaded = load_result(folder, result.method, data, local)
    pd.testing.assert_frame_equal(loaded.clients, result.clients, check_exact=True)
    assert loaded.summary == json.loads(json.dumps(jsonable(result.summary)))
    assert loaded.gain().mean_low == result.gain().mean_low
    assert (loaded.name, loaded.seed) == (result.name, result.seed)
    for ours, theirs in zip(loaded.predictions["test"], result.predictions["test"], strict=True):
        assert (ours == theirs).all()
    assert same(loaded.models, result.models)
    assert loaded.journal.events == jsonable(result.journal.events)
    keys = list(result.journal.rows[0])
    assert repr([[row[k] for k in keys] for row in loaded.journal.rows]) == repr(
        [[row[k] for k in keys] for row in result.journal.rows]
    )


def test_the_summary_is_strict_json(result: Result, folder: Path) -> None:
    """No nan, no infinity; every client is in it; the evaluation says what it is of."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads((folder / "summary.json").read_text(), parse_constant=refuse)
    assert [row["client"] for row in found["clients"]] == list(result.federation.clients)
    assert found["last"]["round"] == 2
    assert found["selected"]["round"] in (1, 2)
    assert "after local training" in found["evaluation"]["personal"]


def test_bytes_are_counted(result: Result) -> None:
    """Two rounds of seven clients: 51 float32 weights down (204 bytes), the same and one float64 up (212)."""
    assert result.summary["bytes"] == {"up": 2 * 7 * 212, "down": 2 * 7 * 204}


def test_a_diverged_run_still_has_a_table_and_a_summary(data: Federation, tmp_path: Path) -> None:
    """With an absurd learning rate the weights overflow; the result says so instead of falling over."""
    from fedprior.training import Train

    method = bound("fedavg", data, Train(lr=1e30, epochs=3, batch_size=5))
    run = execute(method, data, Settings(rounds=2), model=MODEL, folder=tmp_path)
    left_out = [e["left_out"] for e in run.journal.events if e["kind"] == "round"]
    assert any(left_out), "updates that are not finite do not count"
    assert run.summary["left_out"]
    assert len(run.clients) == len(data)
    assert json.loads((tmp_path / "summary.json").read_text())["last"]["round"] == 2
