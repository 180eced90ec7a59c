"""pFedFDA's equations: a frozen Bayes classifier, statistics of what was seen, β, and a head without a gradient."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from fedprior import tree
from fedprior.bayes import adapt, lda
from fedprior.bayes.lda import Sample
from fedprior.data.client import ClientData, schedule
from fedprior.engine import Engine
from fedprior.errors import FedpriorError
from fedprior.experiment.participation import Participation
from fedprior.methods import build
from fedprior.methods.pfedfda import PFedFDA, Shared, Up
from fedprior.models import build as build_model
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.training import Train
from support import CLASSES, FEATURES, TRAIN, bound, federation, keys, one_round, rounds, same, scalars

K, D = CLASSES, 6
BETAS = ("single", "double", "local", "global")
BUDGETS: tuple[dict[str, Any], ...] = ({"epochs": 3}, {"steps": 7}, {"epochs": 1})


def base(norm: bool = False) -> nn.Sequential:
    """The feature extractor: 4 inputs, 6 features."""
    layers = [nn.Linear(FEATURES, D), *([nn.BatchNorm1d(D)] if norm else []), nn.Tanh()]
    return nn.Sequential(*layers).double()


def pfedfda(train: Train = TRAIN, norm: bool = False, **options: Any) -> PFedFDA:
    method = bound("pfedfda", federation(), train, nn.Sequential(*base(norm), nn.Linear(D, K)), **options)
    assert isinstance(method, PFedFDA)
    return method


def clients(*labels: list[int], seed: int = 0) -> ClientData:
    """A ragged stack with these labels."""
    rng = np.random.default_rng(seed)
    y = torch.tensor([label for own in labels for label in own])
    x = torch.from_numpy(rng.normal(size=(len(y), FEATURES))) + y.unsqueeze(1)
    sizes = tuple(len(own) for own in labels)
    return ClientData(x, y, tuple(sum(sizes[:c]) for c in range(len(sizes))), sizes)


def names(data: ClientData, seed: int = 5) -> Keys:
    return Keys.of(Key.from_seed(seed), [f"site-{c}" for c in range(len(data))])


def message(clients: int, norm: bool = False) -> Shared:
    """What a server that has seen some data sends: means, a covariance, and an extractor that are not the first."""
    data = federation()
    method = pfedfda(norm=norm, beta="local")
    server, _, _, _, up = one_round(method, data)
    return tree.expand(method.aggregate(server, up, torch.arange(len(data))), clients)


def log_posterior(mean: Tensor, covariance: Tensor, prior: Tensor, z: Tensor, shrinkage: float = 1e-4) -> Tensor:
    """Bayes' rule with torch's normal densities: means [K, d], π [K], features [N, d] -> [N, K]."""
    d = len(covariance)
    S = (1 - shrinkage) * covariance + shrinkage * covariance.trace() / d * torch.eye(d, dtype=torch.float64)
    densities = [MultivariateNormal(m, S).log_prob(z) for m in mean]  # type: ignore[no-untyped-call]
    return (torch.stack(densities, 1) + prior.log()).log_softmax(1)


def class_prior(y: Tensor, smoothing: float = 1e-4) -> Tensor:
    share = torch.tensor([float((y == k).double().mean()) for k in range(K)], dtype=torch.float64)
    return (share + smoothing) / (1 + K * smoothing)


def features(phi: dict[str, Tensor], c: int, x: Tensor) -> Tensor:
    """Client c's extractor as an ordinary module in evaluation mode."""
    module = base(norm="1.running_mean" in phi)
    module.load_state_dict({k: v[c] for k, v in phi.items()}, strict=False)
    with torch.no_grad():
        out: Tensor = module.eval()(x)
    return out


def local_statistics(z: Tensor, y: Tensor, mean: Tensor, ridge: float = 1.0, least: int = 1) -> tuple[Tensor, Tensor]:
    """(μ̂, Σ̂) row by row; `mean` is the prior's."""
    found, scatter = mean.clone(), ridge * torch.eye(D, dtype=torch.float64)
    for k in {int(label) for label in y}:
        own = z[y == k]
        if len(own) >= least:
            found[k] = own.mean(0)
        for row in own - own.mean(0):
            scatter = scatter + torch.outer(row, row) / (len(y) - 1)
    return found, scatter


