"""FedAMP: attention in closed form, and a penalty that has a gradient."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedprior import tree
from fedprior.methods.fedamp import FedAMP, Server
from fedprior.methods.local import Alone
from fedprior.protocol import Empty, Weights
from fedprior.rng import Key
from fedprior.training import Train, value_and_grad
from support import HALF, TRAIN, bound, federation, flat, keys, one_round, rounds, same


def fedamp(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> FedAMP:
    method = bound("fedamp", data, train, module, **options)
    assert isinstance(method, FedAMP)
    return method


def models(n: int, seed: int = 1, width: float = 0.3) -> Server:
    gen = torch.Generator().manual_seed(seed)
    return Server({"w": width * torch.randn(n, 2, 3, generator=gen, dtype=torch.float64)})


def test_golden_pair() -> None:
    """Models 0 and 1, σ = 1, α = 0.5: ξ₁₂ = 0.5 e⁻¹ = 0.1839397206, so u = (0.1839397206, 0.8160602794)."""
    method = fedamp(federation(), sigma=1.0, alpha=0.5, scale="absolute")
    server = Server({"w": torch.tensor([[0.0], [1.0]], dtype=torch.float64)})
    u = method.broadcast(server, torch.arange(2)).u["w"].flatten().tolist()
    assert u == pytest.approx([0.1839397206, 0.8160602794], abs=1e-10)
    assert u == pytest.approx([0.5 * math.exp(-1), 1 - 0.5 * math.exp(-1)], abs=1e-15)


def test_attention_against_loops() -> None:
    """ξ_ij = α e^(-‖w_i - w_j‖²/σ)/σ for j ≠ i, the distance over all tensors together; ξ_ii is what is left."""
    method = fedamp(federation(), sigma=2.0, alpha=0.2, scale="absolute")
    gen = torch.Generator().manual_seed(2)
    w = {k: torch.randn(5, *s, generator=gen, dtype=torch.float64) for k, s in (("a", (3,)), ("b", (2, 2)))}
    xi = method.weights(w)
    for i in range(5):
        others = 0.0
        for j in set(range(5)) - {i}:
            gap = sum(float((v[i] - v[j]).square().sum()) for v in w.values())
            expected = 0.2 * math.exp(-gap / 2) / 2
            assert float(xi[i, j]) == pytest.approx(expected, abs=1e-14)
            others += expected
        assert float(xi[i, i]) == pytest.approx(1 - others, abs=1e-14)
    u = method.broadcast(Server(w), torch.arange(5)).u
    for k, v in w.items():
        for i in range(5):
            assert torch.allclose(u[k][i], torch.as_tensor(sum(float(xi[i, j]) * v[j] for j in range(5))), atol=1e-13)


def test_distances_relative_to_their_mean_by_hand() -> None:
    """Scalars 0, 1 and 3: squared distances 1, 9 and 4, mean 14/3; relative 3/14, 27/14 and 12/14.

    With α = ½ and σ = 2, ξ_ij = ½ · ⅓ · e^(-x/2)/2 = e^(-x/2)/12, and ξ_ii what is left to one.
    """
    method = fedamp(federation(), alpha=0.5, sigma=2.0)
    xi = method.weights({"w": torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)})
    near, far, middle = (math.exp(-x / 28) / 12 for x in (3, 27, 12))
    expected = [[1 - near - far, near, far], [near, 1 - near - middle, middle], [far, middle, 1 - far - middle]]
    assert torch.allclose(xi, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_the_attention_does_not_depend_on_the_models_scale(size: float) -> None:
    """Larger networks and later rounds have larger distances; the weights stay the same, and something is shared.

    x is one on average and e^(-x) convex, so by Jensen the mean of e^(-x) over pairs is at least e^(-1): with α = σ = 1
    and eight clients, the mean self weight is at most 1 - 7/8 e^(-1) = 0.678.
    """
    method, server = fedamp(federation(), alpha=1.0, sigma=1.0), models(8)
    xi = method.weights(tree.map(lambda v: v * size, server.w))
    assert torch.allclose(xi, method.weights(server.w), rtol=1e-9, atol=0)
    assert float(xi.diagonal().mean()) <= 1 - 7 / 8 * math.exp(-1)


def test_many_clients_share_as_much_as_few() -> None:
    """Identical models: every ξ_ij = α / (σ N), so that a client's own weight is 1 - α/σ (N-1)/N."""
    for n in (2, 5, 40):
        alike = tree.map(lambda v, n=n: v[:1].expand(n, 2, 3), models(1).w)
        xi = fedamp(federation(), alpha=0.5, sigma=1.0).weights(alike)
        assert xi.diagonal().tolist() == pytest.approx([1 - 0.5 * (n - 1) / n] * n, abs=1e-12)


