"""FedBPS's equations: Laplace variances, the mixture's moments, an exact mask, and who keeps what."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedprior import tree
from fedprior.data.client import ClientData, schedule
from fedprior.data.federation import Federation
from fedprior.engine import Engine
from fedprior.experiment.participation import Participation
from fedprior.methods.fedbps import Down, FedBPS, Server, Up, pack_bits
from fedprior.models import build as build_model
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.protocol import Weights
from fedprior.rng import Key, Keys
from fedprior.training import Train
from fedprior.tree import Params
from support import (
    CLASSES,
    FEATURES,
    HALF,
    TRAIN,
    bound,
    federation,
    flat,
    keys,
    models_of,
    one_round,
    rounds,
    same,
    scalars,
)

SCORES = ("total", "within", "between", "random")
every_score = pytest.mark.parametrize("score", SCORES)
Vector = NDArray[np.float64]


def fedbps(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> FedBPS:
    method = bound("fedbps", data, train, module, **options)
    assert isinstance(method, FedBPS)
    return method


def small(inputs: int, outputs: int = 1, **options: Any) -> FedBPS:
    """A linear model of (inputs + 1) · outputs parameters: biases first, then weights."""
    task = Task(nn.Linear(inputs, outputs), Categorical(max(2, outputs)), dtype=torch.float64)
    return FedBPS(**options).bind(task, TRAIN)


def linear(values: Tensor, inputs: int) -> Params:
    """Rows [C, d] as weights of `small`."""
    outputs = values.shape[1] // (inputs + 1)
    return {"head.bias": values[:, :outputs], "head.weight": values[:, outputs:].reshape(-1, outputs, inputs)}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def vector(w: Params) -> Tensor:
    """One client's parameters by name, [d]."""
    return torch.cat([w[k].flatten() for k in sorted(w)])


def bits(server: Server | Down, d: int) -> NDArray[np.bool_]:
    return np.unpackbits(server.mask.numpy(), bitorder="little")[:d].astype(bool)


def some_ups(inputs: int = 9, clients: int = 4, seed: int = 0) -> Up:
    d = inputs + 1
    w, v = numbers(clients, d, seed=seed), numbers(clients, d, seed=seed + 1).exp()
    return Up(linear(w, inputs), linear(v, inputs), torch.tensor([5.0, 1.0, 8.0, 2.0], dtype=torch.float64)[:clients])


def moments(ups: Up) -> tuple[Vector, Vector, Vector, Vector]:
    """(π [C], w [C, d], v [C, d], Σ π w [d]) in NumPy."""
    share = (ups.n / ups.n.sum()).numpy()
    w, v = flat(ups.w).numpy(), flat(ups.v).numpy()
    return share, w, v, share @ w


def test_algorithm_1_as_printed_keeps_the_most_certain_weights() -> None:
    """σ = h: two inputs, the second ten times the first, make h differ by 100, and the mask of half the weights turns.

    As a variance the weight of the small input is uncertain and personal; as printed, that of the large one is.
    """
    x = torch.tensor([[0.3, 3.0], [-0.2, -2.0], [0.1, 1.0]], dtype=torch.float64)
    data = ClientData.single(x, torch.tensor([0, 1, 1]))
    w = linear(torch.zeros(1, 3, dtype=torch.float64), 2)
    found = {s: small(2, sigma=s, score="within", p=0.5).variances(w, data) for s in ("variance", "hessian")}
    h = found["hessian"]["head.weight"][0, 0]
    assert torch.allclose(h, torch.tensor([0.25 * 0.14, 0.25 * 14.0], dtype=torch.float64))  # Σ x² (p - y)², p = ½
    assert torch.allclose(found["variance"]["head.weight"][0, 0], 1 / (h + 3 * 5e-4))


# The ends: FedAvg and Local


@every_score
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("participation", [Participation(), HALF], ids=["all", "half"])
def test_p_0_is_fedavg(score: str, dtype: torch.dtype, participation: Participation) -> None:
    """Nothing personal: after every round all models are the mean, bit for bit that of FedAvg."""
    data = federation(dtype=dtype)
    for count in (1, 2, 4):
        ours = rounds(fedbps(data, p=0, score=score), data, count, participation=participation)
        theirs = rounds(bound("fedavg", data), data, count, participation=participation)
        for client in data.clients:
            assert ours.models[client].keys() == theirs.models[client].keys()
            for name, value in theirs.models[client].items():
                assert (ours.models[client][name] == value).all()
                assert (ours.server[name].numpy() == value).all()
            assert (ours.test[client] == theirs.test[client]).all()


