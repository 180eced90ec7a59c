"""pFedVEM against its equations: confidence, the E-step and the base in plain torch, aggregation, prediction."""

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

from fedprior import tree
from fedprior.bayes.gaussian import deviations, inverse_softplus, kl_to_isotropic
from fedprior.data.client import schedule
from fedprior.data.federation import Federation
from fedprior.data.target import Classes
from fedprior.engine import Engine
from fedprior.engine.stack import finite
from fedprior.errors import FedpriorError
from fedprior.experiment.participation import Participation
from fedprior.methods.pfedvem import Client, PFedVEM, Prior, Up
from fedprior.models import build as build_model
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.protocol import Weights
from fedprior.rng import Key
from fedprior.training import Train
from fedprior.tree import Params
from support import TRAIN, bound, federation, flat, keys, one_round, same, scalars, with_train

SIZES = (21, 8, 33)
NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))  # the head is "3"
HEAD = 3 * 6 + 3


def pfedvem(data: Federation, train: Train = TRAIN, module: nn.Module | None = NETWORK, **options: Any) -> PFedVEM:
    method = bound("pfedvem", data, train, module, **{"head_lr": 0.01, "head_steps": 4, "draws": 3} | options)
    assert isinstance(method, PFedVEM)
    return method


def second_round(method: PFedVEM, data: Federation) -> tuple[Client, Prior]:
    """Clients and message as a second round finds them: μ ≠ w, σ no longer constant."""
    server, _, _, client, up = one_round(method, data)
    server = method.aggregate(server, tree.index(up, [0, 2]), torch.tensor([0, 2]))
    return client, tree.expand(server, len(data))


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def two(bias: tuple[float, ...], weight: tuple[float, ...]) -> Params:
    """A head of d = 2 numbers, one in each of its tensors; a client per entry."""
    return {"bias": vector(*bias)[:, None], "weight": vector(*weight)[:, None, None]}


def widths(*sigma: float) -> Params:
    """π of clients whose σ is the same everywhere."""
    pi = tuple(inverse_softplus(s) for s in sigma)
    return two(pi, pi)


# M-step (Eq. 8)


def test_confidence_by_hand() -> None:
    """d = 2, w = 0.  A: μ = (1, 2), σ = (1, 1): ρ² = (2 + 5)/2 = 3.5, τ = 2/7 = 0.2857142857.

    B: μ = (0, 1), σ = (½, ½): ρ² = (½ + 1)/2 = ¾, τ = 4/3. One number for the weights and the bias together.
    """
    method = pfedvem(federation(SIZES))
    rho2, _ = method.variances(two((1, 0), (2, 1)), widths(1, 0.5), two((0, 0), (0, 0)))
    assert torch.allclose(rho2, vector(3.5, 0.75), rtol=1e-12)
    assert torch.allclose(1 / rho2, vector(0.2857142857, 1.3333333333), rtol=0, atol=1e-10)


def test_aggregation_by_hand() -> None:
    """τ = (2/7, 4/3) are weights 3/17 and 14/17: w = 3/17 (1, 2) + 14/17 (0, 1) = (0.1764705882, 1.1764705882).

    Bases 0 and 1 with n = (30, 10): ¼, by example counts and not by confidence.
    """
    method = pfedvem(federation(SIZES))
    up = Up(two((1, 0), (2, 1)), vector(2 / 7, 4 / 3), {"base": vector(0, 1)[:, None]}, vector(30, 10))
    zero = Prior(tree.index(two((9,), (9,)), 0), {"base": vector(9)})
    new = method.aggregate(zero, up, torch.arange(2))
    assert float(new.w["bias"]) == pytest.approx(0.1764705882, abs=1e-10)
    assert float(new.w["weight"]) == pytest.approx(1.1764705882, abs=1e-10)
    assert float(new.base["base"]) == 0.25


def test_kl_at_the_m_step() -> None:
    """With ρ² of the M-step, KL = -(d/2) log τ - Σ log σ.

    A: -log 2/7 = 1.2527629685;  B: -log 4/3 + 2 log 2 = log 3 = 1.0986122887. Both as torch.distributions has it.
    """
    method = pfedvem(federation(SIZES))
    mu, pi, w = two((1, 0), (2, 1)), widths(1, 0.5), two((0, 0), (0, 0))
    rho2 = method.variances(mu, pi, w)[0]
    kl = kl_to_isotropic(mu, deviations(pi), w, rho2)
    assert torch.allclose(kl, vector(1.2527629685, 1.0986122887), rtol=0, atol=1e-10)
    library = kl_divergence(Normal(flat(mu), flat(deviations(pi))), Normal(flat(w), rho2.sqrt()[:, None])).sum(1)
    assert torch.allclose(kl, library, rtol=1e-12)


def test_confidence_minimises_the_kl() -> None:
    """ρ of the M-step is the best: KL is larger at 1.01 ρ and at 0.99 ρ."""
    data = federation(SIZES)
    method = pfedvem(data)
    client, down = second_round(method, data)
    rho2 = method.variances(client.mu, client.pi, down.w)[0]

    def kl(factor: float) -> Tensor:
        return kl_to_isotropic(client.mu, deviations(client.pi), down.w, factor**2 * rho2)

    assert (kl(1.01) > kl(1)).all()
    assert (kl(0.99) > kl(1)).all()


