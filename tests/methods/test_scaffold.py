"""SCAFFOLD: golden numbers on quadratics, the identity of Option II, and what it divides by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedprior import tree
from fedprior.data.client import Batch, ClientData, schedule
from fedprior.engine import Engine
from fedprior.methods.scaffold import Client, Down, Scaffold, Server, Up
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.training import Train
from fedprior.tree import Params
from support import HALF, TRAIN, bound, federation, keys, one_round, rounds, same

PLAIN = replace(TRAIN, momentum=0.0)
NORMED = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


class Quadratic(Task):
    """f(w) = mean over a batch of (w - x)²/2, from a given start."""

    def __init__(self, start: float) -> None:
        super().__init__(nn.Linear(1, 1, bias=False), Categorical(2), dtype=torch.float64)
        self.start = torch.tensor([[start]], dtype=torch.float64)

    def init(self, key: Key) -> Params:
        return {"head.weight": self.start}

    def losses(self, w: Params, batch: Batch, *, train: bool = True) -> Tensor:
        return (w["head.weight"] - batch.x).square().sum(2) / 2


def scaffold(data: Any, train: Train = PLAIN, module: nn.Module | None = None) -> Scaffold:
    method = bound("scaffold", data, train, module)
    assert isinstance(method, Scaffold)
    return method


def test_golden_numbers() -> None:
    """f_i = (w - a_i)²/2, a = (0, 4), x = 1, η = 0.1, K = 2, both clients take part.

    Round 1, no controls: a plain step maps w - a to 0.9 (w - a), so y = (0.81, 4 - 0.81·3) = (0.81, 1.57) and x = 1.19;
    c_i = (1 - y_i)/0.2 = (0.95, -2.85), c = their mean, -0.95.
    Round 2, from 1.19 with drift d_i = c - c_i = (-1.9, 1.9): y ← 0.9 y + 0.1 (a_i - d_i), so y₁: 1.261, 1.3249 and
    y₂: 1.281, 1.3629; x = 1.3439. c_i⁺ = c_i - c + (1.19 - y_i)/0.2 = 1.9 - 0.6745, -1.9 - 0.8645 = (1.2255, -2.7645);
    c = -0.7695.
    """
    method = Scaffold().bind(Quadratic(1.0), Train(lr=0.1, batch_size=3, steps=2))
    x = torch.tensor([0.0, 0.0, 0.0, 4.0, 4.0, 4.0], dtype=torch.float64)[:, None]
    data = ClientData(x, torch.zeros(6, dtype=torch.int64), (0, 3), (3, 3))
    own, ids = Keys.of(Key.from_seed(0), ["a", "b"]), torch.arange(2)
    server = method.init_server(Key.from_seed(0), 2)
    down = tree.expand(method.broadcast(server, ids), 2)
    client = method.init_client(down, data, own)
    for t, (at, control, controls) in enumerate(
        [(1.19, -0.95, [0.95, -2.85]), (1.3439, -0.7695, [1.2255, -2.7645])],
    ):
        down = tree.expand(method.broadcast(server, ids), 2)
        client, up, _ = method.local_update(client, down, data, own.fold("round", t))
        server = method.aggregate(server, up, ids)
        assert float(server.x["head.weight"]) == pytest.approx(at, abs=1e-12)
        assert float(server.c["head.weight"]) == pytest.approx(control, abs=1e-12)
        assert client.c["head.weight"].flatten().tolist() == pytest.approx(controls, abs=1e-12)


def test_first_round_is_fedavg() -> None:
    """c = c_k = 0: each client's change is FedAvg's bit for bit; with clients of equal size so is the mean."""
    data = federation(sizes=(20, 20, 20))
    assert len(set(data.train.size)) == 1
    ours, avg = scaffold(data), bound("fedavg", data, PLAIN)
    server, down, _, _, up = one_round(ours, data)
    theirs = one_round(avg, data)[4]
    assert same(up.dx, tree.map(torch.sub, theirs.w, down.x))
    ids = torch.arange(3)
    x, w = ours.aggregate(server, up, ids).x, avg.aggregate(server, theirs, ids).w
    for k in w:
        assert torch.allclose(x[k], w[k], rtol=0, atol=1e-14)


def test_the_mean_is_uniform() -> None:
    """Clients of 28, 6, 16, … examples count alike."""
    data = federation()
    server, _, _, _, up = one_round(scaffold(data), data)
    moved = scaffold(data).aggregate(server, up, torch.arange(len(data)))
    for k, v in server.x.items():
        assert torch.allclose(moved.x[k], v + up.dx[k].mean(0), rtol=0, atol=1e-13)
        assert torch.allclose(moved.c[k], up.dc[k].mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("train", [PLAIN, replace(PLAIN, steps=7), TRAIN])
def test_new_control_is_the_mean_of_raw_gradients(train: Train) -> None:
    """Option II with plain SGD: c_k⁺ = (1/K_k) Σ ∇f_k(y_s; B_s), the gradients before correction, along the path.

    x - y = η Σ (g_s - c_k + c), so c_k - c + (x - y)/(K η) = mean g_s, if K is the client's own number of steps: 8
    for 28 examples in two epochs, 2 for 6. The train with momentum gives the same, for SCAFFOLD does not use it.
    """
    data = federation()
    method = scaffold(data, train)
    gen = torch.Generator().manual_seed(1)
    server = method.init_server(Key.from_seed(5), len(data))

    def noise(v: Tensor) -> Tensor:
        return torch.randn(v.shape, generator=gen, dtype=v.dtype)

    down = tree.expand(Down(server.x, tree.map(noise, server.c)), len(data))
    client = Client(tree.map(noise, tree.clone(down.c)))
    own = keys(data, "round", 0)
    updated, up, _ = method.local_update(client, down, data.train, own)

    def loss(w: Params, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(method.task.module, w, (x,)), y)

    budget = method.train.budget(method.task)
    for c, n in enumerate(data.train.size):
        plan = schedule(data.train[[c]], own.fold("descend")[[c]], budget)
        y, total = server.x, tree.zeros_like(server.x)
        for rows, count in zip(plan.rows[:, 0], plan.counts[:, 0], strict=True):
            picked = torch.from_numpy(rows[:count])
            g = grad(loss)(y, data.train.x[picked], data.train.y[picked])
            y = {k: y[k] - train.lr * (g[k] - client.c[k][c] + down.c[k][c]) for k in y}
            total = tree.map(torch.add, total, g)
        steps = 7 if train.steps else 2 * -(-n // 8)
        assert len(plan.rows) == steps
        for k in y:
            assert torch.allclose(up.dx[k][c], y[k] - server.x[k], rtol=0, atol=1e-12)
            assert torch.allclose(updated.c[k][c], total[k] / steps, rtol=0, atol=1e-11)
            assert torch.allclose(up.dc[k][c], total[k] / steps - client.c[k][c], rtol=0, atol=1e-11)


def test_server_control_is_the_mean_of_the_clients() -> None:
    """After any round with everyone, c = mean of c_k."""
    data = federation()
    for count in (1, 2, 4):
        trace = rounds(scaffold(data), data, count)
        for k, states in trace.states.items():
            assert torch.allclose(trace.server[k], states.mean(0), rtol=0, atol=1e-12)
            assert float(states.abs().max()) > 1e-3


def test_server_control_is_the_mean_with_some_clients_too() -> None:
    """c moves by (1/N) Σ_S (c_k⁺ - c_k), N all clients, so c stays the mean of all c_k, absent ones as they were."""
    data = federation()
    trace = rounds(scaffold(data), data, 4, participation=HALF)
    for k, states in trace.states.items():
        assert torch.allclose(trace.server[k], states.mean(0), rtol=0, atol=1e-12)


def test_two_divisors_by_hand() -> None:
    """Two of five report dx = (1, 3), dc = (10, 20): x = 0 + 4/2 = 2, c = 7 + 30/5 = 13."""

    def one(*values: float) -> Params:
        return {"w": torch.tensor(values, dtype=torch.float64)}

    server = Server(one(0.0), one(7.0), torch.tensor(5))
    up = Up({"w": one(1.0, 3.0)["w"][:, None]}, {"w": one(10.0, 20.0)["w"][:, None]})
    new = scaffold(federation()).aggregate(server, up, torch.tensor([1, 4]))
    assert new.x["w"].tolist() == pytest.approx([2.0], abs=1e-15)
    assert new.c["w"].tolist() == pytest.approx([13.0], abs=1e-14)
    assert int(new.clients) == 5


def test_only_clients_that_take_part_change_their_control() -> None:
    data = federation()
    trace = rounds(scaffold(data), data, 1, participation=HALF)
    flat = torch.cat([v.flatten(1) for v in trace.states.values()], 1)
    assert int((flat == 0).all(1).sum()) == 3


def test_control_removes_the_drift() -> None:
    """At the optimum of the mean of quadratics, with c_k = ∇f_k and c = 0, clients do not move at all.

    a = (0, 4), x = 2, c_k = x - a_k = (2, -2): each corrected gradient is (2 - a_k) - c_k = 0.
    """
    method = Scaffold().bind(Quadratic(2.0), Train(lr=0.1, batch_size=1, steps=5))
    data = ClientData(torch.tensor([[0.0], [4.0]]).double(), torch.zeros(2, dtype=torch.int64), (0, 1), (1, 1))
    own = Keys.of(Key.from_seed(0), ["a", "b"])
    down = tree.expand(method.broadcast(method.init_server(Key.from_seed(0), 2), torch.arange(2)), 2)
    client = Client({"head.weight": torch.tensor([[[2.0]], [[-2.0]]]).double()})
    client, up, _ = method.local_update(client, down, data, own)
    assert float(up.dx["head.weight"].abs().max()) < 1e-14
    assert client.c["head.weight"].flatten().tolist() == pytest.approx([2.0, -2.0], abs=1e-13)


def test_a_diverged_client_counts_for_nothing() -> None:
    """Inputs of 1e200 overflow: the engine leaves that client out, and x is what the two others make of it."""
    data = federation(sizes=(30, 21, 12))
    data.train.x[: data.train.size[0]] *= 1e200
    with Engine(scaffold(data), data, 5) as engine, Engine(scaffold(data), data, 5) as without:
        assert list(engine.round(0, [0, 1, 2], [0, 1, 2]).left_out) == [0]
        without.round(0, [1, 2], [1, 2])
        assert same(engine.server, without.server)
        assert all((v[0] == 0).all() for v in engine.memory.states.c.values())


def test_a_client_without_steps_keeps_its_control() -> None:
    """K = 0: there is no path whose gradients could be averaged, so c_k stays, whatever c is.

    Batch normalisation skips batches of one, so a client with a single example takes no step.
    """
    data = federation(sizes=(30, 21))
    single = replace(data.train, size=(data.train.size[0], 1))
    method = scaffold(data, module=NORMED)
    server = method.init_server(Key.from_seed(5), 2)
    down = tree.expand(Down(server.x, tree.map(torch.ones_like, server.c)), 2)
    client = Client(tree.map(lambda v: 3 * v, tree.clone(down.c)))
    updated, up, _ = method.local_update(client, down, single, keys(data, "round", 0))
    assert all((v[0] != 0).any() and (v[1] == 0).all() for v in up.dx.values())
    assert all((v[1] == 3).all() for v in updated.c.values())
    assert all((v[1] == 0).all() for v in up.dc.values())


def test_running_statistics_have_no_control() -> None:
    """Batch normalisation's buffers travel with the model and are averaged; controls are for parameters."""
    data = federation(sizes=(30, 21))
    method = scaffold(data, module=NORMED)
    server, _, _, updated, up = one_round(method, data)
    buffers = {"2.running_mean", "2.running_var"}
    assert method.task.buffers == buffers
    assert buffers.isdisjoint(server.c)
    assert buffers.isdisjoint(updated.c)
    moved = method.aggregate(server, up, torch.arange(2))
    for k in buffers:
        assert (up.dx[k] != 0).any()
        assert torch.allclose(moved.x[k], server.x[k] + up.dx[k].mean(0), rtol=0, atol=1e-14)