def test_the_log_has_the_clients_own_weight() -> None:
    data = federation()
    method = fedamp(data)
    server = method.aggregate(method.init_server(Key.from_seed(5), 7), one_round(method, data)[4], torch.arange(7))
    down = method.broadcast(server, torch.tensor([4, 1]))
    assert torch.equal(down.own, method.weights(server.w).diagonal()[[4, 1]])
    logs = rounds(method, data, 3).logs
    assert (np.asarray(logs["self_weight"]) < 0.9).all()


@pytest.mark.parametrize("attention", ["distance", "cosine"])
@pytest.mark.parametrize("alpha", [1e-6, 0.1, 1.0, 50.0])
def test_rows_sum_to_one_and_nothing_is_negative(attention: str, alpha: float) -> None:
    """Also where α (m - 1)/σ > 1, for which ξ_ii would be negative: then the others share all of the mass."""
    for n in (1, 2, 8):
        xi = fedamp(federation(), attention=attention, alpha=alpha).weights(models(n).w)
        assert torch.allclose(xi.sum(1), torch.ones(n).double(), rtol=0, atol=1e-12)
        assert float(xi.min()) >= -1e-15


def test_without_a_step_everyone_keeps_its_model() -> None:
    """α → 0: u_i = w_i."""
    server = models(6)
    u = fedamp(federation(), alpha=1e-14).broadcast(server, torch.arange(6)).u["w"]
    assert torch.allclose(u, server.w["w"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ["distance", "cosine"])
def test_identical_models_stay(attention: str) -> None:
    """All w_i alike: u_i = w_i, whatever the weights, for they sum to one."""
    same_model = Server(tree.map(lambda v: v[:1].expand(6, 2, 3), models(6).w))
    for alpha in (0.01, 0.2, 5.0):
        u = fedamp(federation(), attention=attention, alpha=alpha).broadcast(same_model, torch.arange(6)).u["w"]
        assert torch.allclose(u, same_model.w["w"], rtol=0, atol=1e-14)


def test_nearer_models_weigh_more() -> None:
    """Scalars 0, 1 and 3: for the first, ξ₁₂ / ξ₁₃ = e^(9 - 1) at σ = 1."""
    method = fedamp(federation(), alpha=0.1, sigma=1.0, scale="absolute")
    xi = method.weights({"w": torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)})
    assert float(xi[0, 1] / xi[0, 2]) == pytest.approx(math.exp(8), rel=1e-12)


def test_permuting_clients_permutes_messages() -> None:
    server, order = models(6), torch.tensor([3, 5, 0, 1, 4, 2])
    for attention in ("distance", "cosine"):
        method = fedamp(federation(), attention=attention)
        u = method.broadcast(server, order)
        permuted = method.broadcast(tree.index(server, order), torch.arange(6))
        assert torch.allclose(u.u["w"], permuted.u["w"], rtol=0, atol=1e-14)


