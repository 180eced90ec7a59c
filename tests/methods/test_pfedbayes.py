"""pFedBayes: its KL is torch's, a global distribution that agrees is not moved, and noise is standard."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

from fedprior import tree
from fedprior.errors import FedpriorWarning
from fedprior.methods.pfedbayes import Gaussian, PFedBayes, Up, _flat
from fedprior.rng import Key
from fedprior.training import Train, value_and_grad
from fedprior.tree import Params
from support import TRAIN, bound, federation, keys, one_round, rounds, same, scalars, with_train

ONCE = Train(lr=0.1, batch_size=100, steps=1)


def pfedbayes(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> PFedBayes:
    method = bound("pfedbayes", data, train, module, **options)
    assert isinstance(method, PFedBayes)
    return method


def random_like(g: Gaussian, seed: int) -> Gaussian:
    gen = torch.Generator().manual_seed(seed)
    return tree.map(lambda v: 0.3 * torch.randn(v.shape, generator=gen, dtype=v.dtype), g)


def torch_kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q ‖ p) of the whole network by torch.distributions, for one client."""
    ours, theirs = ({k: Normal(g.mu[k], F.softplus(g.rho[k])) for k in g.rho} for g in (q, p))
    return torch.stack([kl_divergence(ours[k], theirs[k]).sum() for k in ours]).sum()


def test_kl_is_torchs() -> None:
    data = federation()
    method = pfedbayes(data)
    down = one_round(method, data)[1]
    q, p = random_like(down, 1), random_like(down, 2)
    ours = method.kl(_flat(q), _flat(p))
    for c in range(len(data)):
        assert float(ours[c]) == pytest.approx(float(torch_kl(tree.index(q, c), tree.index(p, c))), rel=1e-12)


def test_kl_by_hand() -> None:
    """q = N(1, 1), p = N(0, 2²): log 2 + (1 + 1)/8 - 1/2 = 0.4431471806, with σ = softplus(ρ), ρ = log(e^σ - 1)."""
    method = pfedbayes(federation())

    def gaussian(mu: float, sigma: float) -> Params:
        rho = math.log(math.expm1(sigma))
        return {f"{k}/w": torch.tensor([[v]], dtype=torch.float64) for k, v in (("mu", mu), ("rho", rho))}

    kl = method.kl(gaussian(1.0, 1.0), gaussian(0.0, 2.0))
    assert float(kl) == pytest.approx(math.log(2) + 0.25 - 0.5, abs=1e-12)


def test_a_prior_that_agrees_is_not_moved() -> None:
    """q = p: the KL is 0 and so are its gradients by both; without data neither distribution moves."""
    data = federation()
    method = pfedbayes(data)
    down = one_round(method, data)[1]
    q = random_like(down, 1)
    same_q = _flat(q)
    for value, grads in (
        value_and_grad(lambda w, other, _: method.kl(w, other), same_q, same_q, None),
        value_and_grad(lambda w, other, _: method.kl(other, w), same_q, same_q, None),
    ):
        assert float(value.abs().max()) < 1e-12
        assert len(grads) == 2 * len(q.rho)
        assert max(float(g.abs().max()) for g in grads.values()) < 1e-12