Seen = dict[int, list[Tensor]]  # place -> its features, in the order they were seen


def replay(method: PFedFDA, down: Shared, data: ClientData, own: Keys) -> list[tuple[nn.Sequential, Seen]]:
    """Each client by itself: torch.optim.SGD on φ against the Bayes classifier, and the features on the way."""
    train, found = method.train, []
    for c in range(len(data)):
        norm = "1.running_mean" in down.phi
        module = base(norm).train()
        module.load_state_dict({k: v[c] for k, v in down.phi.items()}, strict=False)
        optimizer = torch.optim.SGD(
            module.parameters(), train.lr, momentum=train.momentum, weight_decay=train.weight_decay
        )
        covariance = lda.unpack(down.covariance[c], D)
        S = covariance * (1 - 1e-4) + 1e-4 * covariance.trace() / D * torch.eye(D, dtype=torch.float64)
        W = down.mean[c] @ torch.linalg.inv(S)
        b = class_prior(data.client(c)[1]).log() - 0.5 * (W * down.mean[c]).sum(1)
        plan = schedule(data[[c]], own[[c]].fold("descend"), train.budget(method.task))
        seen: Seen = defaultdict(list)
        for rows, count in zip(plan.rows[:, 0], plan.counts[:, 0], strict=True):
            used = torch.from_numpy(rows[:count])
            z = module(data.x[used])
            optimizer.zero_grad()
            F.cross_entropy(z @ W.T + b, data.y[used]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for row, feature in zip(used.tolist(), z.detach(), strict=True):
                seen[row - data.start[c]].append(feature)
        found.append((module, seen))
    return found


# The prior and the message


def test_the_class_prior_by_hand() -> None:
    """Labels 0, 0, 1 of three classes: (2/3 + s)/(1 + 3s), (1/3 + s)/(1 + 3s), s/(1 + 3s) with s = 1e-4."""
    method, data = pfedfda(), clients([0, 0, 1], [2])
    found = method.log_prior(data).exp()
    expected = np.array([[2 / 3 + 1e-4, 1 / 3 + 1e-4, 1e-4], [1e-4, 1e-4, 1.0001]]) / 1.0003
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
    wide = pfedfda(prior_smoothing=0.5).log_prior(data).exp()
    assert float(wide[1, 0]) == pytest.approx(0.5 / 2.5)


def test_the_server_starts_at_a_random_sphere() -> None:
    """φ: the weights every method starts from; means uniform on [0, 1), so their mean is ½ ± 5/√(12·K·d); Σ = I."""
    method = bound("pfedfda", federation(), module=nn.Sequential(nn.Linear(FEATURES, 40), nn.ReLU(), nn.Linear(40, K)))
    server = method.init_server(Key.from_seed(3))
    common = bound("fedavg", federation(), module=method.task.module).init_server(Key.from_seed(3)).w
    assert same(server.phi, {k: common[k] for k in ("0.bias", "0.weight")})
    assert ((server.mean >= 0) & (server.mean < 1)).all()
    assert abs(float(server.mean.mean()) - 0.5) < 5 / math.sqrt(12 * K * 40)
    assert torch.equal(lda.unpack(server.covariance, 40), torch.eye(40, dtype=torch.float64))
    assert not torch.equal(method.init_server(Key.from_seed(4)).mean, server.mean)


@pytest.mark.parametrize(
    ("model", "shape", "classes", "backbone", "total"),
    [
        ("cnn_emnist", (1, 28, 28), 62, 115_776, 131_968),
        ("cnn_cifar", (3, 32, 32), 10, 106_400, 115_936),
        ("cnn_cifar", (3, 32, 32), 100, 106_400, 127_456),
    ],
)
def test_message_sizes(model: str, shape: tuple[int, ...], classes: int, backbone: int, total: int) -> None:
    """|φ| + K·128 + 128·129/2 (= 8,256) numbers down, and one more up: the example count; no head, no class prior."""
    train = Train(steps=0)
    method = build("pfedfda", {}, train).bind(Task(build_model(model, {}, shape, classes), Categorical(classes)), train)
    server = method.init_server(Key.from_seed(0))
    assert scalars(server.phi) == backbone
    assert backbone + classes * 128 + 8_256 == total == scalars(method.broadcast(server, torch.arange(1)))
    data = ClientData.single(torch.zeros(2, *shape), torch.tensor([0, 1]))
    down = tree.expand(server, 1)
    _, up, _ = method.local_update(method.init_client(down, data, names(data)), down, data, names(data))
    assert scalars(up) == total + 1


# Local training


@pytest.mark.parametrize("cache", ["last_epoch", "all_epochs"])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("norm", [False, True])
def test_training_against_the_frozen_head(cache: str, budget: dict[str, Any], norm: bool) -> None:
    """φ equals that of torch.optim.SGD against a fixed Bayes classifier; the cache holds the features seen on the way.

    Every feature of the right example with its label: the latest of each (last_epoch) or all of them (all_epochs). With
    batch normalisation the features are those of training mode, and a last batch of one is skipped.
    """
    data = federation().train
    method = pfedfda(Train(lr=0.1, momentum=0.5, weight_decay=0.01, batch_size=8, **budget), norm, feature_cache=cache)
    down, own = message(len(data), norm), names(data)
    head = lda.head(method.statistics(down), method.log_prior(data), method.shrinkage)
    before = [part.clone() for part in head]
    phi, stored, _ = method.fit(down, head, data, own)
    assert all(torch.equal(a, b) for a, b in zip(head, before, strict=True)), "the head is frozen"
    sample, group = method.cached(stored, data)
    for c, (module, seen) in enumerate(replay(method, down, data, own)):
        expected_phi = module.state_dict()
        for k, v in phi.items():
            assert torch.allclose(v[c], expected_phi[k], rtol=0, atol=1e-12), k
        real, y = sample.real[c], data.client(c)[1]
        assert set(group[c, real].tolist()) == set(seen)
        for place, expected in seen.items():
            mine = real & (group[c] == place)
            assert (sample.y[c, mine] == y[place]).all()
            wanted = torch.stack(expected if cache == "all_epochs" else expected[-1:])
            stored_z = sample.z[c, mine]
            assert stored_z.shape == wanted.shape
            ours, theirs = (part[part[:, 0].argsort()] for part in (stored_z, wanted))
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_a_head_is_neither_trained_nor_decayed() -> None:
    """Nothing of a head is in the extractor, so neither the gradient nor weight decay can reach it."""
    method, data = pfedfda(), federation()
    server, _, _, _, up = one_round(method, data)
    assert set(up.phi) == set(server.phi) == {"0.weight", "0.bias"}


def test_steps_of_no_length_leave_the_extractor() -> None:
    """With a learning rate of 1e-300, φ is unchanged bit for bit, and the cache holds φ_g(x) of every example."""
    method, data = pfedfda(Train(lr=1e-300, batch_size=8, epochs=2)), federation().train
    down = message(len(data))
    phi, stored, _ = method.fit(
        down, lda.head(method.statistics(down), method.log_prior(data), 1e-4), data, names(data)
    )
    assert same(phi, tree.clone(down.phi))
    sample, _ = method.cached(stored, data)
    for c, n in enumerate(data.size):
        x, y = data.client(c)
        assert torch.equal(sample.real[c].nonzero().flatten(), torch.arange(n))
        assert torch.equal(sample.y[c, :n], y)
        assert torch.allclose(sample.z[c, :n], features(down.phi, c, x), rtol=0, atol=1e-14)


def test_a_skipped_example_is_not_in_the_statistics() -> None:
    """Nine examples in batches of eight under batch normalisation: one is not seen, so n = 8 in the cache."""
    method = pfedfda(Train(lr=0.1, batch_size=8, epochs=1), norm=True, beta="local")
    data = clients([0, 1, 2] * 3)
    down, own = message(1, norm=True), names(data)
    _, up, _ = method.local_update(method.init_client(down, data, own), down, data, own)
    ((_, seen),) = replay(method, down, data, own)
    assert len(seen) == 8
    places = sorted(seen)
    z, y = torch.stack([seen[p][0] for p in places]), data.y[places]
    mean, covariance = local_statistics(z, y, down.mean[0])
    assert torch.allclose(up.mean[0], mean, atol=1e-11)
    assert torch.allclose(lda.unpack(up.covariance[0], D), covariance, atol=1e-11)


@pytest.mark.parametrize("cache", ["last_epoch", "all_epochs"])
def test_the_uplink_by_hand(cache: str) -> None:
    """μ_i = β μ̂ + (1-β) μ_g and Σ_i likewise, from the features of the last epoch or of all; classes of one count."""
    data = clients([0, 1, 2] * 5, [0, 0, 0, 1, 1, 1, 1, 2], [1, 1, 1, 1])
    method = pfedfda(feature_cache=cache, ridge=0.3)
    down, own = message(3), names(data)
    client, up, logs = method.local_update(method.init_client(down, data, own), down, data, own)
    assert torch.equal(up.n, torch.tensor([15.0, 8.0, 4.0], dtype=torch.float64))
    assert torch.equal(logs["beta"], client.beta[:, 0])
    for c, (_, seen) in enumerate(replay(method, down, data, own)):
        rows = [(p, z) for p in sorted(seen) for z in (seen[p] if cache == "all_epochs" else seen[p][-1:])]
        y = data.client(c)[1][[p for p, _ in rows]]
        mean, covariance = local_statistics(torch.stack([z for _, z in rows]), y, down.mean[c], ridge=0.3)
        beta = float(client.beta[c, 0])
        assert torch.allclose(up.mean[c], beta * mean + (1 - beta) * down.mean[c], atol=1e-11)
        mixed = beta * covariance + (1 - beta) * lda.unpack(down.covariance[c], D)
        assert torch.allclose(lda.unpack(up.covariance[c], D), mixed, atol=1e-11)


@pytest.mark.parametrize("beta", ["local", "single"])
@pytest.mark.parametrize("cache", ["last_epoch", "all_epochs"])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_ragged_stack_equals_single_clients(beta: str, cache: str, budget: dict[str, Any]) -> None:
    """How many epochs of features are kept is a client's own affair, and so is how far β is refined."""
    data = federation().train
    method = pfedfda(Train(lr=0.1, batch_size=8, **budget), beta=beta, feature_cache=cache)
    down, own = message(len(data)), names(data)
    client, up, _ = method.local_update(method.init_client(down, data, own), down, data, own)
    for c in range(len(data)):
        one, mine = tree.index(down, [c]), data[[c]]
        alone, sent, _ = method.local_update(method.init_client(one, mine, own[[c]]), one, mine, own[[c]])
        assert torch.allclose(client.beta[c], alone.beta[0], rtol=0, atol=1e-9)
        for ours, theirs in zip(tree.leaves(tree.index(up, c)), tree.leaves(tree.index(sent, 0)), strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-9)


# β


@pytest.mark.parametrize("beta", BETAS)
def test_beta_is_a_share(beta: str) -> None:
    """In [0, 1] for all; one value for means and covariance unless double; 1 when local, 0 when global."""
    data = federation()
    method = pfedfda(beta=beta)
    _, _, joined, client, _ = one_round(method, data)
    assert (joined.beta == 0).all()
    assert ((client.beta >= 0) & (client.beta <= 1)).all()
    if beta != "double":
        assert torch.equal(client.beta[:, 0], client.beta[:, 1])
    fixed = {"local": 1.0, "global": 0.0}.get(beta)
    assert fixed is None or (client.beta == fixed).all()
    assert fixed is not None or ((client.beta > 0) & (client.beta < 1)).any()


@pytest.mark.parametrize("beta", ["single", "double"])
def test_beta_minimises_the_cross_validated_loss(beta: str) -> None:
    """J(β̂) ≤ min(J(0), J(½), J(1)) on the client's own features, with the folds of its own key."""
    data = federation().train
    method, down, own = pfedfda(beta=beta, folds=3), message(len(data)), names(data)
    prior, log_prior = method.statistics(down), method.log_prior(data)
    sample, group = method.observe(down.phi, data)
    found = method.solve_beta(sample, group, prior, log_prior, own)
    folds = adapt.deal(sample, group, K, 3, own.fold("folds"))
    loss = adapt.validation_loss(sample, folds, 3, prior, log_prior, method.ridge, method.shrinkage)
    for value in (0.0, 0.5, 1.0):
        assert (loss(found) <= loss(torch.full_like(found, value)) + 1e-9).all()
    assert torch.equal(found, method.solve_beta(sample, group, prior, log_prior, own))
    others = [method.solve_beta(sample, group, prior, log_prior, names(data, seed)) for seed in range(6, 10)]
    assert any(not torch.equal(found, other) for other in others), "the folds come from the key"


def test_copies_of_the_data_do_not_raise_beta() -> None:
    """Each example four times, grouped: the same folds and means, a scatter of nearly the same size: β̂ within 0.05.

    The scatter shrinks by 4(n-1)/(4n-1), 0.97 for n = 28. Dealt as examples of their own, copies raise β̂.
    """
    data = federation().train
    method, down, own = pfedfda(ridge=1.0), message(len(data)), names(data)
    prior, log_prior = method.statistics(down), method.log_prior(data)
    sample, group = method.observe(down.phi, data)
    many = Sample(sample.z.repeat(1, 4, 1), sample.y.repeat(1, 4), sample.real.repeat(1, 4))
    apart = torch.arange(many.y.shape[1]).expand_as(many.y)
    once, together, split = (
        method.solve_beta(s, g, prior, log_prior, own)[:, 0].mean()
        for s, g in ((sample, group), (many, group.repeat(1, 4)), (many, apart))
    )
    assert together <= once + 0.05
    assert split > together + 0.05
    published = pfedfda(ridge=1.0, folds_by="copy").solve_beta(many, group.repeat(1, 4), prior, log_prior, own)[:, 0]
    assert published.mean() == split, "as the authors' code deals them"


# Aggregation


@pytest.mark.parametrize("beta", ["single", "double", "local"])
def test_the_server_is_a_moving_average(beta: str) -> None:
    """μ_g ← (1 - Σ w_i β_i) μ_g + Σ w_i β_i μ̂_i with w_i = n_i / Σ n: the rate is the mean β; Σ_g likewise."""
    data = federation()
    method = pfedfda(beta=beta)
    server, down, _, client, up = one_round(method, data)
    moved = method.aggregate(server, up, torch.arange(len(data)))
    weight = np.asarray(data.train.size) / sum(data.train.size)
    own = [
        local_statistics(torch.stack([seen[p][-1] for p in sorted(seen)]), data.train.client(c)[1], server.mean)
        for c, (_, seen) in enumerate(replay(method, down, data.train, keys(data, "round", 0)))
    ]
    for part, before, after in (
        (0, server.mean, moved.mean),
        (1, lda.unpack(server.covariance, D), lda.unpack(moved.covariance, D)),
    ):
        rate = weight * client.beta[:, part].numpy()
        expected = (1 - rate.sum()) * before
        for c, r in enumerate(rate):
            expected = expected + r * own[c][part]
        assert torch.allclose(after, expected, rtol=0, atol=1e-6)
        assert (after - before).abs().max() > 1e-2


def test_a_round_of_beta_0_moves_the_extractor_alone() -> None:
    data = federation()
    method = pfedfda(beta="global")
    server, down, _, _, up = one_round(method, data)
    assert torch.equal(up.mean, down.mean)
    assert torch.equal(up.covariance, down.covariance)
    moved = method.aggregate(server, up, torch.arange(len(data)))
    assert torch.allclose(moved.mean, server.mean, rtol=1e-14, atol=0)
    assert torch.allclose(moved.covariance, server.covariance, rtol=1e-14, atol=1e-16)
    assert not torch.allclose(moved.phi["0.weight"], server.phi["0.weight"])


def test_aggregation_by_hand() -> None:
    """n = 1 and 3: weights ¼ and ¾, the same for all parts and classes; equal uplinks give themselves: Σ w = 1."""
    method = pfedfda()
    server = method.init_server(Key.from_seed(0))
    one, three = (tree.map(lambda leaf, v=v: torch.full_like(leaf, v), server) for v in (2.0, 6.0))
    n = torch.tensor([1.0, 3.0], dtype=torch.float64)
    for left, right, expected in ((one, three, 5.0), (three, three, 6.0)):
        parts: Any = tree.map(lambda a, b: torch.stack([a, b]), left, right)
        found = method.aggregate(server, Up(parts.phi, parts.mean, parts.covariance, n), torch.arange(2))
        assert all((leaf == expected).all() for leaf in tree.leaves(found))


@pytest.mark.parametrize("ridge", [0.01, 1.0])
@pytest.mark.parametrize("beta", BETAS)
def test_covariances_stay_positive_definite(beta: str, ridge: float) -> None:
    """λ_min(Σ_i) ≥ min(r, λ_min(Σ_g)) for every uplink of three rounds."""
    data = federation()
    method, ids = pfedfda(beta=beta, ridge=ridge), torch.arange(len(data))
    server = method.init_server(Key.from_seed(5))
    for number in range(3):
        down = tree.expand(server, len(data))
        own = keys(data, "round", number)
        _, up, _ = method.local_update(method.init_client(down, data.train, own), down, data.train, own)
        floor = min(ridge, float(torch.linalg.eigvalsh(lda.unpack(server.covariance, D))[0]))
        assert (torch.linalg.eigvalsh(lda.unpack(up.covariance, D))[:, 0] >= floor - 1e-6).all()
        server = method.aggregate(server, up, ids)


# Missing classes and tiny clients


@pytest.mark.parametrize("beta", BETAS)
def test_a_missing_class_keeps_the_global_mean(beta: str) -> None:
    """μ_i,c == μ_g,c bit for bit, whatever β is; and its prior is s/(1 + 3s) = 1e-4/1.0003."""
    data = clients([0, 1] * 8, [0] * 9)
    method, down, own = pfedfda(beta=beta), message(2), names(data)
    client, up, _ = method.local_update(method.init_client(down, data, own), down, data, own)
    assert torch.equal(up.mean[:, 2], down.mean[:, 2])
    assert torch.equal(up.mean[1, 1], down.mean[1, 1])
    assert beta == "global" or not torch.equal(up.mean[0, 0], down.mean[0, 0])
    assert beta == "global" or client.beta[0, 0] > 0
    assert method.log_prior(data)[0, 2].exp().item() == pytest.approx(1e-4 / 1.0003, rel=1e-12)


TINY = ([0], [1, 1], [0, 1], [2, 2, 2, 2], [0, 0, 1, 2])


@pytest.mark.parametrize("ridge", [0.0, 1e-4, 1.0])
@pytest.mark.parametrize("cache", ["last_epoch", "all_epochs"])
@pytest.mark.parametrize("beta", BETAS)
def test_tiny_clients(beta: str, cache: str, ridge: float) -> None:
    """One example, one class, one example each: everything is finite, and a covariance that Cholesky takes.

    One example alone has neither a scatter nor a split: β = 0, so it sends the global statistics back. Neither has one
    example each of two classes; the class with two examples can be split.
    """
    data = clients(*TINY)
    method, down, own = pfedfda(beta=beta, feature_cache=cache, ridge=ridge), message(len(TINY)), names(data)
    client, up, _ = method.local_update(method.init_client(down, data, own), down, data, own)
    personal = method.personalise(client, down, data, own)
    log_p = method.predict(personal, torch.randn(len(TINY), 9, FEATURES, dtype=torch.float64), own)
    assert all(torch.isfinite(leaf).all() for leaf in [*tree.leaves(up), *tree.leaves(personal), log_p])
    torch.linalg.cholesky(lda.unpack(up.covariance, D))
    alone = [0, 2] if beta in ("single", "double") else [0]
    for c in alone:
        assert (client.beta[c] == 0).all()
        assert torch.equal(up.mean[c], down.mean[c])
        assert torch.equal(up.covariance[c], down.covariance[c])


def test_features_that_are_dead_or_equal() -> None:
    """Without a ridge, with a unit that never moves and two that are the same: statistics and head stay finite."""
    data = federation().train
    method = pfedfda(Train(lr=1e-300, batch_size=8, epochs=1), ridge=0.0, beta="local", shrinkage=0.0)
    down = tree.clone(message(len(data)))
    down.phi["0.weight"][:, 1], down.phi["0.bias"][:, 1] = 0, 0
    for name in ("0.weight", "0.bias"):
        down.phi[name][:, 3] = down.phi[name][:, 2]
    own = names(data)
    client, up, _ = method.local_update(method.init_client(down, data, own), down, data, own)
    torch.linalg.cholesky(lda.unpack(up.covariance, D))
    personal = method.personalise(client, down, data, own)
    assert all(torch.isfinite(leaf).all() for leaf in tree.leaves(personal))


def test_a_model_that_is_all_head() -> None:
    """Softmax regression has no extractor to train: its inputs are the features, or one sentence says it cannot be."""
    data = federation()
    try:
        trace = rounds(bound("pfedfda", data, module=nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, K))), data)
    except FedpriorError:
        return
    assert np.isfinite(trace.vector()).all()


