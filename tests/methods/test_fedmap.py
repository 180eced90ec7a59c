"""FedMAP against its equations: the invariants that the paper implies, and closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.methods.fedmap import FedMAP, Fixed, Prior, Up
from fedprior.protocol import Weights
from fedprior.rng import Key, Keys
from fedprior.training import Train, descend, value_and_grad
from support import SIZES, TRAIN, bound, federation, flat, keys, one_round, rounds, same, scalars, with_train

OMEGAS = ("mean", "sum", "per_sample", "likelihood", "num_examples", "uniform")


def fedmap(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> FedMAP:
    method = bound("fedmap", data, train, module, **options)
    assert isinstance(method, FedMAP)
    return method


@pytest.mark.parametrize("omega", OMEGAS)
def test_no_prior_is_individual_training(omega: str) -> None:
    """Without a prior nothing of the server reaches a client: bit-equal to Local, whatever the weights are."""
    data = federation()
    ours = rounds(fedmap(data, strength=0, omega=omega), data)
    local = rounds(bound("local", data), data)
    for client in data.clients:
        for name, value in local.models[client].items():
            assert (ours.models[client][name] == value).all()


@pytest.mark.parametrize("sigma2", [1e-3, 1.0, 1e3])
def test_stationary_point(sigma2: float) -> None:
    """On a convex problem the minimiser obeys θ* = γ - σ² ∇L(θ*), so it tends to γ with σ²."""
    data = federation(sizes=(30,))
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    lr = 1 / (1 / sigma2 + 4)
    train = Train(lr=lr, momentum=0.95, batch_size=100, epochs=4000)
    method = fedmap(data, train, linear, sigma2=sigma2)
    _, down, _, client, _ = one_round(method, data)
    whole = next(data.train.batches(100))
    _, grads = value_and_grad(lambda w, _, b: method.task.nll(w, b), client.theta, None, whole)
    residual = tree.map(lambda th, ga, gr: th - ga + sigma2 * gr, client.theta, down.gamma, grads)
    assert flat(residual).abs().max() / max(1.0, sigma2) < 1e-6
    if sigma2 == 1e-3:
        gap = flat(tree.map(torch.sub, client.theta, down.gamma)).norm()
        assert gap < 2e-3 * flat(grads).norm()


def test_closed_form_of_the_gaussian_model() -> None:
    """L(θ) = ½‖Xθ - y‖²/n gives θ* = (X'X/n + I/σ²)⁻¹ (X'y/n + γ/σ²): the descent with this energy finds it."""
    rng = np.random.default_rng(0)
    X, y, gamma = (torch.from_numpy(rng.normal(size=s)) for s in ((20, 3), (20,), (3,)))
    data = federation(sizes=(30,))
    method = fedmap(data, sigma2=0.7)

    def objective(w: dict[str, Tensor], centre: dict[str, Tensor], batch: Batch) -> Tensor:
        loss = 0.5 * (X @ w["t"][0] - y).square().mean()
        return loss[None] + method.energy(w, Prior(centre, {}, {}))

    train = Train(lr=0.2, batch_size=100, epochs=2000)
    start, centre = {"t": torch.zeros(1, 3, dtype=torch.float64)}, {"t": gamma[None]}
    theta, _ = descend(method.task, train, objective, start, centre, data.train, keys(data))
    s = 1 / 0.7
    exact = torch.linalg.solve(X.T @ X / 20 + s * torch.eye(3, dtype=torch.float64), X.T @ y / 20 + s * gamma)
    assert torch.allclose(theta["t"][0], exact, atol=1e-10)


def test_prior_gradient_is_the_pull_to_gamma() -> None:
    """∂R/∂θ = (θ - γ)/σ², by autograd and by finite differences."""
    data = federation()
    method = fedmap(data, sigma2=3.0)
    _, down, _, client, _ = one_round(method, data)
    energy = lambda theta, prior, batch: method.energy(theta, prior)  # noqa: E731
    _, grads = value_and_grad(energy, client.theta, down, Batch(*[torch.empty(0)] * 3))
    for name, grad in grads.items():
        assert torch.allclose(grad, (client.theta[name] - down.gamma[name]) / 3.0, atol=1e-12)
    bumped = {k: v.clone() for k, v in client.theta.items()}
    bumped["head.bias"][:, 1] += 1e-6
    slope = (method.energy(bumped, down) - method.energy(client.theta, down)) / 1e-6
    assert torch.allclose(slope, grads["head.bias"][:, 1], atol=1e-5)


def test_buffers_are_no_part_of_the_prior() -> None:
    """Moving a running mean far away leaves R unchanged."""
    data = federation(sizes=(30, 20))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    method = fedmap(data, module=normed)
    _, down, _, client, _ = one_round(method, data)
    moved = {k: v + 100 if k in method.task.buffers else v for k, v in client.theta.items()}
    assert any(k in method.task.buffers for k in moved)
    assert torch.equal(method.energy(moved, down), method.energy(client.theta, down))


def aggregate(theta: Tensor, log_omega: Tensor) -> Tensor:
    method = fedmap(federation())
    prior = method.init_server(Key.from_seed(0))
    up = Up({"t": theta}, log_omega, {})
    return method.aggregate(prior, up, torch.arange(len(theta))).gamma["t"]


def test_aggregation_is_a_convex_mean() -> None:
    """Weights are a softmax: shift-invariant, order-free, inside the clients' range; equal logs give the mean."""
    gen = torch.Generator().manual_seed(0)
    theta = torch.randn(6, 5, dtype=torch.float64, generator=gen)
    log_omega = torch.randn(6, dtype=torch.float64, generator=gen)
    gamma = aggregate(theta, log_omega)
    assert torch.allclose(aggregate(theta, log_omega + 1234.5), gamma, atol=1e-12)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert torch.allclose(aggregate(theta[order], log_omega[order]), gamma, atol=1e-15)
    assert (gamma >= theta.min(0).values).all()
    assert (gamma <= theta.max(0).values).all()
    assert torch.allclose(aggregate(theta, torch.full((6,), -7.0, dtype=torch.float64)), theta.mean(0), atol=1e-15)
    naive = (log_omega.exp()[:, None] * theta).sum(0) / log_omega.exp().sum()
    assert torch.allclose(gamma, naive, atol=1e-12)


