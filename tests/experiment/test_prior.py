"""The prior of the round whose models were kept: in the result, in the folder, and alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

import fedprior
from fedprior import tree
from fedprior.data.encoder import Encoder
from fedprior.data.federation import Federation, from_arrays
from fedprior.data.preparation import Preparation
from fedprior.data.schema import Schema
from fedprior.errors import FedpriorError
from fedprior.experiment.journal import Event
from fedprior.experiment.prior import load_prior
from fedprior.experiment.result import Result
from fedprior.files import write_bytes
from fedprior.methods import build
from fedprior.protocol import METHODS
from fedprior.rng import Key
from support import TRAIN, federation, same

ADDRESSED = {"fedamp", "fedpac"}
"""Methods whose server has a part for each client."""


def run(name: str, data: Federation, rounds: int = 2, **more: Any) -> Result:
    settings: dict[str, Any] = {"rounds": rounds, "eval_every": 1, "workers": 1, "precision": "float64"}
    return fedprior.run(build(name, train=TRAIN), data, model={"name": "mlp", "hidden": [4]}, **(settings | more))


@pytest.fixture(scope="module")
def data() -> Federation:
    return federation((20, 9, 12))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_keeps_its_prior_and_reads_it_back(name: str, data: Federation, tmp_path: Path) -> None:
    result = run(name, data, out=tmp_path / "run")
    path = tmp_path / "run" / "prior.safetensors"
    if name in ADDRESSED:
        assert not path.exists()
        with pytest.raises(FedpriorError, match="kept no prior"):
            _ = result.prior
        return
    alone = load_prior(path)
    assert same(alone.server, result.server)
    assert alone.method == alone.method.using(alone.method.task, result.method.train)
    assert (alone.round, alone.clients, alone.shape) == (result.selected, 3, data.shape)
    again = run(name, data, out=tmp_path / "run")
    assert same(again.server, result.server)
    down, ours = alone.down(), result.method.broadcast(result.server, torch.tensor([2]))
    assert same(down, ours)


def test_it_is_the_selected_rounds_prior_and_not_the_last_ones(data: Federation) -> None:
    """A run of r rounds ends with the prior that a longer run has in round r: draws are keyed, so both are equal."""
    scores: dict[int, float] = {}

    def observe(event: Event) -> None:
        if event["kind"] == "evaluation":
            scores[event["round"]] = event["personal"]["validation"]["nll"]["mean"]

    long = run("fedavg", data, 12, observe=observe)
    assert long.selected == min(scores, key=scores.__getitem__)
    short = run("fedavg", data, long.selected, select="last")
    assert same(long.server, short.server)
    other = 12 if long.selected < 12 else 1
    assert not same(run("fedavg", data, other, select="last").server, long.server)


def test_a_resumed_run_has_the_same_prior(data: Federation, tmp_path: Path) -> None:
    whole = run("fedmap", data, 6, out=tmp_path / "whole")

    def stop(event: Event) -> None:
        if event["kind"] == "round" and event["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("fedmap", data, 6, out=tmp_path / "cut", observe=stop)
    resumed = run("fedmap", data, 6, out=tmp_path / "cut")
    assert same(whole.server, resumed.server)
    files = [(tmp_path / name / "prior.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]


def test_it_is_sealed_and_a_changed_one_is_refused(data: Federation, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run("fedavg", data, out=folder)
    path = folder / "prior.safetensors"
    content = path.read_bytes()
    assert "prior.safetensors" in json.loads((folder / "summary.json").read_text())["files"]
    write_bytes(path, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FedpriorError, match="checksum is wrong"):
        load_prior(path)
    with pytest.raises(FedpriorError, match=r"prior\.safetensors' is missing or damaged"):
        run("fedavg", data, out=folder)
    path.unlink()
    with pytest.raises(FedpriorError, match="earlier version"):
        load_prior(path)


def test_a_personal_model_is_no_prior(data: Federation, tmp_path: Path) -> None:
    run("fedavg", data, out=tmp_path / "run")
    with pytest.raises(FedpriorError, match="description of the prior"):
        load_prior(tmp_path / "run" / "models" / "site-0.safetensors")


def test_a_network_of_ones_own_is_asked_for(data: Federation, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    result = fedprior.run(build("fedavg", train=TRAIN), data, model=module, rounds=1, workers=1, out=tmp_path / "run")
    with pytest.raises(FedpriorError, match="network of your own"):
        load_prior(tmp_path / "run" / "prior.safetensors")
    found = load_prior(tmp_path / "run" / "prior.safetensors", module)
    assert same(found.server, result.server)


def rows(seed: int, n: int = 30) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(seed, 1 + seed, size=(n, 2))


def sites(scaling: str) -> Federation:
    given = {f"s{k}": (rows(k), np.arange(30) % 2) for k in range(3)}
    return from_arrays(given, standardise=True, scaling=scaling)  # type: ignore[arg-type]


def test_inputs_of_a_new_site_are_prepared_as_those_of_the_others() -> None:
    """Shared scaling: by the statistics of the federation. Own scaling: (x - mean) / std of the new site's rows."""
    new = rows(9)
    shared = sites("shared")
    common = Preparation.from_document(json.loads(json.dumps(Preparation.of(shared.encoders).document())))
    encoder, first = common.encoder(new), shared.encoders[0]
    assert encoder is not None
    assert first is not None
    np.testing.assert_array_equal(encoder(new), first(new))
    own = Preparation.from_document(Preparation.of(sites("own").encoders).document()).encoder(new)
    assert own is not None
    np.testing.assert_allclose(own(new), (new - new.mean(0)) / new.std(0))


def test_a_new_site_without_preparation_is_left_as_it_is() -> None:
    assert Preparation.of([None, None]).encoder(rows(1)) is None
    assert Preparation.of([]).encoder(rows(1)) is None


def test_own_scaling_of_a_table_fills_with_the_new_sites_median() -> None:
    frame = pd.DataFrame({"age": [1.0, 2.0, 30.0], "ill": [0, 1, 1]})
    schema = Schema.inferred(frame, target="ill")
    encoders = [Encoder.own(schema, frame.head(n)) for n in (2, 3)]
    own = Preparation.from_document(Preparation.of(encoders).document())
    new = np.array([[4.0], [np.nan], [6.0], [20.0]])
    encoder = own.encoder(new)
    assert encoder is not None
    assert encoder.schema == schema
    filled = np.array([4.0, 6.0, 6.0, 20.0])
    np.testing.assert_allclose(encoder(new)[:, 0], (filled - 9.0) / filled.std())


def test_the_prior_of_nobody_is_none() -> None:
    """Local's server knows nothing, and that is a prior too: a new site starts as everyone did."""
    data = federation((9, 9))
    result = run("local", data)
    assert tree.leaves(result.prior.server) == []
    assert tree.leaves(result.method.init_server(Key(0), 2)) == []