@every_score
@pytest.mark.parametrize("options", [{}, {"curvature": "ggn", "decay": 3.0}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_p_1_is_local(score: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Everything personal: bit-equal to training alone, whatever the curvature says."""
    data = federation(dtype=dtype)
    for count in (1, 4):
        ours = rounds(fedbps(data, p=1, score=score, **options), data, count)
        theirs = rounds(bound("local", data), data, count)
        for client in data.clients:
            for name, value in theirs.models[client].items():
                assert (ours.models[client][name] == value).all()
            assert (ours.test[client] == theirs.test[client]).all()


# The algorithm, naively: torch.optim, one backward pass for each example, NumPy, mixing at the server


def squared_gradients(module: nn.Module, w: dict[str, Tensor], x: Tensor, y: Tensor) -> Vector:
    """The empirical Fisher's diagonal, example by example, [d]."""
    total = np.zeros(sum(v.numel() for v in w.values()))
    for one, label in zip(x, y, strict=True):
        leaves = {k: v.detach().clone().requires_grad_() for k, v in w.items()}
        loss = F.cross_entropy(functional_call(module, leaves, (one[None],)), label[None])
        grads = torch.autograd.grad(loss, [leaves[k] for k in sorted(leaves)])
        total += torch.cat([g.flatten() for g in grads]).square().numpy()
    return total


class Reference:
    """Algorithm 1 as it is printed, one client after another."""

    def __init__(self, method: FedBPS, data: Federation, seed: int = 5) -> None:
        self.method, self.data, self.root = method, data, Key.from_seed(seed)
        self.module = copy.deepcopy(method.task.module)
        self.names = sorted(n for n, _ in self.module.named_parameters())
        self.w = vector(method.task.init(self.root.fold("init"))).numpy()
        self.mask = np.zeros(len(self.w), dtype=bool)
        self.own: dict[int, Vector] = {}

    def load(self, w: Vector) -> None:
        parameters = dict(self.module.named_parameters())
        at = 0
        for name in self.names:
            size = parameters[name].numel()
            parameters[name].data = torch.from_numpy(w[at : at + size].copy()).view_as(parameters[name])
            at += size

    def mixed(self, i: int) -> Vector:
        return np.where(self.mask, self.own[i], self.w) if i in self.own else self.w

    def train(self, i: int, number: int) -> Vector:
        """E epochs from the mixed weights with a fresh optimiser, batches in the keyed order."""
        data, train = self.data.train[[i]], self.method.train
        self.load(self.mixed(i))
        optimizer = torch.optim.SGD(self.module.parameters(), train.lr, momentum=train.momentum)
        own = Keys.of(self.root, [self.data.clients[i]]).fold("round", number, "descend")
        plan = schedule(data, own, train.budget(self.method.task))
        for rows, count in zip(plan.rows[:, 0], plan.counts[:, 0], strict=True):
            used = torch.from_numpy(rows[:count])
            optimizer.zero_grad()
            F.cross_entropy(self.module(data.x[used]), data.y[used]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found = dict(self.module.named_parameters())
        return torch.cat([found[n].detach().flatten() for n in self.names]).numpy()

    def round(self, number: int, clients: list[int], *, at_server: bool) -> None:
        """Steps 1-6; with `at_server`, the server mixes every client's weights at once."""
        trained, variances = {}, {}
        for i in clients:
            trained[i] = self.train(i, number)
            w = {n: p.detach() for n, p in self.module.named_parameters()}
            x, y = self.data.train.client(i)
            variances[i] = 1 / (squared_gradients(self.module, w, x, y) + len(y) * self.method.decay)
        sizes = {i: self.data.train.size[i] for i in clients}
        share = {i: sizes[i] / sum(sizes.values()) for i in clients}
        self.w = sum((share[i] * trained[i] for i in clients), np.zeros_like(self.w))
        v = sum((share[i] * (variances[i] + (trained[i] - self.w) ** 2) for i in clients), np.zeros_like(self.w))
        largest = sorted(range(len(v)), key=lambda j: (-v[j], j))[: round(self.method.p * len(v))]
        self.mask = np.isin(np.arange(len(v)), largest)
        self.own |= trained
        if at_server:
            self.own = {i: np.where(self.mask, w, self.w) for i, w in self.own.items()}


@pytest.mark.parametrize("p", [0.3, 0.7])
def test_mixing_at_the_client_equals_mixing_at_the_server(p: float) -> None:
    """Three rounds with everyone: weights, mask and all personal models equal the printed algorithm's."""
    data = federation()
    method = fedbps(data, p=p)
    reference = Reference(method, data)
    for number in range(3):
        reference.round(number, list(range(len(data))), at_server=True)
    trace = rounds(method, data, 3)
    server = tree.unflatten(Server, trace.server)
    assert (bits(server, len(reference.w)) == reference.mask).all()
    np.testing.assert_allclose(vector(server.w), reference.w, rtol=0, atol=1e-10)
    for i, client in enumerate(data.clients):
        found = {k.removeprefix("w/"): torch.from_numpy(v) for k, v in trace.models[client].items()}
        np.testing.assert_allclose(vector(found), reference.own[i], rtol=0, atol=1e-10)
        assert np.abs(reference.own[i] - reference.w).max() > 1e-3, "personal weights differ from the mean"


@pytest.mark.parametrize("p", [0.3, 0.7])
def test_partial_participation(p: float) -> None:
    """Sums run over participants; a client takes w where M = 0 when next contacted; a newcomer starts at w entirely."""
    data = federation()
    method, count = fedbps(data, p=p), 4
    reference = Reference(method, data)
    cohorts = [
        HALF.draw(Key.from_seed(5), data.clients, r, count, everyone_trains=False).reporters for r in range(count)
    ]
    for number, cohort in enumerate(cohorts):
        reference.round(number, cohort, at_server=False)
    trace = rounds(method, data, count, participation=HALF)
    server = tree.unflatten(Server, trace.server)
    assert (bits(server, len(reference.w)) == reference.mask).all()
    np.testing.assert_allclose(vector(server.w), reference.w, rtol=0, atol=1e-10)
    for i, client in enumerate(data.clients):
        found = {k.removeprefix("w/"): torch.from_numpy(v) for k, v in trace.models[client].items()}
        np.testing.assert_allclose(vector(found), reference.mixed(i), rtol=0, atol=1e-10)
    late = {i for cohort in cohorts[1:] for i in cohort} - set(cohorts[0])
    absent = set(cohorts[0]) - set(cohorts[1])
    assert late
    assert absent, "the draw must have newcomers and clients that miss a round"


def test_a_newcomer_starts_at_the_mean() -> None:
    """After a round of two clients, all others predict with w, and start their first round there."""
    data = federation()
    method = fedbps(data)
    with Engine(method, data, 5) as engine:
        engine.round(0, [1, 4], [1, 4])
        engine.evaluate(0, ("test",))
        models = models_of(engine)
        server: Server = engine.server
        for i in range(len(data)):
            own = vector({k.removeprefix("w/"): torch.from_numpy(v) for k, v in models[i].items()})
            assert torch.equal(own, vector(server.w)) == (i not in (1, 4))
    down = tree.expand(method.broadcast(server, torch.arange(1)), 1)
    newcomer = method.init_client(down, data.train[[0]], keys(data)[[0]])
    assert same(newcomer.w, tree.clone(down.w))
    assert same(method.mixed(newcomer.w, down), tree.clone(down.w))


def test_a_client_not_seen_mixes_when_next_contacted() -> None:
    """Its state stays; with the next message, M = 1 keeps its own values and M = 0 takes w, before it trains."""
    data = federation()
    method = fedbps(data, Train(steps=0))
    own = Weights(tree.map(lambda leaf: leaf + 1, tree.expand(method.init_server(Key.from_seed(1)).w, len(data))))
    server = method.init_server(Key.from_seed(2))
    d = len(vector(server.w))
    mask = torch.from_numpy(np.random.default_rng(0).random(d) < 0.4)
    down = tree.expand(Down(server.w, pack_bits(mask)), len(data))
    client, up, _ = method.local_update(own, down, data.train, keys(data))
    expected = torch.where(mask, flat(own.w), vector(server.w))
    assert torch.equal(flat(client.w), expected)
    assert torch.equal(flat(up.w), expected)


# Mixing


@pytest.mark.parametrize("p", [0.0, 0.3, 0.7, 1.0])
def test_mixing_keeps_the_mean(p: float) -> None:
    """On M = 0 all agree and equal w; on M = 1 a client is untouched; and Σ π_i w_i is w, before as after."""
    data = federation()
    method = fedbps(data, p=p)
    server, _, _, client, up = one_round(method, data)
    new = method.aggregate(server, up, torch.arange(len(data)))
    down = tree.expand(method.broadcast(new, torch.arange(len(data))), len(data))
    after = flat(method.personalise(client, down, data.train, keys(data)).w)
    mask, w = torch.from_numpy(bits(new, after.shape[1])), vector(new.w)
    assert int(mask.sum()) == round(p * after.shape[1])
    assert torch.equal(after[:, mask], flat(client.w)[:, mask])
    assert torch.equal(after[:, ~mask], w[~mask].expand(len(data), -1))
    share = data.train.n / data.train.n.sum()
    assert torch.allclose(share @ after, w, rtol=0, atol=1e-6)


def test_buffers_stay_the_clients_own() -> None:
    """Running statistics have no place in the mask and are not mixed; the affine parameters have one."""
    data = federation(sizes=(30, 20))
    normed = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))
    method = fedbps(data, module=normed, p=0.5)
    server, _, _, client, up = one_round(method, data)
    assert method.task.buffers == {"1.running_mean", "1.running_var"}
    assert not method.task.buffers & set(up.v)
    d = 4 * 6 + 6 + 2 * 6 + 6 * 3 + 3
    assert len(server.mask) == -(-d // 8)
    new = method.aggregate(server, up, torch.arange(2))
    assert int(bits(new, 8 * len(new.mask)).sum()) == round(d / 2)
    down = tree.expand(method.broadcast(new, torch.arange(2)), 2)
    personal = method.personalise(client, down, data.train, keys(data)).w
    for name in method.task.buffers:
        assert torch.equal(personal[name], client.w[name])
        assert not torch.equal(personal[name], down.w[name])
    mask, at = bits(new, d), 0
    for name in sorted(up.v):
        size = new.w[name].numel()
        here = torch.from_numpy(mask[at : at + size]).view_as(new.w[name])
        assert torch.equal(personal[name], torch.where(here, client.w[name], down.w[name]))
        at += size


# The mixture's moments


def test_moments_by_hand() -> None:
    """n = 1 and 3, so π = ¼ and ¾. Parameters (b₁, b₂, W₁, W₂) of two clients:

        w₁ = 0 1 2 0      w₂ = 4 1 2 8      w = 3 1 2 6
        between = ¼ (w₁ - w)² + ¾ (w₂ - w)² = 3 0 0 12
        v₁ = 1 2 3 4      v₂ = 5 2 1 0      within = 4 2 1.5 1      total = 7 2 1.5 13

    A half of the parameters: the 1st and 4th by total and between, the 1st and 2nd by within.
    """
    w = torch.tensor([[0, 1, 2, 0], [4, 1, 2, 8]], dtype=torch.float64)
    v = torch.tensor([[1, 2, 3, 4], [5, 2, 1, 0]], dtype=torch.float64)
    ups = Up(linear(w, 1), linear(v, 1), torch.tensor([1.0, 3.0], dtype=torch.float64))
    expected = {
        "total": ([7, 2, 1.5, 13], [True, False, False, True]),
        "within": ([4, 2, 1.5, 1], [True, True, False, False]),
        "between": ([3, 0, 0, 12], [True, False, False, True]),
    }
    for score, (scores, mask) in expected.items():
        method = small(1, 2, score=score, p=0.5)
        server = method.init_server(Key.from_seed(0))
        new = method.aggregate(server, ups, torch.arange(2))
        assert vector(new.w).tolist() == [3, 1, 2, 6]
        assert method.scores(server, ups, new.w).tolist() == scores
        assert bits(new, 4).tolist() == mask


def test_total_variance() -> None:
    """v = Σ π (v_i + w_i²) - w²: the law of total variance; and the two terms alone add up to it."""
    ups = some_ups()
    share, w, v, mean = moments(ups)
    parts = {}
    for score in ("total", "within", "between"):
        method = small(9, score=score)
        server = method.init_server(Key.from_seed(0))
        parts[score] = method.scores(server, ups, method.aggregate(server, ups, torch.arange(4)).w).numpy()
    np.testing.assert_allclose(parts["total"], share @ (v + w**2) - mean**2, rtol=1e-10)
    np.testing.assert_allclose(parts["within"] + parts["between"], parts["total"], rtol=1e-12)
    np.testing.assert_allclose(parts["within"], share @ v, rtol=1e-12)


def test_draws_from_the_mixture_have_its_moments() -> None:
    """200,000 draws of Σ π_i N(w_i, v_i): mean and variance within five standard errors, √(v/N) and √((m₄ - v²)/N)."""
    ups, method, draws = some_ups(), small(9), 200_000
    share, w, v, _ = moments(ups)
    rng = np.random.default_rng(4)
    which = rng.choice(4, size=draws, p=share)
    z = w[which] + np.sqrt(v[which]) * rng.normal(size=(draws, 10))
    server = method.init_server(Key.from_seed(0))
    new = method.aggregate(server, ups, torch.arange(4))
    mean, variance = vector(new.w).numpy(), method.scores(server, ups, new.w).numpy()
    assert (np.abs(z.mean(0) - mean) < 5 * np.sqrt(variance / draws)).all()
    fourth = ((z - mean) ** 4).mean(0)
    assert (np.abs(z.var(0) - variance) < 5 * np.sqrt((fourth - variance**2) / draws)).all()


def test_without_its_square_the_between_term_vanishes() -> None:
    """Σ π_i (w_i - w) = 0 identically, which is how Alg. 1 prints it; squared, it is positive. Clones differ by 0."""
    ups, method = some_ups(), small(9, score="between")
    server = method.init_server(Key.from_seed(0))
    share, w, _, _ = moments(ups)
    mean = vector(method.aggregate(server, ups, torch.arange(4)).w)
    np.testing.assert_allclose(share @ (w - mean.numpy()), 0, atol=1e-14)
    assert (method.scores(server, ups, linear(mean[None], 9)) > 0).all()
    clones = ups._replace(w=tree.map(lambda leaf: leaf[:1].expand_as(leaf), ups.w))
    same_w = method.aggregate(server, clones, torch.arange(4)).w
    assert method.scores(server, clones, same_w).abs().max() < 1e-30


@pytest.mark.parametrize("score", ["total", "within", "between"])
def test_the_order_of_clients_does_not_matter(score: str) -> None:
    ups, method = some_ups(), small(9, score=score)
    server = method.init_server(Key.from_seed(0))
    order = [2, 0, 3, 1]
    a, b = (method.aggregate(server, u, torch.arange(4)) for u in (ups, tree.index(ups, order)))
    assert torch.allclose(vector(a.w), vector(b.w), rtol=0, atol=1e-15)
    assert torch.equal(a.mask, b.mask)


@pytest.mark.parametrize("curvature", ["fisher", "ggn"])
def test_hidden_units_have_no_order(curvature: str) -> None:
    """The hidden units of all clients permuted alike: variances, scores and mask are permuted with them."""
    data = federation()
    tanh = nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    method = fedbps(data, module=tanh, p=0.4, curvature=curvature)
    server, _, _, client, up = one_round(method, data)
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    def permuted(w: Params, axis: int) -> Params:
        first = {k: w[k].index_select(axis, order) for k in ("0.bias", "0.weight")}
        return {**first, "2.bias": w["2.bias"], "2.weight": w["2.weight"].index_select(axis + 1, order)}

    other_w = permuted(client.w, 1)
    other_v = method.variances(other_w, data.train)
    for k, v in permuted(up.v, 1).items():
        assert torch.allclose(other_v[k], v, rtol=1e-10)
    masks = []
    for ups in (up, Up(other_w, other_v, up.n)):
        new = method.aggregate(server, ups, torch.arange(len(data)))
        down = tree.expand(Down(tree.zeros_like(new.w), new.mask), 1)
        masks.append(tree.index(method.mixed(tree.map(torch.ones_like, down.w), down), 0))
    assert same(permuted(masks[0], 0), masks[1])
    assert not same(*masks)


# Variances


def test_variances_of_logistic_regression() -> None:
    """v_j = 1 / (Σ_s x_sj² p_s (1 - p_s) + n · decay), with the exact Hessian."""
    method = small(5, curvature="ggn", decay=0.01)
    x = numbers(30, 5)
    data = ClientData(x, torch.arange(30) % 2, (0, 20), (20, 10))
    w = linear(numbers(2, 6, seed=3), 5)
    found = method.variances(w, data)
    for c, n in enumerate(data.size):
        own, _ = data.client(c)
        p = (own @ w["head.weight"][c, 0] + w["head.bias"][c, 0]).sigmoid()
        spread = p * (1 - p)
        strength = n * 0.01
        expected = 1 / ((own.square() * spread[:, None]).sum(0) + strength)
        assert torch.allclose(found["head.weight"][c, 0], expected, rtol=1e-10)
        assert float(found["head.bias"][c, 0]) == pytest.approx(1 / (float(spread.sum()) + strength), rel=1e-10)


def test_variances_are_the_inverse_fisher() -> None:
    """v = 1/(h + λ) with h from one backward pass for each example, λ_i = n_i · decay, for ragged clients."""
    data = federation()
    method = fedbps(data, decay=0.02)
    _, _, _, client, up = one_round(method, data)
    for c, n in enumerate(data.train.size):
        h = squared_gradients(method.task.module, tree.index(client.w, c), *data.train.client(c))
        np.testing.assert_allclose(vector(tree.index(up.v, c)), 1 / (h + n * 0.02), rtol=1e-9)


@pytest.mark.parametrize("curvature", ["fisher", "ggn"])
def test_twice_the_data_is_half_the_variance(curvature: str) -> None:
    """h and λ = n · decay both double."""
    method = small(5, curvature=curvature)
    x, y, w = numbers(20, 5), torch.arange(20) % 2, linear(numbers(1, 6, seed=3), 5)
    once, twice = (method.variances(w, ClientData.single(x.repeat(m, 1), y.repeat(m)))["head.weight"] for m in (1, 2))
    assert torch.allclose(twice, once / 2, rtol=1e-12)


@pytest.mark.parametrize("curvature", ["fisher", "ggn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dead_input_has_the_largest_variance(curvature: str, dtype: torch.dtype) -> None:
    """0 < v ≤ 1/λ everywhere, and 1/λ exactly for the weights of a pixel that is always 0: λ = 32/1024, v = 32."""
    task = Task(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), Categorical(3), dtype=dtype)
    method = FedBPS(curvature=curvature, decay=1 / 1024).bind(task, TRAIN)  # type: ignore[arg-type]
    x = numbers(32, 5).to(dtype)
    x[:, 3] = 0
    w = tree.expand(task.init(Key.from_seed(1)), 1)
    v = method.variances(w, ClientData.single(x, torch.arange(32) % 3))
    assert (flat(v) > 0).all()
    assert (flat(v) <= 32).all()
    assert (v["0.weight"][0, :, 3] == 32).all()
    assert (v["0.weight"][0, :, [0, 1, 2, 4]] < 32).all()


def test_the_surest_weights_are_shared() -> None:
    """Selection direction: an input ten times as loud, with weight 0, has 100 times the curvature, so it leaves M.

    Six parameters, one personal. At first the input is a hundredth of the others, so its weight is the least sure.
    """
    method = small(5, p=1 / 6, score="within")
    w = linear(numbers(1, 6, seed=3), 5)
    w["head.weight"][..., 2] = 0
    scale = torch.ones(5, dtype=torch.float64)
    scale[2] = 0.01
    x, y = numbers(40, 5) * scale, torch.arange(40) % 2
    ranks, masks = [], []
    for factor in (1, 10, 1000):
        louder = x * torch.tensor([1, 1, factor, 1, 1], dtype=torch.float64)
        data = ClientData.single(louder, y)
        v = method.variances(w, data)
        server = method.init_server(Key.from_seed(0))
        new = method.aggregate(server, Up(w, v, data.n), torch.arange(1))
        ranks.append(int((vector(tree.index(v, 0)) > v["head.weight"][0, 0, 2]).sum()))
        masks.append(bits(new, 6).tolist())
    assert ranks == [0, 0, 5]
    assert masks[0] == [False, False, False, True, False, False], "its own: bias first, then the five weights"
    assert not masks[2][3]
    quiet, loud = (
        1 / method.variances(w, ClientData.single(x * torch.tensor([1, 1, f, 1, 1]), y))["head.weight"][0, 0, 2]
        - 40 * method.decay
        for f in (1, 10)
    )
    assert float(loud / quiet) == pytest.approx(100, rel=1e-9)


@pytest.mark.parametrize("normed", [False, True])
def test_the_curvature_leaves_no_trace(normed: bool) -> None:
    """With it (total) and without (random), a first round trains alike, buffers included; no global draw is made."""
    data = federation(sizes=(30, 21))
    norm: list[nn.Module] = [nn.BatchNorm1d(6)] if normed else []
    module = nn.Sequential(nn.Linear(FEATURES, 6), *norm, nn.Tanh(), nn.Linear(6, CLASSES))
    state = torch.random.get_rng_state()
    with_pass, without = (one_round(fedbps(data, module=module, score=s), data)[3] for s in ("total", "random"))
    assert same(with_pass, without)
    assert torch.equal(state, torch.random.get_rng_state())
    method = fedbps(data, module=module)
    before = tree.clone(with_pass)
    method.variances(with_pass.w, data.train)
    assert same(with_pass, before)


# The mask

tied_scores = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@settings(deadline=None, max_examples=200)
@given(tied_scores, st.floats(0, 1))
def test_the_mask_has_its_exact_size(values: list[int], p: float) -> None:
    """round(p d) parameters, none left out whose score is larger; of equals, those with the smaller index."""
    mask = FedBPS(p=p).choose(torch.tensor(values, dtype=torch.float64)).tolist()
    expected = sorted(range(len(values)), key=lambda j: (-values[j], j))[: round(p * len(values))]
    assert [j for j, chosen in enumerate(mask) if chosen] == sorted(expected)


@pytest.mark.parametrize(("p", "size"), [(0.0, 0), (0.001, 0), (0.1, 5), (0.3, 15), (0.7, 36), (0.99, 50), (1.0, 51)])
def test_all_ties(p: float, size: int) -> None:
    """d = 51 equal scores, where a threshold would choose all or none: round(51 p), the first ones."""
    mask = FedBPS(p=p).choose(torch.full((51,), 2.5, dtype=torch.float64))
    assert int(mask.sum()) == size
    assert mask[:size].all()


@settings(deadline=None, max_examples=100)
@given(tied_scores, st.floats(0, 1), st.floats(0, 1))
def test_masks_are_nested(values: list[int], p: float, q: float) -> None:
    """A larger share of the same scores contains the smaller one."""
    scores = torch.tensor(values, dtype=torch.float64)
    less, more = (FedBPS(p=share).choose(scores) for share in sorted((p, q)))
    assert (more | ~less).all()


@every_score
def test_a_runs_masks_have_the_exact_size(score: str) -> None:
    data = federation()
    for p, size in ((0.3, 15), (0.7, 36)):
        server = tree.unflatten(Server, rounds(fedbps(data, p=p, score=score), data).server)
        assert int(bits(server, 56).sum()) == size, "d = 51, and the five bits of padding are 0"


def test_a_random_mask_comes_from_the_seed_and_the_round() -> None:
    """The same for any uplinks, another one each round and each seed; a share p of all parameters is equally likely.

    Over 300 rounds each of ten parameters is in a mask of three 90 times, ± 5·√(300·0.3·0.7) = 40.
    """
    method = small(9, score="random", p=0.3)
    server = method.init_server(Key.from_seed(0))
    a, b = (method.aggregate(server, some_ups(seed=s), torch.arange(4)) for s in (0, 7))
    assert torch.equal(a.mask, b.mask)
    assert not torch.equal(a.w["head.weight"], b.w["head.weight"])
    counts, seen = np.zeros(10), set()
    other = method.init_server(Key.from_seed(1))
    differ = 0
    for _ in range(300):
        server, other = (method.aggregate(s, some_ups(), torch.arange(4)) for s in (server, other))
        counts += bits(server, 10)
        seen.add(tuple(server.mask.tolist()))
        differ += not torch.equal(server.mask, other.mask)
    assert int(server.round) == 300
    assert (np.abs(counts - 90) < 40).all()
    assert len(seen) > 90, "of the 120 masks"
    assert differ > 280


def test_only_what_is_needed_is_computed() -> None:
    """Masks that ask no curvature send no variance."""
    data = federation()
    for score in ("between", "random"):
        _, _, _, _, up = one_round(fedbps(data, score=score), data)
        assert (flat(up.v) == 0).all()


# Bits


@settings(deadline=None, max_examples=100)
@given(st.lists(st.booleans(), min_size=2, max_size=70))
def test_bits_are_packed_and_unpacked(values: list[bool]) -> None:
    """⌈d/8⌉ bytes, the first parameter in the lowest bit, as NumPy's packbits; a client reads the same mask back."""
    mask = torch.tensor(values)
    packed = pack_bits(mask)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == np.packbits(values, bitorder="little").tolist()
    inputs = len(values) - 1
    method = small(inputs)
    zeros, ones = (linear(torch.full((3, len(values)), v, dtype=torch.float64), inputs) for v in (0.0, 1.0))
    mixed = method.mixed(ones, Down(zeros, packed.expand(3, -1)))
    assert torch.equal(flat(mixed), mask.double().expand(3, -1))


def test_bits_by_hand() -> None:
    """1000 0001 1 in order of the parameters: 1 + 128 = 129, then 1."""
    assert pack_bits(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1], dtype=torch.bool)).tolist() == [129, 1]


def test_message_sizes_of_lenet() -> None:
    """d = 61,706: up, weights and variances, 123,412 numbers, and n; down, the weights and ⌈d/8⌉ = 7,714 bytes of mask.

    With p = 0.7, 43,194 parameters are personal and 18,512 are shared; w goes down whole, for those who join.
    """
    train = Train(steps=0)
    task = Task(build_model("lenet5", {}, (1, 28, 28), 10), Categorical(10))
    method = FedBPS(p=0.7).bind(task, train)
    data = ClientData.single(numbers(2, 1, 28, 28).float(), torch.tensor([3, 4]))
    server = method.init_server(Key.from_seed(0))
    down = tree.expand(method.broadcast(server, torch.arange(1)), 1)
    own = Keys.of(Key.from_seed(0), ["site"])
    _, up, _ = method.local_update(method.init_client(down, data, own), down, data, own)
    assert scalars(up) == 123_412 + 1
    assert (scalars(down.w), scalars(down.mask)) == (61_706, 7_714)
    assert tree.nbytes(up) == 4 * 123_412 + 8
    chosen = int(bits(method.aggregate(server, up, torch.arange(1)), 61_706).sum())
    assert (chosen, 61_706 - chosen) == (43_194, 18_512)


# What is logged


def with_scores(method: FedBPS, server: Server, scores: list[float]) -> Server:
    """The server after a round of one client with these variances."""
    v = torch.tensor([scores], dtype=torch.float64)
    up = Up(linear(torch.zeros_like(v), 2), linear(v, 2), torch.ones(1, dtype=torch.float64))
    return method.aggregate(server, up, torch.arange(1))


def test_turnover_and_ties_by_hand() -> None:
    """Six parameters, two personal. The first mask is empty.

    Scores 5 3 3 1 3 2: the 1st and 2nd are chosen, so 2/6 change; three of six have the last one's score 3: 3/6.
    Scores 1 9 3 9 0 0: the 2nd and 4th; the 1st leaves and the 4th enters, 2/6; both chosen have score 9: 2/6.
    The same again: nothing changes, 0. Scores 1 2 3 4 5 6: the 5th and 6th, 4/6; the last, 5, stands alone: 1/6.
    """
    method = small(2, 2, p=1 / 3, score="within")
    server = method.init_server(Key.from_seed(0))
    assert (float(server.turnover), float(server.ties), int(server.round)) == (0, 0, 0)
    for scores, chosen, turnover, ties in (
        ([5, 3, 3, 1, 3, 2], [0, 1], 2, 3),
        ([1, 9, 3, 9, 0, 0], [1, 3], 2, 2),
        ([1, 9, 3, 9, 0, 0], [1, 3], 0, 2),
        ([1, 2, 3, 4, 5, 6], [4, 5], 4, 1),
    ):
        server = with_scores(method, server, [float(s) for s in scores])
        assert np.flatnonzero(bits(server, 6)).tolist() == chosen
        assert float(server.turnover) == pytest.approx(turnover / 6)
        assert float(server.ties) == pytest.approx(ties / 6)
    assert int(server.round) == 4


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_without_a_choice_there_are_no_ties(p: float) -> None:
    method = small(2, 2, p=p, score="within")
    server = with_scores(method, method.init_server(Key.from_seed(0)), [1.0] * 6)
    assert float(server.ties) == 0
    assert float(server.turnover) == p


def test_logs_by_hand() -> None:
    """The share of personal parameters in the mask that was received, and the median variance."""
    data = federation()
    method = fedbps(data, p=0.3)
    server, down, client, updated, up = one_round(method, data)
    _, _, logs = method.local_update(client, down, data.train, keys(data, "round", 0))
    assert (logs["mask_share"] == 0).all()
    middle = flat(up.v).sort(1).values[:, 25]  # the 26th of d = 51
    assert torch.allclose(logs["within"], middle, rtol=1e-12)
    new = method.aggregate(server, up, torch.arange(len(data)))
    down = tree.expand(method.broadcast(new, torch.arange(len(data))), len(data))
    _, _, logs = method.local_update(updated, down, data.train, keys(data, "round", 1))
    assert torch.allclose(logs["mask_share"], torch.tensor(15 / 51, dtype=torch.float64))


def test_the_mask_is_the_same_for_all() -> None:
    """One message, whoever is asked."""
    data = federation()
    method = fedbps(data)
    server = method.init_server(Key.from_seed(0))
    assert not method.hints.personal_downlink
    assert same(method.broadcast(server, torch.arange(1)), method.broadcast(server, torch.arange(5)))
