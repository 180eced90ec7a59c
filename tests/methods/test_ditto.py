"""Ditto: FedAvg's server, untouched, and beside it a personal model with a proximal term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedprior import tree
from fedprior.methods.ditto import Ditto
from fedprior.protocol import Empty, Weights
from fedprior.rng import Key
from fedprior.training import Train, value_and_grad
from support import HALF, TRAIN, bound, federation, keys, one_round, rounds, same, with_train

NORMED = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def ditto(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> Ditto:
    method = bound("ditto", data, train, module, **options)
    assert isinstance(method, Ditto)
    return method


@pytest.mark.parametrize("module", [None, NORMED])
@pytest.mark.parametrize("mu", [0.0, 1.0, 10.0])
def test_the_server_is_fedavgs(mu: float, module: nn.Module | None) -> None:
    """Bit for bit, over rounds, with half of the clients: the personal stream leaves no mark on it."""
    data = federation()
    ours = rounds(ditto(data, module=module, strength=mu, personal_epochs=1), data, participation=HALF)
    theirs = rounds(bound("fedavg", data, module=module), data, participation=HALF)
    assert same(ours.server, theirs.server)
    assert any((ours.test[c] != theirs.test[c]).any() for c in data.clients)


@pytest.mark.parametrize("module", [None, NORMED])
def test_without_a_pull_the_personal_model_trains_alone(module: nn.Module | None) -> None:
    """μ = 0: over rounds v is Local's model, trained for `personal_epochs` a round on the personal stream's batches."""
    data = federation()
    method: Any = ditto(data, module=module, strength=0.0, personal_epochs=3)
    local: Any = bound("local", data, TRAIN.lasting(3), module)
    server, _, client, _, _ = one_round(method, data)
    alone = local.init_client(Empty(), data.train, keys(data, "join"))
    for t in range(3):
        own = keys(data, "round", t)
        down = tree.expand(server, len(data))
        client, up, _ = method.local_update(client, down, data.train, own)
        server = method.aggregate(server, up, torch.arange(len(data)))
        alone, _, _ = local.local_update(alone, Empty(), data.train, own.fold("personal"))
        assert same(client.w, alone.w)
    assert not same(tree.index(client.w, 0), server.w)


@pytest.mark.parametrize("mu", [0.1, 1.0, 10.0])
def test_gradient_of_the_personal_objective(mu: float) -> None:
    """∇ = ∇F(v) + μ (v - w_t); the value grows by μ/2 ‖v - w_t‖²; running statistics are no part of it."""
    data = federation(sizes=(30, 21, 12))
    method = ditto(data, module=NORMED, strength=mu)
    _, down, _, updated, _ = one_round(method, data)
    v, w_t, batch, buffers = updated.w, down.w, next(data.train.batches(6)), method.task.buffers
    far = {k: w + 100 if k in buffers else w for k, w in w_t.items()}
    value, grads = value_and_grad(method.personal_objective, tree.clone(v), far, batch, buffers)
    loss, plain = value_and_grad(lambda w, _, b: method.task.nll(w, b), tree.clone(v), None, batch, buffers)
    gap = torch.zeros(3).double()
    for k in method.task.parameters(v):
        assert torch.allclose(grads[k] - plain[k], mu * (v[k] - w_t[k]), rtol=0, atol=1e-12)
        gap += (v[k] - w_t[k]).square().flatten(1).sum(1)
    assert torch.allclose(value - loss, mu / 2 * gap, rtol=0, atol=1e-11)


def test_the_anchor_is_the_model_received_this_round() -> None:
    """v does not depend on how the client trains w in the same round, nor on earlier global models: only on w_t."""
    data = federation()
    method = ditto(data, personal_epochs=5)
    _, down, client, updated, _ = one_round(method, data)
    longer = with_train(method, epochs=7)
    assert same(one_round(longer, data)[3], updated)
    other = Weights(tree.map(lambda v: v + 0.1, down.w))
    assert not same(method.local_update(client, other, data.train, keys(data, "round", 0))[0], updated)


def test_fixed_point() -> None:
    """On a convex problem v ends where ∇F(v) = -μ (v - w_t): the closed form of the personal optimum."""
    data = federation(sizes=(30, 21))
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    train = replace(TRAIN, lr=0.2, momentum=0.9, batch_size=100, epochs=1)
    method = ditto(data, train, linear, strength=0.5, personal_epochs=1500)
    _, down, _, updated, _ = one_round(method, data)
    batch = next(data.train.batches(100))
    _, grads = value_and_grad(lambda w, _, b: method.task.nll(w, b), updated.w, None, batch)
    for k, g in grads.items():
        assert torch.allclose(g, -0.5 * (updated.w[k] - down.w[k]), rtol=0, atol=1e-10)


def test_a_stronger_pull_keeps_the_model_closer() -> None:
    data = federation()
    gaps = []
    for mu in (0.0, 0.3, 1.0, 3.0):
        method = ditto(data, replace(TRAIN, momentum=0.0), strength=mu)
        _, down, client, _, _ = one_round(method, data)
        away = Weights(tree.map(lambda v: v + 0.2, tree.clone(client.w)))
        updated, _, _ = method.local_update(away, down, data.train, keys(data, "round", 0))
        gaps.append(float(tree.sqdist(updated.w, down.w).mean()))
    assert gaps == sorted(gaps, reverse=True)


def test_without_personal_epochs_the_model_stays_at_the_start() -> None:
    data = federation()
    method = ditto(data, personal_epochs=0)
    start = method.task.init(Key.from_seed(5).fold("init"))
    trace = rounds(method, data)
    for k, v in start.items():
        assert torch.equal(trace.states[f"w/{k}"], v.expand(len(data), *v.shape))
        assert (trace.server[f"w/{k}"] != v).any()


def test_only_clients_that_take_part_move_their_model() -> None:
    data = federation()
    trace = rounds(ditto(data), data, 1, participation=HALF)
    start = ditto(data).task.init(Key.from_seed(5).fold("init"))
    still = [all((trace.models[c][f"w/{k}"] == v.numpy()).all() for k, v in start.items()) for c in data.clients]
    new = [
        all((trace.models[c][f"w/{k}"] == trace.server[f"w/{k}"].numpy()).all() for k in start) for c in data.clients
    ]
    assert sum(still) + sum(new) == 3  # who has not joined yet starts at the model that comes down


def test_prediction_is_by_the_personal_model() -> None:
    data = federation()
    method = ditto(data)
    _, down, _, updated, _ = one_round(method, data)
    assert same(method.personalise(updated, down, data.train, keys(data, "p")), updated)