# Personal models


@pytest.mark.parametrize("least", [1, 3, 6])
@pytest.mark.parametrize("norm", [False, True])
def test_the_personal_model_by_hand(least: int, norm: bool) -> None:
    """β = 1: Bayes' rule with the statistics of φ_g(x) in evaluation mode, by torch's normal densities.

    A class with fewer than `min_class_samples` examples takes μ_g,c, but is centred by its own mean: client 1 has five
    of class 0, two of class 1 and none of class 2. The class prior is that of the training labels.
    """
    data = clients([0, 1, 2] * 5 + [0], [0, 0, 0, 0, 0, 1, 1])
    method = pfedfda(norm=norm, beta="local", min_class_samples=least, ridge=0.2, shrinkage=0.05)
    down, own = message(2, norm), names(data)
    x = torch.randn(2, 11, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    personal = method.personalise(method.init_client(down, data, own), down, data, own)
    found = method.predict(personal, x, own)
    for c in range(2):
        own_x, y = data.client(c)
        z = features(down.phi, c, own_x)
        mean, covariance = local_statistics(z, y, down.mean[c], ridge=0.2, least=least)
        expected = log_posterior(mean, covariance, class_prior(y), features(down.phi, c, x[c]), 0.05)
        assert torch.allclose(found[c], expected, rtol=0, atol=1e-9)


def test_fewest_examples_matter_in_evaluation_alone() -> None:
    """Training uses the mean of a single example; the rule of three is the evaluation's."""
    data, own = clients([0, 0, 0, 0, 1]), names(clients([0]))
    few, many = (pfedfda(beta="local", min_class_samples=m) for m in (1, 5))
    down = message(1)
    ups = [m.local_update(m.init_client(down, data, own), down, data, own)[1] for m in (few, many)]
    assert same(*ups)
    assert not torch.equal(ups[0].mean[0, 1], down.mean[0, 1])
    models = [m.personalise(m.init_client(down, data, own), down, data, own) for m in (few, many)]
    assert not torch.allclose(models[0].weight, models[1].weight)


def test_with_beta_0_clients_differ_by_their_class_prior_alone() -> None:
    data = clients([0, 1, 2] * 4, [0] * 9 + [1], [2, 2, 1])
    method, down, own = pfedfda(beta="global"), message(3), names(data)
    personal = method.personalise(method.init_client(down, data, own), down, data, own)
    assert torch.equal(personal.weight, personal.weight[:1].expand(3, K, D))
    log_prior = torch.stack([class_prior(data.client(c)[1]).log() for c in range(3)])
    gap = personal.bias - personal.bias[:1]
    assert torch.allclose(gap, log_prior - log_prior[:1], rtol=0, atol=1e-12)


def test_the_global_model_has_a_uniform_class_prior() -> None:
    method = pfedfda()
    server = tree.index(message(1), 0)
    x = federation().test.x
    z = features({k: v[None] for k, v in server.phi.items()}, 0, x)
    uniform = torch.full((K,), 1 / K, dtype=torch.float64)
    expected = log_posterior(server.mean, lda.unpack(server.covariance, D), uniform, z)
    assert torch.allclose(method.predict_global(server, x), expected, rtol=0, atol=1e-9)


def test_a_pass_over_the_data_sees_every_example_once() -> None:
    """600 examples are more than one evaluation batch; the neighbour has 20. In order, with their labels, unpadded."""
    rng = np.random.default_rng(1)
    data = clients(rng.integers(0, K, 600).tolist(), rng.integers(0, K, 20).tolist())
    method, down = pfedfda(), message(2)
    sample, group = method.observe(down.phi, data)
    for c in range(2):
        x, y = data.client(c)
        assert torch.equal(group[c, sample.real[c]], torch.arange(len(y)))
        assert torch.equal(sample.y[c, sample.real[c]], y)
        assert torch.allclose(sample.z[c, sample.real[c]], features(down.phi, c, x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("norm", [False, True])
def test_an_unseen_client_needs_no_gradient(norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It joins, personalises and predicts with φ_g as it is, running statistics included; β is not stored."""
    newcomer = federation(sizes=(30,), seed=9)
    method, down, own = pfedfda(norm=norm), message(1, norm), keys(newcomer, "join")
    before = tree.clone(down)

    def no_gradient(*args: Any, **kwargs: Any) -> None:
        pytest.fail("a gradient was asked for")

    monkeypatch.setattr(torch.autograd, "grad", no_gradient)
    client = method.init_client(down, newcomer.train, own)
    personal = method.personalise(client, down, newcomer.train, own)
    log_p = method.predict(personal, newcomer.test.x.unsqueeze(0), own)
    assert same(personal.phi, before.phi)
    assert same(down, before)
    assert (client.beta == 0).all()
    assert torch.isfinite(log_p).all()


def test_the_stored_beta_does_not_reach_the_prediction() -> None:
    """Evaluation solves β anew on fresh features."""
    data = federation()
    method = pfedfda()
    _, down, joined, client, _ = one_round(method, data)
    own = keys(data, "p")
    assert not torch.equal(joined.beta, client.beta)
    assert same(*(method.personalise(c, down, data.train, own) for c in (joined, client)))


def test_evaluation_leaves_no_trace() -> None:
    """Twice the same predictions and models, and the server and the clients' states are as before."""
    data = federation()
    with Engine(pfedfda(norm=True), data, 5) as engine:
        engine.round(0, engine.everyone, engine.everyone)
        server, states = tree.clone(engine.server), tree.clone(engine.memory.states)
        first, models = engine.evaluate(0, ("test",)), tree.clone(engine.memory.personal)
        second = engine.evaluate(0, ("test",))
        assert same(engine.memory.personal, models)
        assert same(engine.server, server)
        assert same(engine.memory.states, states)
    for a, b in zip(first.predictions["test"], second.predictions["test"], strict=True):
        assert (a == b).all()


# Participation


def test_participation_is_bernoulli_and_ends_with_everyone() -> None:
    """100 clients with q = 0.3: counts are Binomial(100, 0.3), mean 30 and variance 21; 100 in the last round.

    Over 400 rounds the mean errs by √(21/400) = 0.23 and the variance by 21·√(2/399) = 1.49; five of each are allowed.
    """
    rule = Participation(rule="bernoulli", rate=0.3, last_round_all=True)
    sites = [f"site-{k}" for k in range(100)]
    root = Key.from_seed(1)
    counts = [len(rule.draw(root, sites, r, 401, everyone_trains=False).reporters) for r in range(401)]
    assert counts[-1] == 100
    assert np.mean(counts[:-1]) == pytest.approx(30, abs=1.15)
    assert np.var(counts[:-1], ddof=1) == pytest.approx(21, abs=7.45)


def test_a_client_that_stays_away_has_no_part() -> None:
    """Two rounds without site-0: the server is the same whatever its data are."""
    data = federation()
    method, others = pfedfda(), list(range(1, len(data)))
    servers = []
    for shift in (0.0, 3.0):
        x = data.train.x.clone()
        x[data.train.start[0] : data.train.start[0] + data.train.size[0]] += shift
        with Engine(method, replace(data, train=replace(data.train, x=x)), 5) as engine:
            for number in range(2):
                engine.round(number, others, others)
            servers.append(tree.clone(engine.server))
    assert same(*servers)


def test_a_client_that_returns_needs_no_memory() -> None:
    """What it sends depends on the newest message and its data; its old β has no influence."""
    data = federation()
    method = pfedfda()
    _, down, joined, client, _ = one_round(method, data)
    ups = [method.local_update(c, down, data.train, keys(data, "r"))[1] for c in (joined, client)]
    assert not torch.equal(joined.beta, client.beta)
    assert same(*ups)