def test_extreme_logs_stay_finite() -> None:
    """log ω = (-1e5, -1e5 - 1, -2e5): weights 1/(1+e⁻¹) = 0.7311, 0.2689 and 0, where exp-then-divide gives 0/0."""
    log_omega = torch.tensor([-1e5, -1e5 - 1, -2e5], dtype=torch.float64)
    weights = aggregate(torch.eye(3, dtype=torch.float64), log_omega)
    share = 1 / (1 + math.exp(-1))
    assert torch.allclose(weights, torch.tensor([share, 1 - share, 0.0], dtype=torch.float64), atol=1e-12)
    assert torch.isnan(log_omega.exp() / log_omega.exp().sum()).all()


def test_one_client_is_its_own_prior() -> None:
    data = federation(sizes=(30,))
    trace = rounds(fedmap(data), data)
    for name, value in trace.models["site-0"].items():
        assert (trace.server[name.replace("w/", "gamma/")].numpy() == value).all()


def test_clones_agree_with_their_prior() -> None:
    """Clients with the same data and the same keys have the same model, and the prior's mean is that model."""
    data = federation(sizes=(30,))
    x, y = data.train.client(0)
    clones = ClientData(x, y, (0, 0, 0), (len(y),) * 3)
    method = fedmap(data)
    own = Keys.of(Key.from_seed(5), ["a", "a", "a"])
    down = tree.expand(method.init_server(Key.from_seed(5)), 3)
    client, up, _ = method.local_update(method.init_client(down, clones, own), down, clones, own)
    gamma = method.aggregate(tree.index(down, 0), up, torch.arange(3)).gamma
    for name, theta in client.theta.items():
        assert torch.allclose(theta, theta[:1].expand_as(theta), atol=1e-14)
        assert torch.allclose(gamma[name], theta[0], atol=1e-14)


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_fedprox_identity(mu: float) -> None:
    """From γ, weighed by example counts, with 1/σ² = μ, FedMAP's server is FedProx(μ)'s; with μ = 0, FedAvg's."""
    data = federation()
    ours = rounds(fedmap(data, start_from="gamma", omega="num_examples", strength=mu), data)
    others = [rounds(bound("fedprox", data, strength=mu), data)] + (
        [rounds(bound("fedavg", data), data)] if mu == 0 else []
    )
    for other in others:
        for name, value in other.server.items():
            assert torch.allclose(ours.server[name.replace("w/", "gamma/")], value, rtol=0, atol=1e-13)