def test_confidence_of_the_ablations() -> None:
    """Uncertainty only: 1/τ = Σσ²/d: A 1, B ¼.  Deviation only: 1/τ = ‖μ - w‖²/d: A 5/2, B ½."""
    data = federation(SIZES)
    arguments = two((1, 0), (2, 1)), widths(1, 0.5), two((0, 0), (0, 0))
    for confidence, expected in (("uncertainty_only", vector(1, 0.25)), ("deviation_only", vector(2.5, 0.5))):
        rho2, doubt = pfedvem(data, confidence=confidence).variances(*arguments)
        assert torch.allclose(doubt, expected, rtol=1e-12)
        assert torch.allclose(rho2, vector(3.5, 0.75), rtol=1e-12), "the prior's is that of Eq. 8 all the same"


@pytest.mark.parametrize("confidence", ["both", "uncertainty_only", "deviation_only"])
def test_the_variance_has_a_floor(confidence: str) -> None:
    """ρ² ≥ 1e-8, so no confidence is infinite: σ ≈ 1e-13 at π = -30, and μ = w."""
    method = pfedvem(federation(SIZES), confidence=confidence)
    mu, pi = two((1,), (2,)), two((-30,), (-30,))
    assert [v.tolist() for v in method.variances(mu, pi, mu)] == [[1e-8], [1e-8]]


@pytest.mark.parametrize("confidence", ["uncertainty_only", "deviation_only"])
def test_an_ablation_concerns_the_weight_at_the_server_alone(confidence: str) -> None:
    """The head is fitted under the ρ² of Eq. 8 whatever weighs it: with ‖μ - w‖²/d the KL of a wide q explodes."""
    data = federation(SIZES)
    method = pfedvem(data, confidence=confidence)
    client, down = second_round(method, data)
    own = keys(data, "round", 1)
    updated, up, _ = method.local_update(client, down, data.train, own)
    spread, gap = flat(deviations(client.pi)).square().sum(1), (flat(client.mu) - flat(down.w)).square().sum(1)
    assert torch.allclose(up.tau, HEAD / (spread if confidence == "uncertainty_only" else gap), rtol=1e-12)
    whole, other, _ = replace(method, confidence="both").local_update(client, down, data.train, own)
    assert same(tree.clone(updated), tree.clone(whole))
    assert (up.tau != other.tau).all()


def test_an_ablation_in_the_prior_too() -> None:
    """Uncertainty only: A 1, B ¼ in the KL as at the server. The deviation alone diverges there, and is refused."""
    data = federation(SIZES)
    arguments = two((1, 0), (2, 1)), widths(1, 0.5), two((0, 0), (0, 0))
    method = pfedvem(data, confidence="uncertainty_only", ablated="everywhere")
    for variance in method.variances(*arguments):
        assert torch.allclose(variance, vector(1, 0.25), rtol=1e-12)
    with pytest.raises(FedpriorError, match="diverges in the second round: use ablated"):
        pfedvem(data, confidence="deviation_only", ablated="everywhere")


def test_uncertainty_and_deviation_are_logged_in_one_unit() -> None:
    """√Tr Σ and ‖μ - w‖ after training, whose squares over d add up to next round's ρ² if w does not move."""
    data = federation(SIZES)
    method = pfedvem(data)
    _, down, client, _, _ = one_round(method, data)
    updated, _, logs = method.local_update(client, down, data.train, keys(data, "r"))
    rho2, _ = method.variances(updated.mu, updated.pi, down.w)
    assert torch.allclose((logs["uncertainty"] ** 2 + logs["deviation"] ** 2) / HEAD, rho2, rtol=1e-10)


def test_deviation_only_begins_with_equal_weights() -> None:
    """In the first round ‖μ - w‖ = 0 for all: the server takes the plain mean, and everything is finite."""
    data = federation(SIZES)
    method = pfedvem(data, confidence="deviation_only")
    server, _, _, client, up = one_round(method, data)
    assert len(set(up.tau.tolist())) == 1
    new = method.aggregate(server, up, torch.arange(3))
    assert torch.allclose(flat(tree.expand(new.w, 1))[0], flat(up.mu).mean(0), rtol=1e-12)
    for leaf in tree.leaves({"c": client, "u": up, "s": new}):
        assert torch.isfinite(leaf).all()


# Initialisation