def test_without_data_equal_distributions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likelihood is switched off, so only the KL pulls, and it is at its minimum: p and q stay through a run."""
    data = federation()
    method = pfedbayes(data, zeta=5.0)
    monkeypatch.setattr(method.task, "nll", lambda w, batch: torch.zeros(len(batch.y), dtype=torch.float64))
    _, down, _, updated, up = one_round(method, data)
    for found in (updated, Gaussian(up.mu, up.rho)):
        for a, b in zip(tree.leaves(found), tree.leaves(down), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("train", [TRAIN, replace(TRAIN, weight_decay=0.1), Train(optimizer="adam", lr=0.01, epochs=2)])
def test_without_kl_the_global_distribution_never_moves(train: Train) -> None:
    """ζ = 0: p's step has no gradient, so what comes back is what came down and the server stays; q trains on.

    Weight decay is part of how a network is trained; p is trained by nothing but the KL, so it has no effect on p.
    """
    data = federation()
    method = pfedbayes(data, train, zeta=0.0)
    server, down, client, updated, up = one_round(method, data)
    assert same(Gaussian(up.mu, up.rho), tree.clone(down))
    assert not same(updated, tree.clone(client))
    moved = method.aggregate(server, up, torch.arange(len(data)))
    assert all(
        torch.allclose(a, b, rtol=0, atol=1e-15) for a, b in zip(*map(tree.leaves, (moved, server)), strict=True)
    )


def test_one_step_against_torch_distributions() -> None:
    """q ← q - η ∇[CE(μ + σ ε) + ζ/n KL(q ‖ p)], then p ← p - η ∇ ζ/n KL(q_new ‖ p), with n the client's examples.

    ε is taken from the method's draw; the rest is torch's module, loss and distributions.
    """
    data = federation()
    method = pfedbayes(data, ONCE, zeta=3.0, scale=0.5)
    down = one_round(method, data)[1]
    q, p, own = random_like(down, 1), random_like(down, 2), keys(data, "round", 0)
    updated, up, logs = method.local_update(q, p, data.train, own)
    drawn = method.drawn(_flat(q), own.fold("descend").fold("step", 0))
    for c, n in enumerate(data.train.size):
        x, y = data.train.client(c)
        noise = {k: (drawn[k][c] - q.mu[k][c]) / F.softplus(q.rho[k][c]) for k in drawn}
        ours, prior = (tree.map(lambda v: v.clone().requires_grad_(), tree.index(g, c)) for g in (q, p))
        w = {k: ours.mu[k] + F.softplus(ours.rho[k]) * noise[k] for k in noise}
        loss = F.cross_entropy(functional_call(method.task.module, w, (x,)), y) + 3.0 / n * torch_kl(ours, prior)
        assert float(logs["loss"][c]) == pytest.approx(loss.item(), abs=1e-10)
        slopes = torch.autograd.grad(loss, tree.leaves(ours))
        new = Gaussian(*(dict(zip(part, slopes[i : i + len(part)], strict=True)) for i, part in enumerated(ours)))
        new = tree.map(lambda v, g: (v - 0.1 * g).detach(), ours, new)
        for a, b in zip(tree.leaves(tree.index(updated, c)), tree.leaves(new), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10)
        slopes = torch.autograd.grad(3.0 / n * torch_kl(new, prior), tree.leaves(prior))
        for a, b, g in zip(
            tree.leaves(tree.index(Gaussian(up.mu, up.rho), c)), tree.leaves(prior), slopes, strict=True
        ):
            assert torch.allclose(a, b - 0.1 * g, rtol=0, atol=1e-10)
        left = torch_kl(new, tree.index(Gaussian(up.mu, up.rho), c))
        assert float(logs["kl"][c]) == pytest.approx(float(left), rel=1e-9)


def enumerated(g: Gaussian) -> list[tuple[int, Params]]:
    """The two halves with where each begins among the leaves."""
    return [(0, g.mu), (len(g.mu), g.rho)]


def test_the_prior_moves_towards_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    """The KL's step on p: without data, the gap between the means shrinks, and p comes to q as q comes to p."""
    data = federation()
    method = pfedbayes(data, replace(TRAIN, lr=0.01, momentum=0.0), zeta=1.0)
    monkeypatch.setattr(method.task, "nll", lambda w, batch: torch.zeros(len(batch.y), dtype=torch.float64))
    down = one_round(method, data)[1]
    q = Gaussian(tree.map(lambda v: v + 0.1, down.mu), down.rho)
    updated, up, _ = method.local_update(q, down, data.train, keys(data, "round", 0))
    for k in q.mu:
        assert ((updated.mu[k] < q.mu[k]) & (up.mu[k] > down.mu[k]) & (updated.mu[k] > up.mu[k])).all()


@pytest.mark.parametrize(
    "module", [None, nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))]
)
def test_the_uplink_has_two_numbers_per_weight(module: nn.Module | None) -> None:
    """2d floats and a count up, 2d down; running statistics are no weights and come on top."""
    data = federation(sizes=(30, 21))
    method = pfedbayes(data, module=module)
    _, down, _, updated, up = one_round(method, data)
    statistics = 0 if module is None else 12
    assert scalars(tree.index(up, [0])) == 2 * method.task.size + statistics + 1
    assert scalars(tree.index(down, [0])) == 2 * method.task.size + statistics
    assert set(up.rho) == set(method.task.parameters(up.mu))
    assert not same(up.rho, updated.rho)  # p's, not q's


def test_noise_is_standard() -> None:
    """(w - μ)/σ over 40 draws of 7 clients' 51 weights: mean 0 ± 0.04 and variance 1 ± 0.05, at four standard errors.

    (One public version draws it with a standard deviation of 0.001.) Clients and steps have noise of their own.
    """
    data = federation()
    method = pfedbayes(data, scale=0.3)
    flat = _flat(tree.expand(method.init_server(Key.from_seed(5)), len(data)))

    def noise(step: int) -> Tensor:
        w = method.drawn(flat, keys(data).fold("step", step))
        return torch.cat([((w[k] - flat[f"mu/{k}"]) / 0.3).flatten(1) for k in w], 1)

    draws = torch.stack([noise(s) for s in range(40)])
    assert draws.shape == (40, 7, 51)
    assert abs(float(draws.mean())) < 0.04
    assert float(draws.var()) == pytest.approx(1, abs=0.05)
    assert torch.equal(noise(3), draws[3])
    assert len(set(draws.flatten().tolist())) == draws.numel()