def test_cosine_attention_by_hand() -> None:
    """HeurFedAMP: ξ_ii fixed; the others share the rest by softmax of κ cos.

    Models (1, 0), (2, 0) and (0, 3), κ = 2, ξ_ii = 0.4: for the first, cosines 1 and 0, so shares of 0.6 in the ratio
    e² : 1, whatever the lengths are.
    """
    method = fedamp(federation(), attention="cosine", self_weight=0.4, sharpness=2.0)
    xi = method.weights({"w": torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]], dtype=torch.float64)})
    near, far = 0.6 * math.exp(2) / (math.exp(2) + 1), 0.6 / (math.exp(2) + 1)
    expected = torch.tensor([[0.4, near, far], [near, 0.4, far], [0.3, 0.3, 0.4]], dtype=torch.float64)
    assert torch.allclose(xi, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_self_weight_is_the_diagonal(weight: float) -> None:
    method = fedamp(federation(), attention="cosine", self_weight=weight)
    assert method.weights(models(5).w).diagonal().tolist() == pytest.approx([weight] * 5, abs=1e-12)


def test_gradient_of_the_penalty() -> None:
    """∇ = ∇f + (λ/α) (w - u): it changes when u does, by λ/α times as much. (In one library it does not.)"""
    data = federation()
    method = fedamp(data, strength=0.6, alpha=0.2)
    _, down, _, updated, _ = one_round(method, data)
    batch = next(data.train.batches(4))
    shift = tree.map(lambda v: torch.full_like(v, 0.5), tree.clone(down.u))
    far = tree.map(torch.add, down.u, shift)
    value, near = value_and_grad(method.objective, updated.w, down.u, batch)
    _, moved = value_and_grad(method.objective, updated.w, far, batch)
    loss, plain = value_and_grad(lambda w, _, b: method.task.nll(w, b), updated.w, None, batch)
    gap = torch.zeros(7).double()
    for k, g in near.items():
        assert torch.allclose(g - plain[k], 3.0 * (updated.w[k] - down.u[k]), rtol=0, atol=1e-12)
        assert torch.allclose(g - moved[k], torch.tensor(1.5).double(), rtol=0, atol=1e-12)
        gap += (updated.w[k] - down.u[k]).square().flatten(1).sum(1)
    assert torch.allclose(value - loss, 1.5 * gap, rtol=0, atol=1e-12)


def test_the_cloud_model_reaches_the_client() -> None:
    """Training with another u_i ends elsewhere, and nearer to it."""
    data = federation()
    method = fedamp(data, replace(TRAIN, lr=0.01), strength=1.0)
    _, down, client, updated, _ = one_round(method, data)
    other = down._replace(u=tree.map(lambda v: v + 0.5, down.u))
    moved, up, _ = method.local_update(client, other, data.train, keys(data, "round", 0))
    assert same(moved, up)
    assert (tree.sqdist(moved.w, other.u) < tree.sqdist(updated.w, other.u)).all()


def test_without_a_pull_everyone_trains_alone() -> None:
    """λ = 0: from its own model, not from u_i, so over rounds it is Local."""
    data = federation()
    ours = rounds(fedamp(data, strength=0.0, alpha=0.3), data)
    theirs = rounds(bound("local", data), data)
    for k, v in ours.states.items():
        assert torch.allclose(theirs.states[k], v, rtol=0, atol=1e-10)
    method: Any = fedamp(data, strength=0.0)
    local: Any = bound("local", data)
    _, down, _, updated, _ = one_round(method, data)
    own = keys(data, "round", 1)
    again, _, _ = method.local_update(updated, down, data.train, own)
    alone, _, _ = local.local_update(Alone(updated.w, torch.zeros(len(data))), Empty(), data.train, own)
    assert same(again.w, alone.w)


def test_the_server_remembers_the_last_model_of_everyone() -> None:
    """Reporters 2 and 0 of four are written to their places, the others stay."""
    method = fedamp(federation())
    server = Server({"w": torch.arange(4).double()[:, None]})
    up = Weights({"w": torch.tensor([[20.0], [10.0]]).double()})
    assert method.aggregate(server, up, torch.tensor([2, 0])).w["w"].flatten().tolist() == [10.0, 1.0, 20.0, 3.0]
    data = federation()
    trace = rounds(fedamp(data), data, 2, participation=HALF)
    for k, v in trace.states.items():
        trained = (v != 0).flatten(1).any(1)
        assert torch.equal(trace.server[k][trained], v[trained])


def test_running_statistics_have_no_say_in_the_attention() -> None:
    """Distances and the penalty are over parameters; a far running mean changes neither."""
    data = federation(sizes=(30, 21, 12))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    method = fedamp(data, module=normed)
    _, down, _, updated, _ = one_round(method, data)
    far = {k: v + torch.arange(3)[:, None] * 50 if k in method.task.buffers else v for k, v in updated.w.items()}
    assert torch.equal(method.weights(far), method.weights(updated.w))
    batch = next(data.train.batches(4))
    shifted = {k: v + 50 if k in method.task.buffers else v for k, v in down.u.items()}
    here, there = (
        value_and_grad(method.objective, tree.clone(updated.w), u, batch, method.task.buffers)
        for u in (down.u, shifted)
    )
    assert torch.equal(here[0], there[0])
    assert same(here[1], there[1])


def test_everyone_starts_at_the_common_weights() -> None:
    data = federation()
    method = fedamp(data)
    server, down, client, _, _ = one_round(method, data)
    start = method.task.init(Key.from_seed(5).fold("init"))
    assert all(same(tree.index(server.w, i), start) for i in range(7))
    assert torch.allclose(flat(down.u), flat(server.w), rtol=0, atol=1e-14)
    assert same(client.w, down.u)