@pytest.mark.parametrize("scale", [1.0, 0.316, 0.1, 0.01])
def test_first_round(scale: float) -> None:
    """μ = w and σ = s₀, so ρ² = s₀² for all, KL = 0, and the first server step is the plain mean over the reporters.

    `scale` is a standard deviation: τ = 1/s₀², not 1/s₀.
    """
    data = federation(SIZES)
    method = pfedvem(data, scale=scale, head_lr=1e-4 * scale**2)
    server, down, client, updated, up = one_round(method, data)
    assert torch.allclose(flat(deviations(client.pi)), torch.full((3, HEAD), scale, dtype=torch.float64), rtol=1e-12)
    assert same(tree.clone(client.mu), tree.clone(down.w))
    assert torch.allclose(up.tau, vector(*[scale**-2] * 3), rtol=1e-12)
    rho2 = method.variances(client.mu, client.pi, down.w)[0]
    assert kl_to_isotropic(client.mu, deviations(client.pi), down.w, rho2).abs().max() < 1e-11
    new = method.aggregate(server, tree.index(up, [2, 0]), torch.tensor([2, 0]))
    assert torch.allclose(flat(tree.expand(new.w, 1))[0], flat(updated.mu)[[0, 2]].mean(0), rtol=1e-12)
    assert (flat(updated.mu)[0] != flat(updated.mu)[2]).all()


def test_the_first_head_is_standard_normal() -> None:
    """w⁰ ~ N(0, 1): 128·60 + 60 entries have mean 0 ± 5/√7740 and variance 1 ± 5√(2/7740).

    The layer's own initialisation stays below 1/√128. The base is the network's own in both.
    """
    module = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 60))
    task = Task(module, Categorical(60), dtype=torch.float64)
    normal, default = (
        PFedVEM(task=task, head_init=init).init_server(Key.from_seed(5)) for init in ("normal", "default")
    )
    w = flat(tree.expand(normal.w, 1))
    assert abs(w.mean()) < 5 / math.sqrt(7740)
    assert abs(w.var() - 1) < 5 * math.sqrt(2 / 7740)
    assert flat(tree.expand(default.w, 1)).abs().max() <= 1 / math.sqrt(128)
    assert same(normal.base, default.base)
    whole = task.init(Key.from_seed(5).fold("init"))
    assert same({**default.base, **default.w}, whole)


def test_published_options() -> None:
    """The authors' CIFAR10 configuration: η_h 0.001, momentum 0.9, R_h 10, K 5, s₀ 1, predictions by the mean."""
    method = pfedvem(federation(SIZES))
    assert (method.width, method.published) == (1.0, True)
    method = PFedVEM()
    assert method.draws == 5
    assert (method.head_lr, method.head_momentum, method.head_steps) == (0.001, 0.9, 10)
    assert (method.confidence, method.base_head, method.prediction) == ("both", "sampled", "mean")
    assert method.hints.everyone_trains


# E-step and base


def draws(method: PFedVEM, like: Params, own: Any) -> Params:
    """The noise ε that heads are made of, [C, K, ...]."""
    zero = tree.zeros_like(like)
    return method.heads(zero, tree.map(torch.ones_like, like), own, method.draws)


def test_heads_are_draws_of_the_posterior() -> None:
    """μ + σ ε: over K = 20000 draws mean μ ± 5σ/√K and standard deviation σ (1 ± 5/√2K); clients differ."""
    data, K = federation(SIZES), 20000
    method = pfedvem(data)
    client, _ = second_round(method, data)
    sigma = tree.map(
        lambda leaf: leaf * torch.linspace(0.1, 2, leaf[0].numel()).view_as(leaf[0]), deviations(client.pi)
    )
    heads = method.heads(client.mu, sigma, keys(data, "x"), K)
    for k, head in heads.items():
        assert head.shape == (3, K, *client.mu[k].shape[1:])
        assert ((head.mean(1) - client.mu[k]).abs() < 5 * sigma[k] / math.sqrt(K)).all()
        assert ((head.std(1) / sigma[k] - 1).abs() < 5 / math.sqrt(2 * K)).all()
    eps = flat(draws(replace(method, draws=20), client.mu, keys(data, "x")))
    assert (eps[0] != eps[1]).all()
    assert len(set(eps[0].tolist())) == eps.shape[1], "no entry shares its noise with another"


