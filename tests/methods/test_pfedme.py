"""pFedMe against its equations: a round in NumPy, the Moreau envelope and its gradient, the server's step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.client import Batch, ClientData, schedule
from fedprior.data.federation import Federation
from fedprior.engine import Engine
from fedprior.methods import _envelope as envelope
from fedprior.methods._envelope import Client, Up
from fedprior.methods.pfedme import PFedMe
from fedprior.metrics import cohort_metrics, metrics_of
from fedprior.protocol import Weights
from fedprior.training import Train
from fedprior.tree import Params
from support import TRAIN, bound, federation, flat, keys, one_round, rounds, same

SIZES = (21, 8, 33)
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))  # softmax regression: convex, with a gradient on one line
NORMED = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

Array = NDArray[np.float64]


def pfedme(data: Federation, train: Train = TRAIN, module: nn.Module | None = LINEAR, **options: Any) -> PFedMe:
    method = bound("pfedme", data, train, module, **options)
    assert isinstance(method, PFedMe)
    return method


def matrix(w: Params, c: int) -> Array:
    """Softmax regression as one matrix [3, 5], the bias last."""
    return np.column_stack([w["1.weight"][c].numpy(), w["1.bias"][c].numpy()]).astype(np.float64)


def gradient(theta: Array, x: Array, y: NDArray[np.int64]) -> Array:
    """(p - onehot)' [x, 1] / n."""
    x = np.column_stack([x, np.ones(len(x))])
    z = np.exp(x @ theta.T)
    error = z / z.sum(1, keepdims=True) - np.eye(3)[y]
    result: Array = error.T @ x / len(x)
    return result


def by_hand(method: PFedMe, w: Array, data: ClientData, c: int, own: Any) -> tuple[Array, Array]:
    """Algorithm 1 for one client: (θ, v) after the round."""
    plan = schedule(data, own.fold("descend"), method.train.budget(method.task))
    v, theta, speed = w.copy(), w.copy(), np.zeros_like(w)
    for s in range(method.train.budget(method.task).length(data.size[c])):
        rows = plan.rows[s, c, : plan.counts[s, c]]
        x, y = data.x[rows].numpy(), data.y[rows].numpy()
        theta = v.copy() if method.restart == "v" else theta
        for _ in range(method.prox_steps):
            theta = theta - method.prox_step() * (gradient(theta, x, y) + method.strength * (theta - v))
        speed = method.train.momentum * speed + method.strength * (v - theta)
        v = v - method.train.lr * speed
    return theta, v


