"""FedAvg, FedAvg-FT, FedProx and Local against plain loops of torch's own modules and optimisers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedprior import tree
from fedprior.data.client import schedule
from fedprior.engine import AnyMethod
from fedprior.methods._averaging import Up
from fedprior.methods.fedprox import FedProx
from fedprior.protocol import Empty, Weights
from fedprior.rng import Key, Keys
from fedprior.training import value_and_grad
from fedprior.tree import Params
from support import HALF, TRAIN, bound, federation, keys, one_round, rounds, same, scalars, with_train

NORMED = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def batches(method: AnyMethod, data: Any, c: int, own: Keys) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of client c in the order in which its local run sees them."""
    plan = schedule(data[[c]], own.fold("descend")[[c]], method.train.budget(method.task))
    for rows, counts in zip(plan.rows[:, 0], plan.counts[:, 0], strict=True):
        picked = torch.from_numpy(rows[:counts])
        yield data.x[picked], data.y[picked]


def trained(method: AnyMethod, w: Params, data: Any, c: int, own: Keys, mu: float = 0.0) -> Params:
    """One client's local run, naively: torch's module, loss and SGD; g + μ (w - w_t) is the gradient."""
    leaves = {k: v.clone().requires_grad_() for k, v in w.items()}
    optimizer = torch.optim.SGD(leaves.values(), lr=method.train.lr, momentum=method.train.momentum)
    for x, y in batches(method, data, c, own):
        loss = nn.functional.cross_entropy(functional_call(method.task.module, leaves, (x,)), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for k, v in leaves.items():
                assert v.grad is not None
                v.grad += mu * (v - w[k])
        optimizer.step()
    return {k: v.detach() for k, v in leaves.items()}


def close(a: Params, b: Params, tolerance: float = 1e-12) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=tolerance) for k in a)


@pytest.mark.parametrize(("name", "mu"), [("fedavg", 0.0), ("fedavg_ft", 0.0), ("fedprox", 0.7)])
def test_a_round_against_a_plain_loop(name: str, mu: float) -> None:
    """Each client: SGD with momentum from w_t on its own batches. Server: Σ n_k w_k / Σ n_k, sizes 28, 6, 16, 4, …"""
    data = federation()
    method = bound(name, data, strength=mu) if name == "fedprox" else bound(name, data)
    server, _, _, _, up = one_round(method, data)
    total, expected = sum(data.train.size), tree.zeros_like(server.w)
    for c, n in enumerate(data.train.size):
        w = trained(method, server.w, data.train, c, keys(data, "round", 0), mu)
        assert close(tree.index(up.w, c), w)
        expected = {k: v + n / total * w[k] for k, v in expected.items()}
    assert close(method.aggregate(server, up, torch.arange(len(data))).w, expected)
    assert up.n.tolist() == list(data.train.size)


def test_the_mean_is_weighted_by_examples() -> None:
    """n = (1, 3): (1·0 + 3·4) / 4 = 3, where the plain mean is 2."""
    data = federation()
    up = Up({"w": torch.tensor([[0.0], [4.0]], dtype=torch.float64)}, torch.tensor([1.0, 3.0], dtype=torch.float64))
    for name in ("fedavg", "fedprox", "fedavg_ft"):
        assert bound(name, data).aggregate(Weights({}), up, torch.arange(2)).w["w"].tolist() == [3.0]


@pytest.mark.parametrize("module", [None, NORMED])
def test_fedprox_without_a_pull_is_fedavg(module: nn.Module | None) -> None:
    """μ = 0: bit for bit, over rounds, with and without batch normalisation."""
    data = federation()
    prox, avg = bound("fedprox", data, module=module, strength=0.0), bound("fedavg", data, module=module)
    a, b = (rounds(m, data, participation=HALF) for m in (prox, avg))
    assert (a.vector() == b.vector()).all()
    assert (rounds(bound("fedprox", data, module=module, strength=0.5), data).vector() != b.vector()).any()


def fedprox(mu: float, module: nn.Module | None = None) -> tuple[FedProx, Params, Params, Any]:
    """The method, trained weights w, w_t as a stack, and a batch."""
    data = federation()
    method = bound("fedprox", data, module=module, strength=mu)
    assert isinstance(method, FedProx)
    _, down, _, _, up = one_round(method, data)
    return method, up.w, down.w, next(data.train.batches(5))


@pytest.mark.parametrize("mu", [0.1, 1.0, 10.0])
def test_fedprox_gradient(mu: float) -> None:
    """∇ = ∇F + μ (w - w_t): the norm is squared, so the pull grows with the distance (one script takes its root)."""
    method, w, w_t, batch = fedprox(mu)
    value, grads = value_and_grad(method.objective, w, w_t, batch)
    loss, plain = value_and_grad(lambda w, _, b: method.task.nll(w, b), w, None, batch)
    for k in w:
        assert torch.allclose(grads[k] - plain[k], mu * (w[k] - w_t[k]), rtol=0, atol=1e-12)
    gap = torch.stack([(w[k] - w_t[k]).square().flatten(1).sum(1) for k in w]).sum(0)
    assert torch.allclose(value - loss, mu / 2 * gap, rtol=1e-12)