def plain_e_step(method: PFedVEM, client: Client, down: Prior, data: Federation, c: int, own: Any) -> dict[str, Tensor]:
    """Steps 7 to 10 of the algorithm for one client: torch.optim, torch.distributions, a loop over the K heads."""
    x, y = data.train.client(c)
    first = {k: v[c].clone().requires_grad_() for k, v in down.base.items()}
    w = {k: v[c] for k, v in down.w.items()}
    mu = {k: v[c].clone().requires_grad_() for k, v in client.mu.items()}
    pi = {k: v[c].clone().requires_grad_() for k, v in client.pi.items()}
    old = [F.softplus(p.detach()) for p in pi.values()]
    d = sum(p.numel() for p in old)
    gap = sum(float((mu[k].detach() - w[k]).square().sum()) for k in w)
    rho = math.sqrt((sum(float(s.square().sum()) for s in old) + gap) / d)

    def nll(x: Tensor, y: Tensor, eps: Params, spread: Params, reduction: str) -> Tensor:
        z = torch.tanh(x @ first["1.weight"].T + first["1.bias"])
        total = torch.zeros((), dtype=torch.float64)
        for k in range(len(eps["3.bias"][c])):
            head = {name: mu[name] + spread[name] * eps[name][c][k] for name in mu}
            total = total + F.cross_entropy(z @ head["3.weight"].T + head["3.bias"], y, reduction=reduction)
        return total / len(eps["3.bias"][c])

    optimizer = torch.optim.SGD([*mu.values(), *pi.values()], lr=method.head_lr, momentum=method.head_momentum)
    for step in range(method.head_steps):
        optimizer.zero_grad()
        sigma = {k: F.softplus(p) for k, p in pi.items()}
        loss = nll(x, y, draws(method, client.mu, own.fold("head", step)), sigma, "sum")
        for k, mean in mu.items():
            loss = loss + kl_divergence(Normal(mean, sigma[k]), Normal(w[k], rho)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    sigma = {k: F.softplus(p.detach()) for k, p in pi.items()}
    base = torch.optim.SGD(first.values(), lr=method.train.lr, momentum=method.train.momentum)
    plan = schedule(data.train, own.fold("base"), method.train.budget(method.task))
    for s in range(method.train.budget(method.task).length(len(y))):
        rows = torch.from_numpy(plan.rows[s, c, : plan.counts[s, c]])
        eps = draws(method, client.mu, own.fold("base", "step", s))
        if method.base_head == "mean":
            eps = tree.zeros_like(eps)
        base.zero_grad()
        nll(data.train.x[rows], data.train.y[rows], eps, sigma, "mean").backward()  # type: ignore[no-untyped-call]
        base.step()
    parts = {"mu": mu, "pi": pi, "base": first}
    found = {f"{name}/{k}": v.detach() for name, part in parts.items() for k, v in part.items()}
    return found | {"rho": vector(rho), "loss": loss.detach()}


@pytest.mark.parametrize("base_head", ["sampled", "mean"])
def test_a_round_in_plain_torch(base_head: str) -> None:
    """Algorithm 1 written a second time for a single client, with the same noise and the same batches.

    τ from the old posterior and the new w; the data term of the head a sum, that of the base a mean; full batch for
    the head; momentum on both, fresh each round; new heads at every step.
    """
    data = federation(SIZES)
    method = pfedvem(data, base_head=base_head)
    client, down = second_round(method, data)
    own = keys(data, "round", 1)
    updated, up, logs = method.local_update(client, down, data.train, own)
    for c in range(3):
        plain = plain_e_step(method, client, down, data, c, own)
        for path, leaf in tree.items(updated):
            assert torch.allclose(leaf[c], plain[path], rtol=0, atol=1e-10), path
        assert float(up.tau[c]) == pytest.approx(float(plain["rho"]) ** -2, rel=1e-10)
        assert float(logs["loss"][c]) == pytest.approx(float(plain["loss"]) / data.train.size[c], rel=1e-10)


def test_sampled_and_mean_heads_train_different_bases() -> None:
    """The posterior is the same, for it is fitted first; the base differs unless σ ≈ 0."""
    data = federation(SIZES)
    sampled, mean = (pfedvem(data, base_head=b) for b in ("sampled", "mean"))
    client, down = second_round(sampled, data)
    own = keys(data, "round", 1)
    a, b = (m.local_update(client, down, data.train, own)[0] for m in (sampled, mean))
    assert same(a.mu, b.mu)
    assert same(a.pi, b.pi)
    assert (flat(a.base) - flat(b.base)).abs().max() > 1e-3
    sure = tree.map(lambda leaf: torch.full_like(leaf, -30), client.pi)
    c, d = (m.fit_base(down.base, client.mu, sure, data.train, own) for m in (sampled, mean))
    assert torch.allclose(flat(c), flat(d), atol=1e-10)


def test_sure_heads_have_the_loss_of_the_mean_head() -> None:
    """At π = -30, σ ≈ 1e-13: the Monte-Carlo loss is the network's own, whatever K is."""
    data = federation(SIZES)
    method = pfedvem(data)
    client, down = second_round(method, data)
    batch = next(data.train.batches(100))
    z = method.task.features(down.base, batch.x)
    exact = method.task.losses({**down.base, **client.mu}, batch)
    sure = tree.map(lambda leaf: torch.full_like(leaf, -30), client.pi)
    for K in (1, 2, 7):
        heads = method.heads(client.mu, deviations(sure), keys(data, "x"), K)
        assert torch.allclose(method.head_losses(heads, z, batch.y), exact, atol=1e-10)
    one, seven = (
        replace(method, draws=K).fit_head(
            Client(client.mu, sure, client.base), down, torch.ones(3).double(), data.train, keys(data, "x")
        )
        for K in (1, 7)
    )
    assert torch.allclose(flat(one[0]), flat(seven[0]), atol=1e-10)


def test_the_monte_carlo_loss_averages_losses() -> None:
    """1/K Σ_k CE(head_k): the mean of the losses of K networks, not the loss of a mean."""
    data = federation(SIZES)
    method = pfedvem(data)
    client, down = second_round(method, data)
    batch = next(data.train.batches(100))
    heads = method.heads(client.mu, deviations(client.pi), keys(data, "x"), 4)
    each = [method.task.losses({**down.base, **tree.index(_swap(heads), k)}, batch) for k in range(4)]
    ours = method.head_losses(heads, method.task.features(down.base, batch.x), batch.y)
    assert torch.allclose(ours, torch.stack(each).mean(0), atol=1e-12)


def _swap(heads: Params) -> Params:
    return tree.map(lambda leaf: leaf.transpose(0, 1), heads)


def test_one_output_means_two_classes() -> None:
    """A head with a single output z has logits (0, z): the same loss as binary cross-entropy."""
    data = replace(federation(SIZES), target=Classes.numbered(2))
    data = replace(data, train=replace(data.train, y=data.train.y % 2))
    method = pfedvem(data, module=nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)))
    client, down = second_round(method, data)
    batch = next(data.train.batches(100))
    z = method.task.features(down.base, batch.x)
    heads = method.heads(client.mu, deviations(client.pi), keys(data, "x"), 3)
    logits = torch.einsum("cnf,ckf->cnk", z, heads["3.weight"][:, :, 0]) + heads["3.bias"][:, None, :, 0]
    target = batch.y[..., None].expand_as(logits).double()
    expected = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(2)
    assert torch.allclose(method.head_losses(heads, z, batch.y), expected, atol=1e-12)