def test_omega_by_hand() -> None:
    """log ω in each mode, recomputed from the mean loss L and the energy R of every client.

    mean: -L - R;  sum: -nL - R;  per_sample: -L - R/n;  likelihood: -L;  num_examples: log n;  uniform: 0.
    """
    data = federation()
    for omega in OMEGAS:
        method = fedmap(data, omega=omega, sigma2=2.0)
        _, down, _, client, up = one_round(method, data)
        for c, n in enumerate(data.train.size):
            x, y = data.train.client(c)
            theta = {k: v[c : c + 1] for k, v in client.theta.items()}
            log_p = method.task.predictive(theta, x[None])[0]
            loss = float(-log_p[torch.arange(n), y].mean())
            gap = sum(float((theta[k][0] - down.gamma[k][c]).square().sum()) for k in theta)
            energy = gap / 4
            expected = {
                "mean": -loss - energy,
                "sum": -n * loss - energy,
                "per_sample": -loss - energy / n,
                "likelihood": -loss,
                "num_examples": math.log(n),
                "uniform": 0.0,
            }[omega]
            assert float(up.log_omega[c]) == pytest.approx(expected, abs=1e-10)


def test_omega_pass_leaves_no_trace() -> None:
    """Computing ω changes neither the model nor its buffers nor any later draw: 'mean' and 'uniform' train alike."""
    data = federation(sizes=(30, 21))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    with_pass, without = (one_round(fedmap(data, module=normed, omega=o), data)[3] for o in ("mean", "uniform"))
    assert same(with_pass, without)
    method = fedmap(data)
    state = torch.random.get_rng_state()
    one_round(method, data)
    assert torch.equal(state, torch.random.get_rng_state())


def test_message_sizes() -> None:
    """Up: the d weights and one float64; down: the d weights."""
    data = federation()
    method = fedmap(data)
    _, down, _, _, up = one_round(method, data)
    d = method.task.size
    assert scalars(tree.index(up, [0])) == d + 1
    assert up.log_omega.dtype == torch.float64
    assert scalars(tree.index(down, [0])) == d


def test_start_from_gamma_forgets_the_client() -> None:
    """With start_from='gamma', the client's last model has no influence; with 'own', it has."""
    data = federation()
    for start, forgets in (("gamma", True), ("own", False)):
        method = fedmap(data, start_from=start)
        _, down, client, _, _ = one_round(method, data)
        other = tree.map(lambda leaf: leaf + 0.1, client)
        a, b = (method.local_update(c, down, data.train, keys(data, "r"))[0] for c in (client, other))
        assert same(a, b) is forgets


def test_the_first_release_keeps_its_own_first_layer() -> None:
    """Without steps, a client ends where it starts: γ, but its own first layer."""
    data = federation()
    method = with_train(fedmap(data, start_from="first_layer"), epochs=0)
    _, down, client, _, _ = one_round(method, data)
    own = tree.map(lambda leaf: leaf + 0.1, client)
    found = method.local_update(own, down, data.train, keys(data, "r"))[0].theta
    first = next(name for name, _ in method.task.module.named_parameters()).rpartition(".")[0]
    assert {k for k in found if torch.equal(found[k], own.theta[k])} == {f"{first}.weight", f"{first}.bias"}
    assert all(torch.equal(v, down.gamma[k]) for k, v in found.items() if not k.startswith(first))