@pytest.mark.parametrize("restart", ["v", "theta"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_round_by_hand(restart: str, momentum: float) -> None:
    """Per batch: K steps θ ← θ - α (∇f(θ) + λ (θ - v)) from v, or from the last θ; then v ← v - η λ (v - θ)."""
    data = federation(SIZES)
    train = replace(TRAIN, lr=0.03, momentum=momentum)
    method = pfedme(data, train, restart=restart, strength=7.0, prox_lr=0.05, prox_steps=3)
    _, down, _, client, up = one_round(method, data)
    for c in range(len(data)):
        theta, v = by_hand(method, matrix(down.w, c), data.train, c, keys(data, "round", 0))
        np.testing.assert_allclose(matrix(client.theta, c), theta, rtol=0, atol=1e-12)
        np.testing.assert_allclose(matrix(up.v, c), v, rtol=0, atol=1e-12)
    assert same(client.w_last, up.v)


@pytest.mark.parametrize("restart", ["v", "theta"])
def test_every_round_begins_at_w(restart: str) -> None:
    """Neither the last θ nor the last local model has a part in the next round."""
    data = federation(SIZES)
    method = pfedme(data, restart=restart)
    _, down, client, updated, _ = one_round(method, data)
    own = keys(data, "round", 1)
    moved = tree.map(lambda leaf: leaf + 0.3, updated)
    a, b, c = (method.local_update(state, down, data.train, own)[0] for state in (client, updated, moved))
    assert same(a, b)
    assert same(a, c)


def whole(data: Federation) -> Batch:
    return next(data.train.batches(100))


def solve(method: PFedMe, v: Params, batch: Batch) -> Params:
    """θ*(v) by many prox steps of a size below 2/(L + λ)."""
    metric, lr = envelope.euclidean(method.task, v), 1 / (method.strength + 4)
    return envelope.prox(method.task, v, v, metric, batch, strength=method.strength, lr=lr, steps=150)[0]


def test_the_prox_point_is_stationary() -> None:
    """∇f(θ*) + λ (θ* - v) = 0; a stronger pull keeps θ* closer to v."""
    data = federation(SIZES)
    gaps = []
    for strength in (1.0, 2.0, 5.0):
        method = pfedme(data, strength=strength)
        v = tree.clone(one_round(method, data)[1].w)
        theta = solve(method, v, whole(data))
        for c in range(len(data)):
            x, y = data.train.client(c)
            pull = strength * (matrix(theta, c) - matrix(v, c))
            np.testing.assert_allclose(gradient(matrix(theta, c), x.numpy(), y.numpy()), -pull, rtol=0, atol=1e-12)
        gaps.append(float((flat(theta) - flat(v)).norm()))
    assert gaps == sorted(gaps, reverse=True)


def test_the_gradient_of_the_envelope() -> None:
    """F(v) = min f(θ) + λ/2 ‖θ - v‖² has ∇F(v) = λ (v - θ*(v)): central differences of F itself."""
    data = federation(SIZES)
    method = pfedme(data, strength=2.0)
    v = tree.clone(one_round(method, data)[1].w)
    batch = whole(data)

    def value(v: Params) -> Tensor:
        theta = solve(method, v, batch)
        return method.task.nll(theta, batch) + method.strength / 2 * tree.sqdist(theta, v)

    metric = envelope.euclidean(method.task, v)
    grads = envelope.envelope_gradient(method.task, v, solve(method, v, batch), metric, method.strength)
    h = 1e-4
    for name, entry in (("1.bias", (2,)), ("1.weight", (0, 3)), ("1.weight", (1, 1))):
        place = (slice(None), *entry)
        up, low = tree.clone(v), tree.clone(v)
        up[name][place] += h
        low[name][place] -= h
        slope = (value(up) - value(low)) / (2 * h)
        assert torch.allclose(slope, grads[name][place], rtol=0, atol=1e-8)
        assert grads[name][place].abs().min() > 1e-4


def test_no_pull_is_plain_descent_and_a_fixed_local_model() -> None:
    """λ = 0: v never moves, and the last θ is K gradient steps from it on the last batch."""
    data = federation(SIZES)
    method = pfedme(data, strength=0)
    _, down, _, client, up = one_round(method, data)
    assert same(up.v, tree.clone(down.w))
    plan = schedule(data.train, keys(data, "round", 0).fold("descend"), method.train.budget(method.task))
    for c in range(len(data)):
        last = method.train.budget(method.task).length(data.train.size[c]) - 1
        rows = plan.rows[last, c, : plan.counts[last, c]]
        theta = matrix(down.w, c)
        for _ in range(method.prox_steps):
            theta = theta - method.prox_step() * gradient(theta, data.train.x[rows].numpy(), data.train.y[rows].numpy())
        np.testing.assert_allclose(matrix(client.theta, c), theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("lr", "strength", "expected"), [(0.03, 15.0, 0.03), (0.1, 15.0, 1 / 30), (0.1, 0.0, 0.1), (0.1, 20.0, 0.025)]
)
def test_the_step_of_the_solver(lr: float, strength: float, expected: float) -> None:
    """Unless given, α = min(lr, 1/2λ): as long as the local step, and α λ ≤ ½, well below 2. Beside Adam it is 0.01.

    A round with it is the round with that number given.
    """
    data, train = federation(SIZES), replace(TRAIN, lr=lr)
    method = pfedme(data, train, strength=strength)
    assert method.prox_step() == pytest.approx(expected, abs=1e-15)
    given = pfedme(data, train, strength=strength, prox_lr=method.prox_step())
    fixed = pfedme(data, train, strength=strength, prox_lr=0.01)
    ours, same_step, other = (one_round(m, data)[3] for m in (method, given, fixed))
    assert same(ours, same_step)
    assert not same(ours, other)
    adam = Train(optimizer="adam", lr=lr)
    assert pfedme(data, adam, strength=strength).prox_step() == 0.01


# The server


@pytest.mark.parametrize(("beta", "expected"), [(0.0, 10.0), (0.5, 6.625), (1.0, 3.25), (2.0, -3.5)])
def test_server_step(beta: float, expected: float) -> None:
    """v = (1, 4), n = (10, 30): mean ¼ + 3 = 3.25. From w = 10 with β: (1 - β) 10 + 3.25 β; β = 2 is 2 · 3.25 - 10."""
    up = Up({"t": torch.tensor([[1.0], [4.0]], dtype=torch.float64)}, torch.tensor([10.0, 30.0], dtype=torch.float64))
    w = {"t": torch.tensor([10.0], dtype=torch.float64)}
    assert float(envelope.mean_step(w, up, beta)["t"]) == pytest.approx(expected, abs=1e-14)
    if beta > 0:
        method = pfedme(federation(SIZES), beta=beta)
        assert float(method.aggregate(Weights(w), up, torch.arange(2)).w["t"]) == pytest.approx(expected, abs=1e-14)


def test_equal_counts_give_the_mean() -> None:
    """The weights sum to one; a client with as many examples as another counts as much."""
    gen = torch.Generator().manual_seed(0)
    v = {"t": torch.randn(5, 3, generator=gen, dtype=torch.float64)}
    zero = {"t": torch.zeros(3, dtype=torch.float64)}
    for n in (1.0, 17.0):
        mean = envelope.mean_step(zero, Up(v, torch.full((5,), n, dtype=torch.float64)), 1.0)
        assert torch.allclose(mean["t"], v["t"].mean(0), rtol=1e-12)
    ones = {"t": torch.ones(5, 3, dtype=torch.float64)}
    counts = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0], dtype=torch.float64)
    assert torch.allclose(envelope.mean_step(zero, Up(ones, counts), 1.0)["t"], ones["t"][0], rtol=1e-14)