def test_a_head_without_bias() -> None:
    """d then counts the weights alone; the other methods take such a network, and so does this one."""
    data = federation(SIZES)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False))
    method = pfedvem(data, module=module)
    _, _, _, client, up = one_round(method, data)
    assert flat(client.mu).shape == (3, 18)
    assert torch.isfinite(flat(up.mu)).all()


def objective(method: PFedVEM, client: Client, down: Prior, data: Any, own: Any) -> tuple[Tensor, Params, Params]:
    """L_j and its gradients by μ and π, read off one step of the real E-step: (old - new) / η_h."""
    one = replace(method, head_steps=1)
    rho2 = method.variances(client.mu, client.pi, down.w)[0]
    return gradients(one, client, down, rho2, data, own)


def gradients(
    one: PFedVEM, client: Client, down: Prior, rho2: Tensor, data: Any, own: Any
) -> tuple[Tensor, Params, Params]:
    mu, pi, loss = one.fit_head(client, down, rho2, data, own)
    by_mu, by_pi = (tree.map(lambda a, b: (a - b) / one.head_lr, a, b) for a, b in ((client.mu, mu), (client.pi, pi)))
    return loss, by_mu, by_pi


def test_duplicated_examples_double_the_data_term_alone() -> None:
    """L_j = Σ_i NLL_i + KL: with every example twice, 2 L(n) - L(2n) = KL, as torch.distributions has it."""
    data = federation(SIZES)
    method = pfedvem(data)
    client, down = second_round(method, data)
    x, y = data.train.client(1)
    n = len(y)
    once = replace(data.train, x=x, y=y, start=(0,), size=(n,))
    twice = replace(data.train, x=torch.cat([x, x]), y=torch.cat([y, y]), start=(0,), size=(2 * n,))
    client, down = tree.index(client, [1]), tree.index(down, [1])
    own = keys(data, "x")[[1]]
    L1, by_mu1, by_pi1 = objective(method, client, down, once, own)
    L2, by_mu2, by_pi2 = objective(method, client, down, twice, own)
    rho2 = method.variances(client.mu, client.pi, down.w)[0]
    mu, sigma = flat(client.mu), flat(deviations(client.pi))
    kl = kl_divergence(Normal(mu, sigma), Normal(flat(down.w), rho2.sqrt()[:, None])).sum(1)
    assert float(kl) > 0.01
    assert torch.allclose(2 * L1 - L2, kl, rtol=1e-10)
    by_kl = (mu - flat(down.w)) / rho2
    assert torch.allclose(2 * flat(by_mu1) - flat(by_mu2), by_kl, atol=1e-9)
    slope = (sigma / rho2 - 1 / sigma) * torch.sigmoid(flat(client.pi))
    assert torch.allclose(2 * flat(by_pi1) - flat(by_pi2), slope, atol=1e-9)


def test_gradients_of_the_objective_by_finite_differences() -> None:
    """∂L/∂μ and ∂L/∂π with the noise held fixed: (L(q + h) - L(q - h)) / 2h for some entries."""
    data = federation(SIZES)
    method = pfedvem(data)
    client, down = second_round(method, data)
    own, h = keys(data, "x"), 1e-5
    rho2 = method.variances(client.mu, client.pi, down.w)[0]  # a constant of the round: it is not differentiated
    one = replace(method, head_steps=1)
    _, by_mu, by_pi = gradients(one, client, down, rho2, data.train, own)
    for part, grad in (("mu", by_mu), ("pi", by_pi)):
        for name, entry in (("3.bias", (1,)), ("3.weight", (0, 2)), ("3.weight", (2, 5))):
            values = []
            for sign in (1, -1):
                moved = tree.clone(client)
                getattr(moved, part)[name][(slice(None), *entry)] += sign * h
                values.append(gradients(one, moved, down, rho2, data.train, own)[0])
            slope = (values[0] - values[1]) / (2 * h)
            assert torch.allclose(slope, grad[name][(slice(None), *entry)], rtol=1e-6, atol=1e-7)