def test_the_summed_loss_weighs_the_prior_by_one_over_n() -> None:
    """Eq. 6 is Σ l_i + R; divided by n, its gradient is that of the mean loss plus (θ - γ) / (σ² n).

    The likelihood of Eq. 3 is then that of all examples, n times the mean's logarithm.
    """
    data = federation()
    method = fedmap(data, loss="sum", sigma2=2.0, omega="likelihood")
    _, down, _, client, up = one_round(method, data)
    fixed, batch = Fixed(down, data.train.n), next(data.train.batches(100))
    _, grads = value_and_grad(method.objective, client.theta, fixed, batch)
    _, plain = value_and_grad(lambda w, _, b: method.task.nll(w, b), client.theta, None, batch)
    for c, n in enumerate(data.train.size):
        pull = (client.theta["head.bias"][c] - down.gamma["head.bias"][c]) / (2.0 * n)
        assert torch.allclose(grads["head.bias"][c], plain["head.bias"][c] + pull, atol=1e-12)
    assert torch.allclose(up.log_omega, -data.train.n * method.task.data_nll(client.theta, data.train), atol=1e-10)


def test_the_convex_prior_without_its_network_is_a_gaussian() -> None:
    """With f = 0, R = α/2 ‖θ - γ‖² + ε (‖θ‖² + ‖γ‖²)."""
    data = federation()
    method = fedmap(data, prior="icnn", icnn_pull=0.5)
    _, down, _, client, _ = one_round(method, data)
    silent = down._replace(network=tree.zeros_like(down.network))
    a, b = ({k: v[2] for k, v in tree_.items()} for tree_ in (client.theta, down.gamma))
    apart, size = (
        sum(float(x.square().sum()) for x in parts) for parts in ([a[k] - b[k] for k in a], [*a.values(), *b.values()])
    )
    assert float(method.energy(client.theta, silent)[2]) == pytest.approx(0.25 * apart + 1e-4 * size, rel=1e-12)
    assert not torch.allclose(method.energy(client.theta, down), method.energy(client.theta, silent))


def test_the_server_lowers_the_clients_weighted_energy() -> None:
    """After γ, the networks take steps that lower Σ ω R at the new γ; with none, they stay; they are sent, not kept."""
    data = federation()
    for steps in (0, 3):
        method = fedmap(data, prior="icnn", icnn_steps=steps, icnn_lr=0.01)
        server, _, _, client, up = one_round(method, data)
        found = method.aggregate(server, up, torch.arange(len(data)))
        omega = up.log_omega.softmax(0)
        before, after = (
            float((omega * method.energy(client.theta, tree.expand(Prior(found.gamma, {}, net), len(data)))).sum())
            for net in (server.network, found.network)
        )
        assert (after < before) if steps else after == before
    assert scalars(method.broadcast(found, torch.arange(1))) > 64 * 2 * method.task.size


def test_a_stronger_prior_keeps_clients_closer() -> None:
    data = federation()
    gaps = []
    for sigma2 in (0.3, 3.0, 30.0):
        _, down, _, client, _ = one_round(fedmap(data, sigma2=sigma2), data)
        gaps.append(float(tree.sqdist(client.theta, down.gamma).mean()))
    assert gaps == sorted(gaps)


def test_a_client_never_seen_starts_at_the_prior() -> None:
    data = federation()
    method = with_train(fedmap(data), epochs=0)
    assert isinstance(method, FedMAP)
    _, down, _, client, _ = one_round(method, data)
    personal = method.personalise(client, down, data.train, keys(data))
    assert isinstance(personal, Weights)
    assert same(personal.w, tree.clone(down.gamma))
    assert len(SIZES) == len(data)
    assert replace(method, sigma2=2.0).precision == 0.5