def test_running_statistics_are_no_part_of_the_pull() -> None:
    """‖w - w_t‖² is over parameters: moving a running mean of w_t far away changes neither value nor gradient."""
    method, w, w_t, batch = fedprox(1.0, NORMED)
    moved = {k: v + 100 if k in method.task.buffers else v for k, v in w_t.items()}
    (here, grads), (there, others) = (
        value_and_grad(method.objective, tree.clone(w), a, batch, method.task.buffers) for a in (w_t, moved)
    )
    assert same(grads, others)
    assert torch.equal(here, there)


def test_fedprox_fixed_point() -> None:
    """On a convex problem, gradient descent ends where ∇F(w) + μ (w - w_t) = 0."""
    data = federation(sizes=(30,))
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    train = replace(TRAIN, lr=0.2, momentum=0.9, batch_size=100, epochs=2000)
    method = bound("fedprox", data, train, linear, strength=0.5)
    _, down, _, _, up = one_round(method, data)
    _, grads = value_and_grad(lambda w, _, b: method.task.nll(w, b), up.w, None, next(data.train.batches(100)))
    for k, g in grads.items():
        assert torch.allclose(g, -0.5 * (up.w[k] - down.w[k]), rtol=0, atol=1e-10)


def test_fine_tuning_of_no_epochs_is_fedavg() -> None:
    data = federation()
    a, b = (rounds(m, data) for m in (bound("fedavg_ft", data, ft_epochs=0), bound("fedavg", data)))
    assert (a.vector() == b.vector()).all()


def test_fine_tuning_against_a_plain_loop() -> None:
    """From the global model, all weights, with the optimiser of training started afresh."""
    data = federation()
    method = bound("fedavg_ft", data, ft_epochs=3)
    server, down, client, _, _ = one_round(method, data)
    own = keys(data, "personalise")
    tuned = method.personalise(client, down, data.train, own)
    longer = with_train(method, epochs=3)
    for c in range(len(data)):
        assert close(tree.index(tuned.w, c), trained(longer, server.w, data.train, c, own))


def test_fine_tuning_leaves_no_trace() -> None:
    """The server's stream is FedAvg's, however long clients tune; and what came down is not written to."""
    data = federation(sizes=(30, 21, 12))
    for module in (None, NORMED):
        plain = rounds(bound("fedavg", data, module=module), data).server
        assert same(rounds(bound("fedavg_ft", data, module=module, ft_epochs=4), data).server, plain)
        method = bound("fedavg_ft", data, module=module)
        _, down, client, _, _ = one_round(method, data)
        before = tree.clone(down)
        method.personalise(client, down, data.train, keys(data, "p"))
        assert same(before, down)


def test_fedavg_and_fedprox_predict_with_the_global_model() -> None:
    data = federation()
    for name in ("fedavg", "fedprox"):
        trace = rounds(bound(name, data), data)
        for model in trace.models.values():
            assert all((model[k] == v.numpy()).all() for k, v in trace.server.items())


def test_local_is_isolated_training() -> None:
    """Two rounds of a plain loop per client from the common start, a fresh optimiser each; nothing is sent."""
    data = federation()
    method = bound("local", data)
    server, down, client, _, up = one_round(method, data)
    assert (scalars(server), scalars(down), scalars(up)) == (0, 0, 0)
    start = method.task.init(Key.from_seed(5).fold("init"))
    assert all(same(tree.index(client.w, c), start) for c in range(len(data)))
    expected = [start] * len(data)
    for t in range(2):
        client, up, _ = method.local_update(client, Empty(), data.train, keys(data, "round", t))
        assert type(up) is Empty
        expected = [trained(method, w, data.train, c, keys(data, "round", t)) for c, w in enumerate(expected)]
    assert all(close(tree.index(client.w, c), w) for c, w in enumerate(expected))


def test_no_client_learns_from_another_alone() -> None:
    """With Local, a client's model is the same bit for bit when all others have other data; with FedAvg it is not."""
    data, other = federation(sizes=(30, 21, 12)), federation(sizes=(30, 21, 12))
    first = other.train.size[0]
    other.train.x[first:] += 1.0
    for name, isolated in (("local", True), ("fedavg", False)):
        a, b = (rounds(bound(name, d), d).models["site-0"] for d in (data, other))
        assert all((a[k] == b[k]).all() for k in a) is isolated


def test_local_trains_in_the_rounds_it_takes_part_in() -> None:
    """With half of the clients a round, at least one of seven is never drawn in one round: it stays at the start."""
    data = federation()
    method = bound("local", data)
    start = method.task.init(Key.from_seed(5).fold("init"))
    trace = rounds(method, data, 1, participation=HALF)
    still = [all((m[f"w/{k}"] == v.numpy()).all() for k, v in start.items()) for m in trace.models.values()]
    assert sum(still) == 3