def test_confidence_is_of_the_old_posterior_and_the_new_prior() -> None:
    """τ_j = 1/ρ² of last round's (μ, σ) about this round's w; no training of this round, nor last round's w, is in it.

    The server weighs the new μ by this old τ.
    """
    data = federation(SIZES)
    method = pfedvem(data)
    _, before, _, _, _ = one_round(method, data)
    client, down = second_round(method, data)
    updated, up, _ = method.local_update(client, down, data.train, keys(data, "round", 1))

    def tau(of: Client, about: Prior) -> Tensor:
        spread = flat(deviations(of.pi)).square().sum(1) + (flat(of.mu) - flat(about.w)).square().sum(1)
        return HEAD / spread

    assert torch.allclose(up.tau, tau(client, down), rtol=1e-12)
    assert (up.tau - tau(updated, down)).abs().min() > 1e-6, "not recomputed after training"
    assert (up.tau - tau(client, before)).abs().min() > 1e-6, "not about the last w"
    longer = replace(method, head_steps=11).local_update(client, down, data.train, keys(data, "round", 1))[1]
    assert torch.equal(longer.tau, up.tau)
    assert not torch.equal(flat(longer.mu), flat(up.mu))
    new = method.aggregate(tree.index(down, 0), up, torch.arange(3))
    expected = np.average(flat(updated.mu).numpy(), axis=0, weights=tau(client, down).numpy())
    np.testing.assert_allclose(flat(tree.expand(new.w, 1))[0], expected, rtol=1e-12)


def test_momentum_starts_afresh_every_round() -> None:
    """A round is a function of (μ, π, w, base) alone: with one step, momentum makes no difference."""
    data = federation(SIZES)
    method = pfedvem(data, head_steps=1)
    client, down = second_round(method, data)
    own = keys(data, "round", 1)
    a, b = (replace(method, head_momentum=m).local_update(client, down, data.train, own)[0] for m in (0.9, 0.0))
    assert same(a, b)


# Who reports


def test_a_client_that_does_not_report() -> None:
    """Its head goes on training, the server hears nothing of its data, and its base begins from the next broadcast."""
    data = federation(SIZES)
    method = pfedvem(data)
    x, y = data.train.x.clone(), data.train.y.clone()
    rows = slice(data.train.start[1], data.train.start[1] + data.train.size[1])
    x[rows], y[rows] = -3 * x[rows], (y[rows] + 1) % 3
    other = replace(data, train=replace(data.train, x=x, y=y))
    servers, states = [], []
    for federated in (data, other):
        with Engine(method, federated, 5) as engine:
            for number in range(3):
                before = tree.clone(engine.memory.states)
                engine.round(number, [0, 1, 2], [0, 2])
            servers.append(tree.clone(engine.server))
            states.append((before, tree.clone(engine.memory.states)))
    assert same(servers[0], servers[1])
    (before, after), (_, elsewhere) = states
    for part in ("mu", "pi"):
        old, new, other_data = (flat(getattr(state, part))[1] for state in (before, after, elsewhere))
        assert (old != new).all()
        assert (new != other_data).all()


def test_the_last_base_of_a_client_is_overwritten() -> None:
    """Training starts from the broadcast base, whatever the client's own was; from its own μ and π, which are kept."""
    data = federation(SIZES)
    method = pfedvem(data)
    client, down = second_round(method, data)
    own = keys(data, "round", 1)
    reference = method.local_update(client, down, data.train, own)[0]
    for part, matters in (("base", False), ("mu", True), ("pi", True)):
        moved = client._replace(**{part: tree.map(lambda leaf: leaf + 0.3, getattr(client, part))})
        assert same(method.local_update(moved, down, data.train, own)[0], reference) is not matters
    idle = with_train(method, steps=0).local_update(client, down, data.train, own)[0]
    assert same(idle.base, tree.clone(down.base))
    assert not same(idle.base, client.base)
    assert (flat(idle.mu) != flat(client.mu)).all()


def test_two_or_more_report() -> None:
    """Each client with probability 0.1, drawn again until there are two.

    Binomial(J, 0.1) given at least two has mean (J/10 - P₁) / (1 - P₀ - P₁): 10.003 for J = 100 and 2.844 for
    J = 20; 1000 rounds have standard errors 3/√1000 = 0.095 and 1/√1000 = 0.032, five of which are allowed.
    """
    rule = Participation(rule="bernoulli", rate=0.1, min_reporters=2)
    for J, expected, tolerance in ((100, 10.003, 0.475), (20, 2.844, 0.16)):
        none, single = 0.9**J, J * 0.1 * 0.9 ** (J - 1)
        assert (0.1 * J - single) / (1 - none - single) == pytest.approx(expected, abs=1e-3)
        names = [f"site-{k}" for k in range(J)]
        root = Key.from_seed(1)
        cohorts = [rule.draw(root, names, number, 1000, everyone_trains=True) for number in range(1000)]
        sizes = [len(cohort.reporters) for cohort in cohorts]
        assert min(sizes) >= 2
        assert np.mean(sizes) == pytest.approx(expected, abs=tolerance)
        assert all(cohort.trainers == list(range(J)) for cohort in cohorts)


