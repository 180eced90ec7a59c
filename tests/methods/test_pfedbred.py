"""pFedBreD against its equations, on quadratics whose prox is known; and its identities with pFedMe and Per-FedAvg."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

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
from fedprior.methods import build
from fedprior.methods._envelope import Client, Run, Up
from fedprior.methods.pfedbred import PFedBreD
from fedprior.methods.pfedme import PFedMe
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.protocol import Weights
from fedprior.rng import Key, Keys
from fedprior.training import Train
from fedprior.tree import Params
from support import HALF, TRAIN, bound, federation, flat, keys, one_round, rounds, same

VARIANTS = ("lg", "meg", "mh", "mh_code")
SIZES = (21, 8, 33)
NORMED = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
OWN = Keys.of(Key.from_seed(5), ["site"])

Array = NDArray[np.float64]
Start = Literal["v", "mu", "theta"]


class Quadratic(Task):
    """f(θ; B) = mean over the batch of ½ (θ - x)' A (θ - x), θ all weights in a row: ∇f = A (θ - x̄)."""

    def __init__(self, A: Array, *widths: int) -> None:
        layers = [nn.Linear(p, 1, bias=False) for p in widths or (len(A),)]
        super().__init__(nn.Sequential(*layers), Categorical(2), dtype=torch.float64)
        self.A = torch.from_numpy(A)
        self.calls = 0

    def nll(self, w: Params, batch: Batch, *, train: bool = True) -> Tensor:
        self.calls += 1
        gap = flat(w).unsqueeze(1) - batch.x  # [C, B, P]
        return (0.5 * torch.einsum("cbp,pq,cbq->cb", gap, self.A, gap) * batch.weight).sum(1)


SCALAR = Quadratic(np.eye(1))  # f(θ) = (θ - 1)²/2 on the example x = 1


def point(task: Task, values: Any) -> Params:
    """A stack of one client with the given weights in a row."""
    shapes = {k: v.shape for k, v in task.weights(task.module).items()}
    parts = np.split(np.array(np.atleast_1d(values), dtype=np.float64), np.cumsum([s.numel() for s in shapes.values()]))
    return {k: torch.from_numpy(p.copy()).view(1, *shapes[k]) for k, p in zip(shapes, parts[:-1], strict=True)}


def batch_of(*rows: Any) -> Batch:
    """One client's batch of examples; x is all that a quadratic looks at."""
    x = torch.as_tensor(np.stack([np.atleast_1d(r) for r in rows]), dtype=torch.float64)
    return Batch(x[None], torch.zeros(1, len(x), dtype=torch.int64), torch.full((1, len(x)), 1 / len(x)).double())


def data_of(*rows: Any) -> ClientData:
    batch = batch_of(*rows)
    return ClientData.single(batch.x[0], batch.y[0])


def pfedme(task: Task, train: Train, **options: Any) -> PFedMe:
    method = build("pfedme", options, train).bind(task, train)
    assert isinstance(method, PFedMe)
    return method


def pfedbred(task: Task, train: Train, **options: Any) -> PFedBreD:
    method = build("pfedbred", options, train).bind(task, train)
    assert isinstance(method, PFedBreD)
    return method


