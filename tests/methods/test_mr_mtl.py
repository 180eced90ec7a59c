"""MR-MTL: personal models held near their own mean, against a plain loop and closed forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedprior import tree
from fedprior.data.federation import from_arrays
from fedprior.methods._averaging import Up
from fedprior.protocol import Weights
from fedprior.rng import Key
from fedprior.training import Train, value_and_grad
from support import TRAIN, bound, federation, keys, one_round, regression, rounds, same


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def test_it_is_a_plain_loop_over_clients() -> None:
    """Three rounds of two full-batch steps, client after client with torch.optim, and an unweighted mean."""
    data, strength, lr = federation(sizes=(30, 12, 21)), 0.7, 0.3
    train = Train(lr=lr, momentum=0.5, batch_size=100, steps=2)
    method = bound("mr_mtl", data, train, linear(), strength=strength)
    found = rounds(method, data, 3)
    start = method.init_server(Key.from_seed(5), len(data)).w
    mean = {k: v.clone() for k, v in start.items()}
    own = [{k: v.clone().requires_grad_() for k, v in start.items()} for _ in data.clients]
    for _ in range(3):
        for c, w in enumerate(own):
            optimizer, (x, y) = torch.optim.SGD(w.values(), lr=lr, momentum=0.5), data.train.client(c)
            for _ in range(2):
                optimizer.zero_grad()
                loss = F.cross_entropy(x @ w["1.weight"].T + w["1.bias"], y)
                loss = loss + strength / 2 * sum((w[k] - mean[k]).square().sum() for k in w)
                loss.backward()
                optimizer.step()
        mean = {k: torch.stack([w[k].detach() for w in own]).mean(0) for k in mean}
    for k, v in mean.items():
        assert torch.allclose(found.server[f"w/{k}"], v, atol=1e-10)
    for client, w in zip(data.clients, own, strict=True):
        for k, v in w.items():
            np.testing.assert_allclose(found.models[client][f"w/{k}"], v.detach().numpy(), atol=1e-10)


@pytest.mark.parametrize("make", [federation, regression])
def test_without_a_pull_it_is_local(make: Any) -> None:
    """λ = 0: bit for bit, over rounds. (A client that joins later would start at the mean.)"""
    data = make()
    ours, theirs = rounds(bound("mr_mtl", data, strength=0.0), data), rounds(bound("local", data), data)
    assert same(ours.states, {k: v for k, v in theirs.states.items() if k != "strength"})
    assert all((ours.test[c] == theirs.test[c]).all() for c in data.clients)


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_gradient_of_the_objective(strength: float) -> None:
    """∇ = ∇F(w) + λ (w - w̄), running statistics left out."""
    data = federation(sizes=(30, 21, 12))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    method: Any = bound("mr_mtl", data, module=normed, strength=strength)
    _, down, _, updated, _ = one_round(method, data)
    w, batch, buffers = updated.w, next(data.train.batches(6)), method.task.buffers
    mean = {k: v + 100 if k in buffers else v for k, v in down.w.items()}
    _, grads = value_and_grad(method.objective, tree.clone(w), mean, batch, buffers)
    _, plain = value_and_grad(lambda w, _, b: method.task.nll(w, b), tree.clone(w), None, batch, buffers)
    for k in method.task.parameters(w):
        assert torch.allclose(grads[k] - plain[k], strength * (w[k] - mean[k]), rtol=0, atol=1e-11)


def test_every_client_counts_the_same() -> None:
    """Models 1, 2 and 6: the mean is 3, however many examples each has; or by examples, if so asked."""
    data = federation(sizes=(30, 12, 21))
    method = bound("mr_mtl", data)
    server, _, _, _, up = one_round(method, data)
    assert up.n.tolist() == [1, 1, 1]
    assert one_round(bound("mr_mtl", data, weighting="examples"), data)[4].n.tolist() == list(data.train.size)
    values = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    reported = {k: values.view(3, *[1] * v.dim()).expand(3, *v.shape) for k, v in server.w.items()}
    new = method.aggregate(server, Up(reported, up.n), torch.arange(3))
    assert isinstance(new, Weights)
    assert all(torch.allclose(v, torch.full_like(v, 3.0)) for v in new.w.values())


def test_the_mean_estimate_shrinks_to_the_mean() -> None:
    """Mean estimation, the paper's model: F_k(w) = ½ (w - m_k)² has w_k = (m_k + λ w̄) / (1 + λ) and w̄ = mean m_k.

    As regression on no input (x = 0) with the variance's output held by symmetry: two sites whose targets are ±1 around
    their means 1 and 3, λ = 1 in units of the mean's gradient. The predicted means keep their average and draw nearer.
    """
    y = {"a": np.array([0.0, 2.0] * 10), "b": np.array([2.0, 4.0] * 10)}
    data = from_arrays({c: (np.zeros((20, 1)), v) for c, v in y.items()}, target="number").to(torch.float64)
    train = Train(lr=0.2, batch_size=100, steps=40)
    gaps = []
    for strength in (0.0, 0.5, 2.0):
        module = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
        trace = rounds(bound("mr_mtl", data, train, module, strength=strength), data, 40)
        a, b = (float(trace.test[c][0, 0]) for c in ("a", "b"))
        assert (a + b) / 2 == pytest.approx(2.0, abs=0.02)
        gaps.append(b - a)
    assert gaps[0] == pytest.approx(2.0, abs=0.02)  # λ = 0: each its own mean
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_a_client_goes_on_from_its_own_model() -> None:
    data = federation()
    method = bound("mr_mtl", data)
    _, down, client, updated, _ = one_round(method, data)
    again = method.local_update(updated, down, data.train, keys(data, "round", 1))[0]
    fresh = method.local_update(client, down, data.train, keys(data, "round", 1))[0]
    assert not same(again, fresh)
    still = bound("mr_mtl", data, replace(TRAIN, steps=0))
    assert same(still.local_update(updated, down, data.train, keys(data))[0], updated)