def test_learned_variance_is_maximum_likelihood_in_a_linear_gaussian_model() -> None:
    """Random effects: θ_k ~ N(γ, σ²), data mean ȳ_k ~ N(θ_k, s²/n_k). Exact posteriors have precision n_k/s² + 1/σ².

    Alternating exact posteriors with the server's two means (uniform weights) is expectation-maximisation, whose fixed
    point maximises the marginal likelihood Π N(ȳ_k; γ, σ² + s²/n_k). SciPy maximises that directly.
    """
    from scipy.optimize import minimize

    rng = np.random.default_rng(3)
    n, s2 = rng.integers(2, 30, size=40), 2.0
    y = 1.5 + rng.normal(size=40) * 0.8 + rng.normal(size=40) * np.sqrt(s2 / n)
    data = federation()
    method = fedmap(data, prior="diagonal", omega="uniform", variance_floor=1e-9)
    prior = Prior({"t": torch.zeros(1, dtype=torch.float64)}, {"t": torch.full((1,), 9.0, dtype=torch.float64)}, {})
    h, ybar = torch.from_numpy(n / s2)[:, None], torch.from_numpy(y)[:, None]
    for _ in range(3000):
        gamma, sigma2 = prior.gamma["t"], prior.variance["t"]
        variance = 1 / (h + 1 / sigma2)
        theta = variance * (h * ybar + gamma / sigma2)
        up = Up({"t": theta}, torch.zeros(40, dtype=torch.float64), {"t": variance})
        prior = method.aggregate(prior, up, torch.arange(40))

    def cost(v: Any) -> float:
        spread = np.exp(v[1]) + s2 / n
        return float((np.log(spread) + (y - v[0]) ** 2 / spread).sum())

    best = minimize(cost, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 5000}).x
    assert float(prior.gamma["t"]) == pytest.approx(best[0], abs=1e-6)
    assert float(prior.variance["t"]) == pytest.approx(math.exp(best[1]), rel=1e-5)


def test_posterior_variance_is_laplaces() -> None:
    """v = 1 / (h + 1/σ²), h the diagonal Hessian of the mean loss; for softmax regression the GGN is the Hessian."""
    data = federation(sizes=(30, 12))
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    method = fedmap(data, module=linear, prior="diagonal", sigma2=0.5)
    _, down, _, client, up = one_round(method, data)
    for c in range(2):
        x, y = data.train.client(c)

        def loss(weight: Tensor, bias: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return nn.functional.cross_entropy(x @ weight.T + bias, y)

        weight, bias = client.theta["1.weight"][c], client.theta["1.bias"][c]
        hessian: Any = torch.autograd.functional.hessian(loss, (weight, bias))  # type: ignore[no-untyped-call]
        exact = hessian[0][0].reshape(12, 12).diagonal(), hessian[1][1].diagonal()
        assert torch.allclose(up.variance["1.weight"][c].flatten(), 1 / (exact[0] + 2), atol=1e-10)
        assert torch.allclose(up.variance["1.bias"][c], 1 / (exact[1] + 2), atol=1e-10)
    assert float(down.variance["1.bias"][0, 0]) == 0.5


def test_learned_variance_starts_at_sigma2_and_has_a_floor() -> None:
    """The first round's objective is the isotropic one; afterwards no variance is below the floor."""
    data = federation()
    diagonal_prior, isotropic = (
        fedmap(data, prior=p, sigma2=2.0, variance_floor=1.9) for p in ("diagonal", "isotropic")
    )
    a, b = (one_round(m, data)[3] for m in (diagonal_prior, isotropic))
    assert torch.allclose(flat(a), flat(b), atol=1e-12)
    server = rounds(diagonal_prior, data).server
    learned = torch.cat([v.flatten() for k, v in server.items() if k.startswith("variance")])
    assert len(learned) == diagonal_prior.task.size
    assert float(learned.min()) >= 1.9
    assert scalars(one_round(diagonal_prior, data)[1]) == len(data) * 2 * diagonal_prior.task.size
