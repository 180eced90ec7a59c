"""Per-FedAvg: exact on quadratics, the batches of an iteration, and adaptation on training data only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedprior import tree
from fedprior.data.client import Batch, ClientData, schedule
from fedprior.methods._averaging import Up
from fedprior.methods.per_fedavg import PerFedAvg
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.protocol import Empty, Weights
from fedprior.rng import Key, Keys
from fedprior.training import Train
from fedprior.tree import Params
from support import TRAIN, bound, federation, keys, one_round, rounds, same, with_train

PLAIN = replace(TRAIN, momentum=0.0)


class Quadratic(Task):
    """f(w) = mean over a batch of (w - x)'A(w - x)/2, from a given start."""

    def __init__(self, A: Tensor, start: Tensor) -> None:
        super().__init__(nn.Linear(len(start), 1, bias=False), Categorical(2), dtype=torch.float64)
        self.A, self.start = A, start[None]

    def init(self, key: Key) -> Params:
        return {"head.weight": self.start}

    def losses(self, w: Params, batch: Batch, *, train: bool = True) -> Tensor:
        gap = w["head.weight"] - batch.x
        return (gap @ self.A * gap).sum(2) / 2


def per_fedavg(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> PerFedAvg:
    method = bound("per_fedavg", data, train, module, **options)
    assert isinstance(method, PerFedAvg)
    return method


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def client_of(x: Tensor) -> ClientData:
    return ClientData.single(x, torch.zeros(len(x), dtype=torch.int64))


def moved(method: PerFedAvg, data: ClientData, own: Keys) -> Tensor:
    """The weights of one client after a local update from the start."""
    down = Weights(tree.expand(method.task.init(own.root), 1))
    _, up, _ = method.local_update(Empty(), down, data, own)
    return up.w["head.weight"].flatten()


def picked(data: ClientData, c: int, own: Keys, train: Train, runs: int) -> Iterator[Tensor]:
    """The rows of each batch of client c, for a budget `runs` times that of `train`."""
    budget = train.budget(Task(nn.Linear(1, 1), Categorical(2)))
    budget = budget._replace(epochs=None if budget.epochs is None else runs * budget.epochs)
    budget = budget._replace(steps=None if budget.steps is None else runs * budget.steps)
    plan = schedule(data[[c]], own.fold("descend")[[c]], budget)
    for rows, count in zip(plan.rows[:, 0], plan.counts[:, 0], strict=True):
        yield torch.from_numpy(rows[:count])


ONE = Keys.of(Key.from_seed(0), ["a"])


@pytest.mark.parametrize("delta", [1e-3, 1.0, 50.0])
def test_scalar_formulas(delta: float) -> None:
    """f = a (w - c)²/2 has ∇f = a (w - c); after adaptation w - c shrinks by 1 - αa.

    FO: (1 - αa) a (w - c);  HF, exact for any δ: (1 - αa)² a (w - c).  With a = 2, c = 1, w = 3, α = 0.1: 0.8 · 4 = 3.2
    and 0.64 · 4 = 2.56. A step of β = 0.5 leads to 1.4 and 1.72.
    """
    data = client_of(torch.ones(3, 1, dtype=torch.float64))
    task, train = Quadratic(tensor(2.0)[None], tensor(3.0)), Train(lr=0.5, batch_size=3, steps=1)
    for order, expected in (("fo", 1.4), ("hf", 1.72)):
        method = PerFedAvg(order=order, alpha=0.1, delta=delta).bind(task, train)  # type: ignore[arg-type]
        assert float(moved(method, data, ONE)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("delta", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("order", ["fo", "hf"])
def test_quadratics_are_exact(order: str, delta: float) -> None:
    """f(w; B) = (w - b)'A(w - b)/2 up to a constant, b the mean of the batch. With B1, B2, B3 of their own means,

    ahead = w - αA(w - b₁);  g₂ = A(ahead - b₂);  FO: w - β g₂;  HF: w - β (I - αA) g₂, whatever δ and B3 are,
    over four iterations of three steps each. With one mean for all, g = (I - αA) A (I - αA) (w - b): MAML's gradient.
    """
    gen = torch.Generator().manual_seed(3)
    root = torch.randn(3, 3, generator=gen, dtype=torch.float64)
    A, start = root @ root.T + torch.eye(3).double(), torch.randn(3, generator=gen, dtype=torch.float64)
    x = torch.randn(20, 3, generator=gen, dtype=torch.float64)
    train, alpha, beta = Train(lr=0.05, batch_size=6, steps=4), 0.1, 0.05
    method = PerFedAvg(order=order, alpha=alpha, delta=delta).bind(Quadratic(A, start), train)  # type: ignore[arg-type]
    per = 3 if order == "hf" else 2
    means = [x[rows].mean(0) for rows in picked(client_of(x), 0, ONE, train, per)]
    assert len(means) == 4 * per
    w, curvature = start, alpha * A if order == "hf" else torch.zeros(3, 3).double()
    for t in range(0, len(means), per):
        ahead = w - alpha * A @ (w - means[t])
        g = A @ (ahead - means[t + 1])
        w = w - beta * (g - curvature @ g)
    assert torch.allclose(moved(method, client_of(x), ONE), w, rtol=0, atol=1e-9)
    if order == "hf":
        same_mean = client_of(x[:1].expand(6, 3))
        once = method.using(method.task, replace(train, steps=1))
        shrink = torch.eye(3).double() - alpha * A
        expected = start - beta * shrink @ A @ shrink @ (start - x[0])
        assert torch.allclose(moved(once, same_mean, ONE), expected, rtol=0, atol=1e-9)


def test_hessian_free_is_the_gradient_of_the_meta_objective() -> None:
    """With one batch for all three, HF tends to ∇ f(w - α∇f(w)) as δ → 0: autograd through the inner step."""
    data = federation(sizes=(30, 21))
    train = Train(lr=1.0, batch_size=100, steps=1)
    method = per_fedavg(data, train, order="hf", alpha=0.3, delta=1e-4)
    server, _, _, _, up = one_round(method, data)
    for c in range(2):
        x, y = data.train.client(c)
        w = {k: v.clone().requires_grad_() for k, v in server.w.items()}

        def loss(w: Params, x: Tensor = x, y: Tensor = y) -> Tensor:
            return nn.functional.cross_entropy(functional_call(method.task.module, w, (x,)), y)

        inner = torch.autograd.grad(loss(w), list(w.values()), create_graph=True)
        ahead = {k: v - 0.3 * g for (k, v), g in zip(w.items(), inner, strict=True)}
        exact = torch.autograd.grad(loss(ahead), list(w.values()))
        for (k, v), g in zip(server.w.items(), exact, strict=True):
            assert torch.allclose(v - up.w[k][c], g, rtol=0, atol=1e-6)


@pytest.mark.parametrize("order", ["fo", "hf"])
@pytest.mark.parametrize("train", [TRAIN, replace(TRAIN, steps=3)])
def test_without_adaptation_it_is_sgd_on_the_second_batches(order: str, train: Train) -> None:
    """α = 0: w ← w - β ∇f(w; B2), B2 the second of each pair (FO) or triple (HF), by torch's SGD with momentum.

    An epoch of the budget is an epoch's worth of iterations: 28 examples in batches of 8 make 4 a pass.
    """
    data = federation()
    method = per_fedavg(data, train, order=order, alpha=0.0)
    server, _, _, _, up = one_round(method, data)
    per = 3 if order == "hf" else 2
    for c, n in enumerate(data.train.size):
        w = {k: v.clone().requires_grad_() for k, v in server.w.items()}
        optimizer = torch.optim.SGD(w.values(), lr=train.lr, momentum=train.momentum)
        batches = list(picked(data.train, c, keys(data, "round", 0), train, per))
        assert len(batches) == per * (3 if train.steps else 2 * -(-n // 8))
        for rows in batches[1::per]:
            x, y = data.train.x[rows], data.train.y[rows]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(functional_call(method.task.module, w, (x,)), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for k, v in w.items():
            assert torch.allclose(up.w[k][c], v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("adapt", ["epoch", "step"])
def test_adaptation_against_a_plain_loop(adapt: str) -> None:
    """One epoch, or one batch, of plain SGD with α on training data: no momentum, no weight decay, whatever training
    has."""
    data = federation()
    train = replace(TRAIN, weight_decay=0.5)
    method = per_fedavg(data, train, alpha=0.2, adapt=adapt)
    server, down, client, _, _ = one_round(method, data)
    own = keys(data, "personalise")
    personal = method.personalise(client, down, data.train, own)

    def loss(w: Params, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(method.task.module, w, (x,)), y)

    for c, n in enumerate(data.train.size):
        w = server.w
        batches = list(picked(data.train, c, own, replace(train, epochs=1), 1))
        assert len(batches) == -(-n // 8)
        for rows in batches if adapt == "epoch" else batches[:1]:
            g = grad(loss)(w, data.train.x[rows], data.train.y[rows])
            w = {k: v - 0.2 * g[k] for k, v in w.items()}
        for k, v in w.items():
            assert torch.allclose(personal.w[k][c], v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("adapt", ["epoch", "step"])
def test_a_zero_step_means_zero(adapt: str) -> None:
    """α = 0: the personal model is the meta-model bit for bit. (Public code takes a zero to mean the learning rate.)"""
    data = federation()
    method = per_fedavg(data, alpha=0.0, adapt=adapt)
    _, down, client, _, _ = one_round(method, data)
    assert same(method.personalise(client, down, data.train, keys(data, "p")).w, tree.clone(down.w))


@pytest.mark.parametrize("adapt", ["epoch", "step"])
def test_adaptation_never_touches_test_data(adapt: str) -> None:
    """With other inputs and labels in the validation and test splits, server and personal models are the same."""
    data = federation()
    method = per_fedavg(data, alpha=0.2, adapt=adapt)

    def poisoned(part: ClientData) -> ClientData:
        return replace(part, x=part.x + 5.0, y=(part.y + 1) % 3)

    other = replace(data, validation=poisoned(data.validation), test=poisoned(data.test))
    a, b = (rounds(method, d) for d in (data, other))
    assert same(a.server, b.server)
    for client in data.clients:
        assert all((a.models[client][k] == b.models[client][k]).all() for k in a.models[client])
        assert (a.models[client]["w/head.bias"] != a.server["w/head.bias"].numpy()).any()


def test_adaptation_leaves_no_trace() -> None:
    data = federation(sizes=(30, 21))
    for module in (None, nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))):
        method = per_fedavg(data, module=module, alpha=0.2)
        _, down, client, _, _ = one_round(method, data)
        before = tree.clone(down)
        method.personalise(client, down, data.train, keys(data, "p"))
        assert same(before, down)


def test_the_mean_is_weighted_by_examples() -> None:
    """n = (1, 3): (1·0 + 3·4)/4 = 3."""
    up = Up({"w": tensor(0.0, 4.0)[:, None]}, tensor(1.0, 3.0))
    assert per_fedavg(federation()).aggregate(Weights({}), up, torch.arange(2)).w["w"].tolist() == [3.0]


def test_loss_is_the_mean_over_first_batches() -> None:
    """What is logged is f(w; B1), averaged over iterations: with no step it stays the loss at the start."""
    data = federation()
    method = with_train(per_fedavg(data, PLAIN), lr=1e-12, batch_size=100, epochs=2)
    server, down, client, _, _ = one_round(method, data)
    _, _, logs = method.local_update(client, down, data.train, keys(data, "round", 0))
    for c in range(len(data)):
        x, y = data.train.client(c)
        expected = nn.functional.cross_entropy(functional_call(method.task.module, server.w, (x,)), y)
        assert float(logs["loss"][c]) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("adapt", ["epoch", "step"])
def test_the_adaptation_steps_as_training_does(adapt: str) -> None:
    """Unless given, α is the local learning rate, in training and for prediction; beside Adam it is 0.01."""
    data = federation()
    ours = rounds(per_fedavg(data, adapt=adapt), data).vector()
    assert (ours == rounds(per_fedavg(data, adapt=adapt, alpha=TRAIN.lr), data).vector()).all()
    assert (ours != rounds(per_fedavg(data, adapt=adapt, alpha=0.01), data).vector()).any()
    adam = Train(optimizer="adam", lr=0.002, batch_size=8, epochs=2)
    given = rounds(per_fedavg(data, adam, adapt=adapt, alpha=0.01), data).vector()
    assert (rounds(per_fedavg(data, adam, adapt=adapt), data).vector() == given).all()