def on_federation(data: Federation, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> PFedBreD:
    method = bound("pfedbred", data, train, module, **options)
    assert isinstance(method, PFedBreD)
    return method


def carry(method: PFedBreD | PFedMe, v: Params, theta: Params) -> Run:
    """A local run about to begin; with memory of its own, since steps write into it."""
    state = method.train.make().init(method.task.parameters(v))
    one = Client(theta, v)
    count = len(next(iter(v.values())))
    data = ClientData(torch.empty(0), torch.empty(0), (0,) * count, (1,) * count)
    return tree.clone(envelope.start(one, v, state, data, method.task.dtype))


def fixed(method: PFedBreD, w_last: Params, own: Keys = OWN) -> dict[str, Params]:
    return {"w_last": w_last, "metric": method.metric(own)}


# The golden scalar

ONE_STEP = Train(lr=0.01, batch_size=1, steps=1)  # α_m = 0.01, R = 1

GOLDEN: dict[str, tuple[dict[str, Any], float, float, float]] = {  # options, μ, θ, new v
    "lg": ({"variant": "lg"}, 0.01, 0.0459981361, 0.0053997204),
    "lg as in the code": ({"variant": "lg", "meta_gradient": 0.05}, 0.05, 0.0845436659, 0.0051815499),
    "meg": ({"variant": "meg"}, 0.02, 0.0472702797, 0.0040905420),
    "mh": ({"variant": "mh"}, 0.03, 0.0527245427, 0.0034086814),
    "mh_code": ({"variant": "mh_code"}, 0.0299, 0.0568102983, 0.0139365447),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_scalar(name: str) -> None:
    """f(θ) = (θ - 1)²/2, v = 0, w_last = 0.2, θ_prev = 0.6, λ = 15, α = α_m = 0.01, K = 5, η = 0.05, η_a = 0.01.

    ∇f(0) = -1 and w_last - θ_prev = -0.4, so μ = 0.01 (lg), 0.02 (meg), 0.03 (mh). For mh_code: look ahead to
    0.01, where the gradient is -0.99; v moves to 0.0099 and μ = 0.0299.
    K steps from s give θ = θ* + (1 - 0.01·16)⁵ (s - θ*), θ* = (1 + 15μ)/16, s = μ for lg and v otherwise; then
    v ← v - 0.01 · 15 (μ - θ).
    """
    options, mu, theta, v = GOLDEN[name]
    method = pfedbred(SCALAR, ONE_STEP, **options)
    client, down = Client(point(SCALAR, 0.6), point(SCALAR, 0.2)), Weights(point(SCALAR, 0.0))
    updated, up, logs = method.local_update(client, down, data_of(1.0), OWN)
    moved = 0.0099 if name == "mh_code" else 0.0
    assert float(flat(method.centre(point(SCALAR, moved), client, batch_of(1.0)))) == pytest.approx(mu, abs=1e-12)
    assert float(flat(updated.theta)) == pytest.approx(theta, abs=1e-9)
    assert float(flat(up.v)) == pytest.approx(v, abs=1e-9)
    assert float(logs["centre_shift"]) == pytest.approx(mu - moved, abs=1e-12)
    assert same(updated.w_last, up.v)
    best, start = (1 + 15 * mu) / 16, mu if name.startswith("lg") else moved
    assert theta == pytest.approx(best + 0.84**5 * (start - best), abs=1e-10)
    assert v == pytest.approx(moved - 0.15 * (mu - theta), abs=1e-10)


def test_golden_scalar_of_pfedme() -> None:
    """As above with μ = v = 0: θ = (1 - 0.84⁵)/16 = 0.0363617536, v = 0.15 θ = 0.0054542630."""
    method = pfedme(SCALAR, ONE_STEP)
    client, down = Client(point(SCALAR, 0.6), point(SCALAR, 0.2)), Weights(point(SCALAR, 0.0))
    updated, up, _ = method.local_update(client, down, data_of(1.0), OWN)
    assert float(flat(updated.theta)) == pytest.approx(0.0363617536, abs=1e-9)
    assert float(flat(up.v)) == pytest.approx(0.0054542630, abs=1e-9)
    run = method.run_step(carry(method, down.w, client.theta), {}, batch_of(1.0), OWN)
    assert float(flat(run.theta)) == float(flat(updated.theta))
    assert float(flat(run.v)) == float(flat(up.v))


def by_hand(variant: str, start: str, centres: list[float]) -> list[tuple[float, float]]:
    """B2 of the specification in plain floats, from v = 0, θ = 0.6, w_last = 0.2: (θ, v) after each iteration."""
    v, theta, w_last = 0.0, 0.6, 0.2
    lam, alpha, alpha_m, eta_a, eta = 15.0, 0.01, 0.02, 0.03, 0.07
    batches, found = iter(centres), []
    for c in batches:
        centre = c
        if variant == "mh_code":
            look_ahead = v - eta_a * (v - centre)
            centre = next(batches)
            v = v - eta_a * (look_ahead - centre)
        mu = v
        if variant in ("lg", "mh"):
            mu -= eta_a * (v - centre)
        if variant in ("meg", "mh", "mh_code"):
            mu -= eta * (w_last - theta)
        theta = {"v": v, "mu": mu, "theta": theta}[start]
        for _ in range(5):
            theta -= alpha * ((theta - centre) + lam * (theta - mu))
        v -= alpha_m * lam * (mu - theta)
        found.append((theta, v))
    return found


@pytest.mark.parametrize("start", ["v", "mu", "theta"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_iterations_by_hand(variant: str, start: Start) -> None:
    """Four iterations on unlike batches: θ of one is remembered by the next, w_last stays; mh_code eats two batches.

    mh_code looks ahead on the first batch of a pair, and steps and solves on the second.
    """
    train = Train(lr=0.02, batch_size=1, steps=4)
    options = {"variant": variant, "prox_start": start, "meta_gradient": 0.03, "meta_memory": 0.07, "prox_lr": 0.01}
    method = pfedbred(SCALAR, train, **options)
    centres = [1.0, 3.0, -2.0, 0.5, 4.0, -1.0, 2.0, 2.5][: 8 if variant == "mh_code" else 4]
    run = carry(method, point(SCALAR, 0.0), point(SCALAR, 0.6))
    constant = fixed(method, point(SCALAR, 0.2))
    found = []
    for i, c in enumerate(centres):
        run = method.run_step(run, constant, batch_of(c), OWN)
        if variant != "mh_code" or i % 2 == 1:
            found.append((float(flat(run.theta)), float(flat(run.v))))
    np.testing.assert_allclose(found, by_hand(variant, start, centres), rtol=0, atol=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_default_start_of_the_solver(variant: str) -> None:
    """As in the authors' code: at μ for lg, at v otherwise."""
    usual = pfedbred(SCALAR, ONE_STEP, variant=variant)
    chosen = replace(usual, prox_start="mu" if variant == "lg" else "v")
    client, down = Client(point(SCALAR, 0.6), point(SCALAR, 0.2)), Weights(point(SCALAR, 0.0))
    a, b = (m.local_update(client, down, data_of(1.0), OWN)[0] for m in (usual, chosen))
    assert same(a, b)


def test_published_options() -> None:
    """λ 15, K 5, η 0.05, η_a 0.01, β 1; and α = 0.01 beside a learning rate of 0.01, which it follows here."""
    method = PFedBreD()
    assert (method.variant, method.generator, method.prox_start) == ("mh", "euclidean", "auto")
    assert (method.strength, method.prox_lr, method.prox_steps) == (15.0, None, 5)
    assert replace(method, train=Train(lr=0.01)).prox_step() == 0.01
    assert (method.meta_memory, method.meta_gradient, method.beta) == (0.05, 0.01, 1.0)
    assert method.hints.everyone_trains


def test_the_centre_moves_toward_the_personal_model() -> None:
    """w_last - θ = -δ moves μ by +ηδ; λ has no part in it."""
    for strength in (15.0, 60.0):
        method = pfedbred(SCALAR, ONE_STEP, variant="meg", meta_memory=0.1, strength=strength)
        for theta, expected in ((0.7, 1.05), (0.2, 1.0), (-0.3, 0.95)):
            client = Client(point(SCALAR, theta), point(SCALAR, 0.2))
            assert float(flat(method.centre(point(SCALAR, 1.0), client, batch_of(1.0)))) == pytest.approx(
                expected, abs=1e-14
            )


@pytest.mark.parametrize(
    ("name", "gradients"), [("pfedme", 100), ("lg", 120), ("meg", 100), ("mh", 120), ("mh_code", 140)]
)
def test_gradients_per_round(name: str, gradients: int) -> None:
    """R = 20 iterations (not passes over the data) of K = 5 prox steps, and 0, 1 or 2 meta gradients each."""
    task = Quadratic(np.eye(1))
    train = Train(lr=0.01, batch_size=2, steps=20)
    method = pfedme(task, train) if name == "pfedme" else pfedbred(task, train, variant=name)
    w = point(task, 0.0)
    method.local_update(Client(w, w), Weights(w), data_of(1.0, 2.0, 3.0, 4.0, 5.0), OWN)
    assert task.calls == gradients


# The prox solver


@pytest.mark.parametrize(("strength", "left"), [(15.0, 0.4437), (30.0, 0.1681), (60.0, 0.0102)])
def test_the_solver_where_f_is_flat(strength: float, left: float) -> None:
    """θ_K = μ + (1 - αλ)^K (θ₀ - μ): with α = 0.01 and K = 5, 0.444, 0.168 and 0.010 of the gap are left."""
    flat_f = Quadratic(np.zeros((2, 2)))
    start, mu = np.array([3.0, -1.0]), np.array([1.0, 1.0])
    for K in (1, 2, 5):
        theta, value = envelope.prox(
            flat_f, point(flat_f, start), point(flat_f, mu), envelope.euclidean(flat_f, point(flat_f, mu)),
            batch_of([0.0, 0.0]), strength=strength, lr=0.01, steps=K,
        )  # fmt: skip
        np.testing.assert_allclose(flat(theta)[0], mu + (1 - 0.01 * strength) ** K * (start - mu), rtol=1e-13)
        assert float(value) == 0
    assert float((flat(theta)[0, 0] - 1) / 2) == pytest.approx(left, abs=5e-5)


class Half(Quadratic):
    """f looks at the first of two tensors only."""

    def nll(self, w: Params, batch: Batch, *, train: bool = True) -> Tensor:
        return (w["0.weight"].flatten(1) - 1).square().sum(1) / 2


def test_the_solver_where_f_ignores_a_tensor() -> None:
    """A tensor that f does not depend on is flat too: θ = μ + (1 - αλ)^K (θ₀ - μ) = 1 + 0.85⁵ (3 - 1) there.

    In the other, θ* = (1 + 15)/16 = 1 and θ = 1 + 0.84⁵ (3 - 1).
    """
    task = Half(np.eye(2), 1, 1)
    start, mu = point(task, [3.0, 3.0]), point(task, [1.0, 1.0])
    metric = envelope.euclidean(task, mu)
    theta, _ = envelope.prox(task, start, mu, metric, batch_of([0.0, 0.0]), strength=15.0, lr=0.01, steps=5)
    np.testing.assert_allclose(flat(theta)[0], [1 + 2 * 0.84**5, 1 + 2 * 0.85**5], rtol=1e-13)


def problem(seed: int = 0) -> tuple[Quadratic, Array, Array, Array, Array, Array]:
    """A task over two tensors of 2 and 3 weights, A, b = A x̄, and points x̄, v and w_last."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 5))
    A = root @ root.T / 5 + 0.1 * np.eye(5)
    x, v, w_last = rng.normal(size=(3, 5))
    return Quadratic(A, 2, 3), A, A @ x, x, v, w_last


def test_many_steps_reach_the_exact_prox() -> None:
    """f = ½ θ'Aθ - b'θ: prox(μ) = (A + λI)⁻¹ (b + λμ), for a step below 2/(L + λ)."""
    task, A, b, x, v, _ = problem()
    mu = v + 1
    lam, L = 2.0, float(np.linalg.eigvalsh(A).max())
    metric = envelope.euclidean(task, point(task, v))
    exact = np.linalg.solve(A + lam * np.eye(5), b + lam * mu)
    for lr, reaches in ((1.0 / (L + lam), True), (2.2 / (L + lam), False)):
        theta, value = envelope.prox(
            task, point(task, v), point(task, mu), metric, batch_of(x), strength=lam, lr=lr, steps=150
        )
        assert np.allclose(flat(theta)[0], exact, rtol=0, atol=1e-11) is reaches
    assert float(value) == pytest.approx((v - x) @ A @ (v - x) / 2, rel=1e-13), "the loss at the start"


def test_a_larger_strength_is_a_larger_precision() -> None:
    """λ multiplies the squared distance: the larger it is, the closer θ stays to μ."""
    task, _, _, x, v, _ = problem()
    gaps = []
    for strength in (0.5, 2.0, 8.0):
        method = pfedbred(task, Train(lr=0.01, batch_size=1, steps=1), strength=strength, prox_lr=0.1, prox_steps=200)
        w = point(task, v)
        client, _, _ = method.local_update(Client(w, w), Weights(w), data_of(x), OWN)
        mu = flat(method.centre(w, Client(w, w), batch_of(x)))
        gaps.append(float((flat(client.theta) - mu).norm()))
    assert gaps == sorted(gaps, reverse=True)


def exact_envelope(A: Array, b: Array, lam: float, mu: Array) -> float:
    """min_θ ½ θ'Aθ - b'θ + λ/2 ‖θ - μ‖²."""
    theta = np.linalg.solve(A + lam * np.eye(len(A)), b + lam * mu)
    return float(theta @ A @ theta / 2 - b @ theta + lam / 2 * (theta - mu) @ (theta - mu))


@pytest.mark.parametrize("eta_a", [0.0, 0.05, 0.3])
def test_first_order_gradient_of_the_envelope(eta_a: float) -> None:
    """lg: μ(v) = v - η_a (Av - b), F(v) = min f + λ/2 ‖θ - μ(v)‖², ∇F = λ (I - η_a A)' (μ - prox(μ)).

    Central differences of F confirm it. The method steps along λ (μ - prox(μ)), without the Jacobian I - η_a A:
    exact for η_a = 0, which is pFedMe, and off by η_a A otherwise.
    """
    task, A, b, x, v, _ = problem()
    lam, lr = 3.0, 0.01
    method = pfedbred(
        task, Train(lr=lr, batch_size=1, steps=1),
        variant="lg", meta_gradient=eta_a, strength=lam, prox_lr=0.1, prox_steps=300,
    )  # fmt: skip
    w = point(task, v)
    _, up, _ = method.local_update(Client(w, w), Weights(w), data_of(x), OWN)
    step = (v - flat(up.v)[0].numpy()) / lr

    def centre(v: Array) -> Array:
        moved: Array = v - eta_a * (A @ v - b)
        return moved

    prox = np.linalg.solve(A + lam * np.eye(5), b + lam * centre(v))
    first_order = lam * (centre(v) - prox)
    exact = (np.eye(5) - eta_a * A).T @ first_order
    h = 1e-5
    slope = [
        (exact_envelope(A, b, lam, centre(v + h * e)) - exact_envelope(A, b, lam, centre(v - h * e))) / (2 * h)
        for e in np.eye(5)
    ]
    np.testing.assert_allclose(exact, slope, rtol=0, atol=1e-8)
    np.testing.assert_allclose(step, first_order, rtol=0, atol=1e-10)
    dropped = np.linalg.norm(step - exact) / np.linalg.norm(exact)
    assert (dropped > 0.02) if eta_a else (dropped < 1e-9)


# The scaled generator


def test_metric_by_tensor_scale() -> None:
    """Tensors (3, 1) and (0, 0.5, 1), mean squares 5 and 5/12: A ∝ (1/5, 12/5), mean (2·1/5 + 3·12/5)/5 = 38/25.

    Divided by it: A = (5/38, 30/19), whose mean over the five parameters is one.
    """
    task = Quadratic(np.eye(5), 2, 3)
    w = tree.index(point(task, [3.0, 1.0, 0.0, 0.5, 1.0]), 0)
    metric = envelope.per_tensor_scale(task, w)
    assert float(metric["0.weight"]) == pytest.approx(5 / 38, rel=1e-13)
    assert float(metric["1.weight"]) == pytest.approx(30 / 19, rel=1e-13)
    twice = envelope.per_tensor_scale(task, tree.map(lambda leaf: 2 * leaf, w))
    assert torch.allclose(torch.stack(list(twice.values())), torch.stack(list(metric.values())), rtol=1e-13)


def test_metric_has_mean_one_and_is_common_to_all() -> None:
    """Over all parameters of a network, so that λ keeps its meaning; buffers have none. It depends on the run's
    initial weights alone, not on who asks."""
    data = federation(SIZES)
    for module in (None, NORMED):
        method = on_federation(data, module=module, generator="scaled")
        metric = method.metric(keys(data, "a"))
        w = method.init_server(Key.from_seed(5)).w
        assert set(metric) == set(method.task.parameters(w))
        total = sum(float(metric[k]) * w[k].numel() for k in metric)
        assert total / method.task.size == pytest.approx(1, rel=1e-12)
        assert same(method.metric(keys(data, "round", 7)[[2]]), metric)
        plain = replace(method, generator="euclidean").metric(keys(data, "a"))
        assert all(float(a) == 1 for a in plain.values())
    method = on_federation(data, generator="scaled")
    w, metric = method.init_server(Key.from_seed(5)).w, method.metric(keys(data, "a"))
    products = [float(metric[k] * w[k].square().mean()) for k in metric]
    assert products == pytest.approx([products[0]] * len(products), rel=1e-12)


def test_scaled_prox_and_step() -> None:
    """D = ½ (θ - μ)' M (θ - μ): θ* = (A + λM)⁻¹ (b + λMμ), and v ← v - α_m λ M (μ - θ*), through a whole round."""
    task, A, b, x, v, w_last = problem()
    lam, lr = 2.0, 0.05
    train = Train(lr=lr, batch_size=1, steps=1)
    options: dict[str, Any] = {"variant": "mh", "strength": lam, "prox_lr": 0.1, "prox_steps": 600}
    method = pfedbred(task, train, generator="scaled", **options)
    init = tree.expand(task.init(OWN.root.fold("init")), 1)
    first, second = (float(init[k].square().mean()) for k in ("0.weight", "1.weight"))
    diagonal = np.array([1 / first] * 2 + [1 / second] * 3)
    M = np.diag(diagonal / diagonal.mean())
    assert abs(M[0, 0] - 1) > 0.05
    theta_prev = v + 0.5
    client = Client(point(task, theta_prev), point(task, w_last))
    updated, up, _ = method.local_update(client, Weights(point(task, v)), data_of(x), OWN)
    mu = v - 0.01 * (A @ v - b) - 0.05 * (w_last - theta_prev)
    theta = np.linalg.solve(A + lam * M, b + lam * M @ mu)
    np.testing.assert_allclose(flat(updated.theta)[0], theta, rtol=0, atol=1e-10)
    np.testing.assert_allclose(flat(up.v)[0], v - lr * lam * M @ (mu - theta), rtol=0, atol=1e-10)


def test_a_tensor_that_starts_at_zero_does_not_take_the_whole_metric() -> None:
    """Biases of norm layers start at zero and have no scale. The others' metric must not vanish for them, and with the
    default λ and α the solver must stay stable, α λ max A < 2: a learning rate of 0.1 is cut to 1 / (2 λ max A)."""
    data = federation(SIZES)
    norm = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 64), nn.GroupNorm(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )
    method = on_federation(data, replace(TRAIN, lr=0.01), norm, generator="scaled")
    metric = {k: float(a) for k, a in method.metric(keys(data)).items()}
    assert np.isfinite(rounds(method, data).vector()).all()
    largest = max(metric.values())
    assert method.prox_step(largest) * method.strength * largest < 2
    assert replace(method, train=TRAIN).prox_step(largest) == pytest.approx(1 / (30 * largest))
    assert metric["4.weight"] > 0.1  # 4096 of the 4803 parameters


# Identities


@pytest.mark.parametrize("variant", ["lg", "meg", "mh"])
def test_without_meta_steps_it_is_pfedme(variant: str) -> None:
    """η = η_a = 0 makes μ = v: bit for bit pFedMe, over rounds in which half of the clients report.

    Zero means zero: the authors' code would fall back to the learning rate.
    """
    data = federation(SIZES)
    zero = on_federation(data, variant=variant, meta_gradient=0, meta_memory=0, prox_start="v")
    ours = rounds(zero, data, 4, participation=HALF)
    theirs = rounds(bound("pfedme", data), data, 4, participation=HALF)
    assert (ours.vector() == theirs.vector()).all()
    for name, value in theirs.states.items():
        assert torch.equal(ours.states[name], value)
    used = {"lg": "meta_gradient", "meg": "meta_memory", "mh": "meta_memory"}[variant]
    alive: dict[str, Any] = {"meta_gradient": 0, "meta_memory": 0, "prox_start": "v", used: 0.05}
    other = rounds(on_federation(data, variant=variant, **alive), data, 4, participation=HALF)
    assert (other.vector() != theirs.vector()).any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_meta_steps_on_given_batches(variant: str) -> None:
    """The same on a network batch by batch, whatever θ_prev and w_last hold; mh_code with pFedMe's batch as its second.

    Its first batch, of other examples, must have no effect at all.
    """
    data = federation(SIZES)
    me = bound("pfedme", data)
    assert isinstance(me, PFedMe)
    zero = on_federation(data, variant=variant, meta_gradient=0, meta_memory=0, prox_start="v")
    _, down, _, client, _ = one_round(me, data)
    v, theta, w_last = tree.clone(down.w), client.theta, client.w_last
    junk = tree.map(lambda leaf: leaf + 7, w_last)
    ours, theirs = carry(zero, v, theta), carry(me, v, v)
    own = keys(data, "x")
    batches = [b for b in data.train.batches(3) if (b.weight > 0).any(1).all()]
    assert len(batches) > 1
    for batch in batches:
        theirs = me.run_step(theirs, {}, batch, own)
        if variant == "mh_code":
            other = batch._replace(x=batch.x.flip(0) - 1)
            ours = zero.run_step(ours, fixed(zero, junk, own), other, own)
        ours = zero.run_step(ours, fixed(zero, junk, own), batch, own)
        assert same(ours.v, theirs.v)
        assert same(ours.theta, theirs.theta)


def test_the_first_iteration_of_meg_is_pfedme() -> None:
    """In round one w_last = θ = w: with R = 1 nothing is remembered yet; with R = 2 there is."""
    data = federation(SIZES)
    for steps, equal in ((1, True), (2, False)):
        train = replace(TRAIN, steps=steps)
        ours = rounds(on_federation(data, train, variant="meg"), data, 1)
        theirs = rounds(bound("pfedme", data, train), data, 1)
        assert bool((ours.vector() == theirs.vector()).all()) is equal


@pytest.mark.parametrize("variant", ["lg", "meg", "mh"])
def test_without_a_prior_the_local_model_rests(variant: str) -> None:
    """λ = 0: v stays at w, bit for bit."""
    data = federation(SIZES)
    _, down, _, client, up = one_round(on_federation(data, variant=variant, strength=0), data)
    assert same(up.v, tree.clone(down.w))
    assert not same(client.theta, tree.clone(down.w))


def test_without_a_prior_mh_code_is_per_fedavg() -> None:
    """λ = 0: v ← v - η_a ∇f(v - η_a ∇f(v; B₁); B₂), first-order Per-FedAvg with both steps η_a, on pairs of batches.

    On the quadratic ∇f(v; B) = A (v - x̄_B). R epochs take 2R passes.
    """
    task, A, _, _, v, w_last = problem()
    data = data_of(*np.random.default_rng(1).normal(size=(7, 5)))
    eta_a = 0.1
    method = pfedbred(task, Train(lr=0.01, batch_size=2, epochs=3), variant="mh_code", strength=0, meta_gradient=eta_a)
    client = Client(point(task, v + 1), point(task, w_last))
    _, up, _ = method.local_update(client, Weights(point(task, v)), data, OWN)
    plan = schedule(data, OWN.fold("descend"), method.budget())
    assert len(plan.rows) == 3 * 2 * 4
    means = [data.x[plan.rows[s, 0, : plan.counts[s, 0]]].mean(0).numpy() for s in range(len(plan.rows))]
    for first, second in zip(means[::2], means[1::2], strict=True):
        ahead = v - eta_a * A @ (v - first)
        v = v - eta_a * A @ (ahead - second)
    np.testing.assert_allclose(flat(up.v)[0], v, rtol=0, atol=1e-12)


# Memory, server and buffers


@pytest.mark.parametrize("variant", VARIANTS)
def test_memory_is_the_local_model(variant: str) -> None:
    """After a round w_last is the v that the client sent, not the mean that the server made of them.

    The next round uses it, unless the variant is lg, which remembers nothing.
    """
    data = federation(SIZES)
    method = on_federation(data, variant=variant)
    server, _, _, client, up = one_round(method, data)
    assert same(client.w_last, up.v)
    new = tree.expand(method.aggregate(server, up, torch.arange(3)), 3)
    assert not same(client.w_last, tree.clone(new.w))
    own = keys(data, "round", 1)
    kept, forgot = (
        method.local_update(c, new, data.train, own)[0] for c in (client, client._replace(w_last=tree.clone(new.w)))
    )
    assert same(kept, forgot) is (variant == "lg")


def test_a_client_that_does_not_report() -> None:
    """It trains all the same: its θ and its memory change, and the server does not depend on its data."""
    data = federation(SIZES)
    method = on_federation(data)
    y = data.train.y.clone()
    rows = slice(data.train.start[1], data.train.start[1] + data.train.size[1])
    y[rows] = (y[rows] + 1) % 3
    servers, states = [], []
    for federated in (data, replace(data, train=replace(data.train, y=y))):
        with Engine(method, federated, 5) as engine:
            for number in range(3):
                before = tree.clone(tree.index(engine.memory.states, [1]))
                engine.round(number, [0, 1, 2], [0, 2])
                after = tree.index(engine.memory.states, [1])
                assert (flat(after.theta) != flat(before.theta)).any()
                assert (flat(after.w_last) != flat(before.w_last)).any()
            servers.append(tree.clone(engine.server))
            states.append(tree.clone(after))
    assert same(servers[0], servers[1])
    assert not same(states[0], states[1])


@pytest.mark.parametrize(("beta", "expected"), [(0.5, 6.625), (1.0, 3.25), (2.0, -3.5)])
def test_server_step(beta: float, expected: float) -> None:
    """v = (1, 4), n = (10, 30): mean 3.25; from w = 10, (1 - β) 10 + 3.25 β. β = 2 extrapolates: 2 · 3.25 - 10."""
    up = Up({"t": torch.tensor([[1.0], [4.0]], dtype=torch.float64)}, torch.tensor([10.0, 30.0], dtype=torch.float64))
    method = pfedbred(SCALAR, ONE_STEP, beta=beta)
    new = method.aggregate(Weights({"t": torch.tensor([10.0], dtype=torch.float64)}), up, torch.arange(2))
    assert float(new.w["t"]) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("start", ["v", "mu", "theta"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_running_statistics_reach_the_server(variant: str, start: Start) -> None:
    """Buffers are averaged: after a round the global model must not be left with statistics of no data (0 and 1)."""
    data = federation(SIZES)
    trace = rounds(on_federation(data, module=NORMED, variant=variant, prox_start=start), data, 1)
    assert (trace.server["w/2.running_mean"] != 0).all()
    assert (trace.server["w/2.running_var"] != 1).all()


def test_the_personal_model_is_the_last_theta() -> None:
    """And not the prior's centre, nor the local model."""
    data = federation(SIZES)
    method = on_federation(data)
    _, down, _, client, up = one_round(method, data)
    personal = method.personalise(client, down, data.train, keys(data))
    assert same(personal.w, client.theta)
    assert not same(personal.w, up.v)