def test_messages() -> None:
    """Up: d + 1 + b numbers of the algorithm and the example count; down: d + b. Neither σ nor π is among them.

    The paper's FMNIST perceptron 784-100-10 has b = 78,500 and d = 1,010: 79,510 down, 79,511 and a count up.
    """
    data = federation(SIZES)
    method = pfedvem(data)
    _, down, _, updated, up = one_round(method, data)
    private = [leaf for part in (updated.pi, deviations(updated.pi)) for leaf in tree.leaves(part)]
    for sent in tree.leaves(up):
        assert not any(sent.shape == kept.shape and torch.allclose(sent, kept) for kept in private)
    task = Task(build_model("mlp", {"hidden": (100,)}, (784,), 10), Categorical(10))
    large = PFedVEM(task=task, train=Train(steps=0), head_steps=0)
    one = tree.expand(large.init_server(Key.from_seed(0)), 1)
    train = replace(data.train, x=torch.zeros(2, 784), y=torch.zeros(2, dtype=torch.int64), start=(0,), size=(2,))
    own = keys(data, "x")[[0]]
    up = large.local_update(large.init_client(one, train, own), one, train, own)[1]
    assert (scalars(one.base), scalars(one.w), scalars(one)) == (78_500, 1_010, 79_510)
    assert (scalars(up.mu), scalars(up.tau), scalars(up.base), scalars(up.n)) == (1_010, 1, 78_500, 1)
    assert up._fields == ("mu", "tau", "base", "n")
    assert scalars(tree.index(down, [0])) == HEAD + 4 * 6 + 6


# Aggregation


def uplinks(clients: int = 5) -> Up:
    gen = torch.Generator().manual_seed(0)
    mu = {"t": torch.randn(clients, 7, generator=gen, dtype=torch.float64)}
    base = {"b": torch.randn(clients, 4, generator=gen, dtype=torch.float64)}
    tau = torch.rand(clients, generator=gen, dtype=torch.float64) + 0.1
    return Up(mu, tau, base, vector(3, 50, 7, 20, 1))


def aggregate(up: Up) -> Prior:
    method = pfedvem(federation(SIZES))
    return method.aggregate(Prior({"t": torch.zeros(7).double()}, {"b": torch.zeros(4).double()}), up, torch.arange(5))


def test_the_prior_mean_is_a_convex_mean() -> None:
    """Inside the clients' range, unmoved by a common factor of all τ, and by any τ when all μ are equal."""
    up = uplinks()
    w = aggregate(up).w["t"]
    assert (w >= up.mu["t"].min(0).values).all()
    assert (w <= up.mu["t"].max(0).values).all()
    np.testing.assert_allclose(w, np.average(up.mu["t"].numpy(), axis=0, weights=up.tau.numpy()), rtol=1e-12)
    for factor in (1e-6, 1e6):
        assert torch.allclose(aggregate(up._replace(tau=factor * up.tau)).w["t"], w, rtol=1e-12)
    equal = up.mu["t"][:1].expand(5, 7)
    assert torch.allclose(aggregate(up._replace(mu={"t": equal})).w["t"], equal[0], rtol=1e-12)


def test_the_base_is_averaged_as_by_fedavg() -> None:
    """Σ n_j base_j / Σ n_j, bit for bit what FedAvg makes of the same bases; with equal n_j the mean."""
    from fedprior.methods._averaging import Up as Averaged

    up = uplinks()
    fedavg = bound("fedavg", federation(SIZES))
    theirs = fedavg.aggregate(Weights({"b": torch.zeros(4)}), Averaged(up.base, up.n), torch.arange(5))
    assert torch.equal(aggregate(up).base["b"], theirs.w["b"])
    np.testing.assert_allclose(theirs.w["b"], np.average(up.base["b"].numpy(), axis=0, weights=up.n.numpy()))
    equal = up._replace(n=vector(8, 8, 8, 8, 8))
    assert torch.allclose(aggregate(equal).base["b"], up.base["b"].mean(0), rtol=1e-12)
    assert torch.equal(aggregate(up._replace(tau=up.tau.flip(0))).base["b"], theirs.w["b"]), "τ has no say in the base"


# Broken clients


def poisoned(data: Federation, c: int) -> Federation:
    """Client c's examples overflow its network: its loss is NaN from the first step on."""
    x = data.train.x.clone()
    x[data.train.start[c] : data.train.start[c] + data.train.size[c]] = math.inf
    return replace(data, train=replace(data.train, x=x))