def test_a_client_that_does_not_report() -> None:
    """It trains all the same: its θ changes every round, and the server does not depend on its data."""
    data = federation(SIZES)
    method = pfedme(data)
    y = data.train.y.clone()
    rows = slice(data.train.start[1], data.train.start[1] + data.train.size[1])
    y[rows] = (y[rows] + 1) % 3
    other = replace(data, train=replace(data.train, y=y))
    servers, thetas = [], []
    for federated in (data, other):
        with Engine(method, federated, 5) as engine:
            for number in range(3):
                before = flat(engine.memory.states.theta)[1].clone()
                engine.round(number, [0, 1, 2], [0, 2])
                assert (flat(engine.memory.states.theta)[1] != before).all()
            servers.append(tree.clone(engine.server))
            thetas.append(flat(engine.memory.states.theta)[1].clone())
    assert same(servers[0], servers[1])
    assert (thetas[0] != thetas[1]).any()


# Buffers


@pytest.mark.parametrize("restart", ["v", "theta"])
def test_running_statistics_reach_the_server(restart: str) -> None:
    """Buffers are averaged: after a round the global model must not be left with statistics of no data (0 and 1)."""
    data = federation(SIZES)
    trace = rounds(pfedme(data, module=NORMED, restart=restart), data, 1)
    assert (trace.server["w/2.running_mean"] != 0).all()
    assert (trace.server["w/2.running_var"] != 1).all()


def test_buffers_feel_no_pull() -> None:
    """Neither the prox step nor the envelope's gradient speaks of running statistics."""
    data = federation(SIZES)
    method = pfedme(data, module=NORMED)
    v = tree.clone(one_round(method, data)[1].w)
    theta = tree.map(lambda leaf: leaf + 1, v)
    metric = envelope.euclidean(method.task, v)
    assert not set(metric) & method.task.buffers
    assert set(envelope.envelope_gradient(method.task, v, theta, metric, 15.0)) == set(method.task.parameters(v))
    far = {k: leaf + 100 if k in method.task.buffers else leaf for k, leaf in v.items()}
    first, second = (
        envelope.prox(method.task, tree.clone(v), mu, metric, whole(data), strength=15.0, lr=0.01, steps=3)[0]
        for mu in (v, far)
    )
    assert same(first, second)


# Predictions


def test_the_personal_model_is_the_last_theta() -> None:
    data = federation(SIZES)
    method = pfedme(data)
    _, down, _, client, _ = one_round(method, data)
    personal = method.personalise(client, down, data.train, keys(data))
    assert same(personal.w, client.theta)
    assert isinstance(client, Client)


def test_pooled_accuracy() -> None:
    """P = correct predictions over all clients / all test examples; if all clients hold the global model, P = G."""
    data = federation(SIZES)
    method = pfedme(data)
    labels = [data.test.client(c)[1].numpy() for c in range(3)]
    with Engine(method, data, 5) as engine:
        for number in range(3):
            personal = engine.evaluate(number, ("test",)).predictions["test"]
            shared = engine.predict_global(("test",))
            assert shared is not None
            ours, theirs = (
                cohort_metrics(metrics_of(data.target), list(zip(p, labels, strict=True))).summary["accuracy"]["pooled"]
                for p in (personal, shared["test"])
            )
            right = sum(int((p.argmax(1) == y).sum()) for p, y in zip(personal, labels, strict=True))
            assert ours == pytest.approx(right / sum(len(y) for y in labels), abs=1e-15)
            if number == 0:  # nobody has trained: everyone holds w
                assert ours == theirs
                assert all((p == g).all() for p, g in zip(personal, shared["test"], strict=True))
            else:
                assert any((p != g).any() for p, g in zip(personal, shared["test"], strict=True))
            engine.round(number, [0, 1, 2], [0, 1, 2])