def test_initial_width() -> None:
    """softplus(ρ) = σ₀, around the common initial weights; a client joins with q = p."""
    data = federation()
    for scale in (1.0, 0.1, 0.01):
        method = pfedbayes(data, scale=scale)
        server, down, client, _, _ = one_round(method, data)
        assert all(torch.allclose(F.softplus(v), torch.tensor(scale).double(), rtol=1e-6) for v in server.rho.values())
        assert same(server.mu, method.task.init(Key.from_seed(5).fold("init")))
        assert same(client, down)


def test_the_posterior_is_never_reset() -> None:
    """Without steps q is what the client left, whatever comes down, and that is what it predicts with."""
    data = federation()
    method = pfedbayes(data)
    _, down, _, updated, _ = one_round(method, data)
    still = with_train(method, steps=0)
    after, up, _ = still.local_update(updated, random_like(down, 3), data.train, keys(data, "round", 1))
    assert same(after, updated)
    assert same(Gaussian(up.mu, up.rho), random_like(down, 3))  # p starts from what came down
    assert same(method.personalise(updated, random_like(down, 4), data.train, keys(data)), updated)


def test_the_server_averages_parameters() -> None:
    """μ and ρ by example counts, not σ: n = (1, 3), values (0, 4) give 3."""
    method = pfedbayes(federation())
    value = {"w": torch.tensor([[0.0], [4.0]]).double()}
    up = Up(value, value, torch.tensor([1.0, 3.0]).double())
    mean = method.aggregate(Gaussian(value, value), up, torch.arange(2))
    assert (mean.mu["w"].tolist(), mean.rho["w"].tolist()) == ([3.0], [3.0])


def test_prediction_at_the_mean_and_by_averaging() -> None:
    """At the mean: the network μ. By averaging: the mean of the probabilities of the drawn networks."""
    data = federation()
    x, own = next(data.test.batches(50)).x, keys(data, "predict")
    mean, bma = (pfedbayes(data, prediction=p, prediction_draws=4) for p in ("mean", "bma"))
    q = one_round(mean, data)[3]
    assert torch.equal(mean.predict(q, x, own), mean.task.predictive(q.mu, x))
    networks = [bma.drawn(_flat(q), own.fold("bma", k)) for k in range(4)]
    expected = torch.stack([bma.task.predictive(w, x).exp() for w in networks]).mean(0).log()
    assert torch.allclose(bma.predict(q, x, own), expected, rtol=0, atol=1e-12)
    sharp = Gaussian(q.mu, tree.map(lambda v: torch.full_like(v, -40.0), q.rho))
    assert torch.allclose(bma.predict(sharp, x, own), mean.predict(q, x, own), rtol=0, atol=1e-12)


def test_running_statistics_of_the_global_network_follow_the_clients() -> None:
    """The global distribution is over networks that predict: their running statistics are not those of the start."""
    data = federation(sizes=(30, 21))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    trace = rounds(pfedbayes(data, module=normed), data)
    assert (trace.states["mu/2.running_mean"] != 0).all()
    assert (trace.server["mu/2.running_mean"] != 0).all()


def test_the_weight_of_the_kl_is_bounded_with_sgd() -> None:
    """ζ / n = 0.5 / 2 at two examples; lr λ = 0.1 · 0.25 / 0.01² = 250 would diverge. Bounded, lr λ = 1 + momentum.

    The bound is 0.01² · (1 + 0.5) / 0.1 = 0.0015; at 1,000 examples ζ / n = 0.0005 is below it.
    """
    n = torch.tensor([2.0, 1000.0], dtype=torch.float64)
    method = pfedbayes(federation(), Train(lr=0.1, momentum=0.5), scale=0.01)
    assert method.kl_weight(n).tolist() == pytest.approx([0.0015, 0.0005])
    for free in (Train(lr=0.1, optimizer="adam"), Train(lr=0.1, clip=1.0)):
        assert pfedbayes(federation(), free, scale=0.01).kl_weight(n).tolist() == [0.25, 0.0005]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_narrow_prior_does_not_diverge(momentum: float) -> None:
    """Clients of 3 to 28 examples, lr ζ / (n σ₀²) from 18 to 167: everything stays finite and near where it started."""
    data = federation()
    method = pfedbayes(data, Train(lr=0.1, momentum=momentum, epochs=5, batch_size=4), scale=0.01)
    with pytest.warns(FedpriorWarning, match="bounds the weight of the KL"):
        found = rounds(method, data, 3).vector()
    assert np.isfinite(found).all()
    assert np.abs(found).max() < 100
