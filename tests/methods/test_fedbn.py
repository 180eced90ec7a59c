"""FedBN: batch normalisation, found by type, is personal with its running statistics; everything else is FedAvg."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedprior import tree
from fedprior.errors import FedpriorWarning
from fedprior.methods.fedbn import FedBN
from fedprior.rng import Key
from fedprior.training import Train
from support import HALF, TRAIN, bound, federation, keys, one_round, rounds, same, scalars

NORMS = {f"{layer}.{part}" for layer in ("1.1", "3") for part in ("weight", "bias", "running_mean", "running_var")}


def normed() -> nn.Sequential:
    """Two norms in unnamed containers: no 'bn' or 'norm' in any name."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()),
        nn.Linear(6, 5),
        nn.BatchNorm1d(5),
        nn.LayerNorm(5),
        nn.Linear(5, 3),
    )


def fedbn(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> FedBN:
    method = bound("fedbn", data, train, module, **options)
    assert isinstance(method, FedBN)
    return method


def test_without_norms_it_is_fedavg() -> None:
    """Bit for bit: server, models and predictions; and it says so."""
    data = federation()
    with pytest.warns(FedpriorWarning, match="no batch normalisation"):
        ours = rounds(fedbn(data), data, participation=HALF)
    theirs = rounds(bound("fedavg", data), data, participation=HALF)
    assert (ours.vector() == theirs.vector()).all()
    assert ours.server.keys() == theirs.server.keys()


def test_with_norms_it_does_not_warn() -> None:
    data = federation(sizes=(30, 21))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rounds(fedbn(data, module=normed()), data, 1)


def test_norms_are_found_by_type_and_stay_at_home() -> None:
    """Weight, bias, running mean and variance of both norms are in no message; layer normalisation is shared."""
    data = federation(sizes=(30, 21))
    method = fedbn(data, module=normed())
    server, down, client, updated, up = one_round(method, data)
    assert set(updated.own) == set(client.own) == NORMS
    everything = set(method.task.init(Key.from_seed(0)))
    for message in (server.w, down.w, up.w):
        assert set(message) == everything - NORMS
    assert {"4.weight", "4.bias"} <= set(up.w)
    assert scalars(tree.index(up, [0])) == 4 * 6 + 6 + 6 * 5 + 5 + 5 + 5 + 5 * 3 + 3 + 1
    for k in NORMS:
        assert (updated.own[k] != client.own[k]).any()


def test_convolutional_norms_are_found_too() -> None:
    data = federation(sizes=(30, 21))
    for norm, shared in ((nn.BatchNorm2d(4), False), (nn.BatchNorm3d(4), False), (nn.GroupNorm(2, 4), True)):
        method = fedbn(data, module=nn.Sequential(norm, nn.Flatten(), nn.Linear(4, 3)))
        assert {method.shares(k) for k in method.task.init(Key.from_seed(0)) if k.startswith("0.")} == {shared}


def test_first_round_trains_as_fedavg() -> None:
    """Both start at the common weights and train everything, so the results agree bit for bit: FedBN keeps its norms
    and averages the rest, FedAvg averages all."""
    data = federation(sizes=(30, 21, 12))
    method, avg = fedbn(data, module=normed()), bound("fedavg", data, module=normed())
    server, _, _, updated, up = one_round(method, data)
    start, _, _, _, theirs = one_round(avg, data)
    assert same({**updated.own, **up.w}, {k: theirs.w[k] for k in (*updated.own, *up.w)})
    ids = torch.arange(3)
    ours, mean = method.aggregate(server, up, ids).w, avg.aggregate(start, theirs, ids).w
    assert same(ours, {k: mean[k] for k in ours})


def test_running_statistics_by_hand() -> None:
    """One step on the whole data from running mean 0 and variance 1, momentum 0.1, m examples:

    mean ← 0.1 · mean of the norm's input,  variance ← 0.9 + 0.1 · its unbiased variance.
    """
    data = federation(sizes=(30, 21))
    method = fedbn(data, Train(lr=0.1, batch_size=100, steps=1), normed())
    server, _, _, updated, _ = one_round(method, data)
    for c in range(2):
        z = data.train.client(c)[0] @ server.w["1.0.weight"].T + server.w["1.0.bias"]
        assert torch.allclose(updated.own["1.1.running_mean"][c], 0.1 * z.mean(0), rtol=0, atol=1e-12)
        assert torch.allclose(updated.own["1.1.running_var"][c], 0.9 + 0.1 * z.var(0), rtol=0, atol=1e-12)


def test_norms_survive_the_round() -> None:
    """A client trains on from its own norms and the new shared part: with no steps, its norms are as it left them."""
    data = federation(sizes=(30, 21))
    method = fedbn(data, module=normed())
    server, down, _, updated, up = one_round(method, data)
    new = tree.expand(method.broadcast(method.aggregate(server, up, torch.arange(2)), torch.arange(2)), 2)
    still = method.using(method.task, replace(TRAIN, steps=0))
    after, sent, _ = still.local_update(updated, new, data.train, keys(data, "round", 1))
    assert same(after.own, updated.own)
    assert same(sent.w, tree.clone(new.w))
    assert not same(tree.clone(new.w), tree.clone(down.w))
    own = updated.own["3.running_mean"]
    assert (own[0] != own[1]).all()


def test_the_personal_model_is_the_newest_shared_part_with_own_norms() -> None:
    """Predictions are those of torch's own module in evaluation mode with these weights and statistics."""
    data = federation(sizes=(30, 21))
    method = fedbn(data, module=normed())
    server, _, _, updated, up = one_round(method, data)
    new = tree.expand(method.broadcast(method.aggregate(server, up, torch.arange(2)), torch.arange(2)), 2)
    before = tree.clone(updated)
    personal = method.personalise(updated, new, data.train, keys(data, "p"))
    module = method.task.module.eval()
    for c in range(2):
        w = {k: (new.w[k] if k in new.w else updated.own[k])[c] for k in personal.w}
        assert same(tree.index(personal.w, c), w)
        x = data.test.client(c)[0]
        expected = functional_call(module, w, (x,)).log_softmax(1).detach()
        assert torch.allclose(method.predict(personal, torch.stack([x, x]), keys(data))[c], expected, atol=1e-12)
    assert same(before, updated)


def test_clients_that_stay_away_keep_their_norms() -> None:
    """At the start a client's running mean is 0; only those that took part have another."""
    data = federation(sizes=(30, 21, 24, 27))
    trace = rounds(fedbn(data, module=normed()), data, 1, participation=HALF)
    moved = (trace.states["own/1.1.running_mean"] != 0).any(1)
    assert 0 < int(moved.sum()) < 4
    assert np.isfinite(trace.vector()).all()