def spoil(how: str, c: int, data: Federation, patch: pytest.MonkeyPatch) -> Federation:
    """Break client c: by its data, or by a posterior or a base that come out of training with one bad number."""
    fit_head, fit_base = PFedVEM.fit_head, PFedVEM.fit_base

    def bad_head(self: PFedVEM, *arguments: Any) -> tuple[Params, Params, Tensor]:
        mu, pi, loss = fit_head(self, *arguments)
        pi["3.bias"][c, 1] = math.nan
        return mu, pi, loss

    def bad_base(self: PFedVEM, *arguments: Any) -> Params:
        base = fit_base(self, *arguments)
        base["1.weight"][c, 2, 0] = math.inf
        return base

    if how == "data":
        return poisoned(data, c)
    patch.setattr(PFedVEM, f"fit_{how}", bad_head if how == "head" else bad_base)
    return data


@pytest.mark.parametrize("c", [0, 1, 2])
@pytest.mark.parametrize("how", ["data", "head", "base"])
def test_a_broken_client_is_seen_and_the_others_are_unharmed(how: str, c: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of head and base broke, the engine sees it and drops the update; the others learn what they would."""
    data = federation(SIZES)
    method = pfedvem(data, base_head="mean" if how == "head" else "sampled")  # then a bad π never reaches the base
    client, down = second_round(method, data)
    own, others = keys(data, "round", 1), [k for k in range(3) if k != c]
    good, good_up, _ = method.local_update(client, down, data.train, own)
    assert finite(good_up, good, 3) == [True] * 3
    broken = spoil(how, c, data, monkeypatch)
    updated, up, _ = method.local_update(client, down, broken.train, own)
    assert finite(up, updated, 3) == [k != c for k in range(3)]
    assert same(tree.index(updated, others), tree.index(good, others))
    assert same(tree.index(up, others), tree.index(good_up, others))


# Prediction


def test_prediction_by_the_mean_knows_no_width() -> None:
    """Deterministic: another key or another π changes no bit. It is softmax(tanh(x W₁' + b₁) W' + b) at μ."""
    data = federation(SIZES)
    method = pfedvem(data)
    client, down = second_round(method, data)
    x = next(data.test.batches(50)).x
    personal = method.personalise(client, down, data.train, keys(data, "p"))
    log_p = method.predict(personal, x, keys(data, "a"))
    assert torch.equal(method.predict(personal, x, keys(data, "b")), log_p)
    wide = client._replace(pi=tree.map(lambda leaf: leaf + 3, client.pi))
    other = method.personalise(wide, down, data.train, keys(data, "p"))
    assert torch.equal(method.predict(other, x, keys(data, "a")), log_p)
    for c in range(3):
        z = torch.tanh(x[c] @ client.base["1.weight"][c].T + client.base["1.bias"][c])
        logits = z @ client.mu["3.weight"][c].T + client.mu["3.bias"][c]
        assert torch.allclose(log_p[c].exp(), logits.softmax(-1), atol=1e-12)


def test_the_personal_model_has_the_local_base() -> None:
    """(θ_j, μ_j) as the client trained them: a newer broadcast changes nothing."""
    data = federation(SIZES)
    method = pfedvem(data)
    client, down = second_round(method, data)
    newer = tree.map(lambda leaf: leaf + 1, tree.clone(down))
    a, b = (method.personalise(client, d, data.train, keys(data, "p")) for d in (down, newer))
    assert same(a, b)
    assert same(a.base, client.base)
    assert same(a.mu, client.mu)
    assert same(a.sigma, tree.map(F.softplus, client.pi))


@pytest.mark.parametrize("count", [1, 6])
def test_model_averaging_by_hand(count: int) -> None:
    """bma: the mean over the same drawn heads of the PROBABILITIES, one network at a time; not of the logits."""
    data = federation(SIZES)
    method = pfedvem(data, prediction="bma", prediction_draws=count)
    client, down = second_round(method, data)
    x = next(data.test.batches(50)).x
    own = keys(data, "a")
    personal = method.personalise(client, down, data.train, keys(data, "p"))
    log_p = method.predict(personal, x, own)
    heads = method.heads(personal.mu, personal.sigma, own.fold("bma"), count)
    p, logits = torch.zeros_like(log_p), torch.zeros_like(log_p)
    for k in range(count):
        for c in range(3):
            z = torch.tanh(x[c] @ client.base["1.weight"][c].T + client.base["1.bias"][c])
            out = z @ heads["3.weight"][c, k].T + heads["3.bias"][c, k]
            p[c] += out.softmax(-1) / count
            logits[c] += out / count
    assert torch.allclose(log_p.exp(), p, atol=1e-12)
    assert torch.allclose(logits.softmax(-1), p, atol=1e-3) is (count == 1)
    assert torch.equal(method.predict(personal, x, own), log_p), "the same key, the same heads"
    assert not torch.equal(method.predict(personal, x, keys(data, "b")), log_p)


def test_the_global_model_is_the_shared_base_with_the_prior_mean() -> None:
    data = federation(SIZES)
    method = pfedvem(data)
    _, down = second_round(method, data)
    server = tree.index(down, 0)
    z = torch.tanh(data.test.x @ server.base["1.weight"].T + server.base["1.bias"])
    expected = (z @ server.w["3.weight"].T + server.w["3.bias"]).log_softmax(-1)
    assert torch.allclose(method.predict_global(server, data.test.x), expected, atol=1e-12)
