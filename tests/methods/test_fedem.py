"""FedEM: one component is FedAvg, the E-step by hand, and weights that follow their examples through the shuffle."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedprior import tree
from fedprior.data.client import Batch, ClientData, schedule
from fedprior.methods import fedem as module_under_test
from fedprior.methods.fedem import Client, Down, FedEM, Personal, Server, Up
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.rng import Key
from fedprior.training import Train
from fedprior.tree import Params
from support import HALF, TRAIN, bound, federation, keys, one_round, rounds, same

NORMED = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def fedem(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> FedEM:
    method = bound("fedem", data, train, module, **options)
    assert isinstance(method, FedEM)
    return method


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Given(Task):
    """Every example has the loss that the weights say."""

    def losses(self, w: Params, batch: Batch, *, train: bool = True) -> Tensor:
        return w["loss"][:, None].expand(batch.y.shape)


@pytest.mark.parametrize("damped", [False, True])
@pytest.mark.parametrize("module", [None, NORMED])
def test_one_component_is_fedavg(module: nn.Module | None, damped: bool) -> None:
    """M = 1: all responsibilities are one; server and predictions bit for bit, with everyone in every round.

    Without damping also with half of the clients.
    """
    data = federation()
    rule = None if damped else HALF
    ours = rounds(fedem(data, module=module, components=1, damped=damped), data, participation=rule)
    theirs = rounds(bound("fedavg", data, module=module), data, participation=rule)
    for k, v in theirs.server.items():
        gap = ours.server[k.replace("w/", "theta/")][0] - v
        assert float(gap.abs().max()) <= (1e-14 if damped else 0)
    for client in data.clients:
        assert abs(ours.test[client] - theirs.test[client]).max() <= (1e-5 if damped else 0)


def test_golden_responsibilities() -> None:
    """π = (1/2, 1/2), losses (0, ln 3): q ∝ (1/2 · 1, 1/2 · 1/3), so (0.75, 0.25). With π = (1/4, 3/4): (1/2, 1/2)."""
    data = ClientData(torch.zeros(5, 1).double(), torch.zeros(5, dtype=torch.int64), (0, 3), (3, 2))
    task = Given(nn.Linear(1, 2), Categorical(2), dtype=torch.float64)
    method = FedEM(components=2).bind(task, Train())
    theta = {"loss": tensor(0.0, math.log(3)).expand(2, 2)}
    q = method.responsibilities(theta, torch.stack([tensor(0.5, 0.5), tensor(0.25, 0.75)]), data)
    assert torch.allclose(q[0], tensor(0.75, 0.25).expand(3, 2), rtol=0, atol=1e-12)
    assert torch.allclose(q[1, :2], tensor(0.5, 0.5).expand(2, 2), rtol=0, atol=1e-12)
    assert (q[1, 2] == 0).all()  # padding


@pytest.mark.parametrize("batch", [500, 6])
def test_the_e_step_against_loops(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """q_im ∝ π_m p(y_i | x_i, θ_m) by torch's module for every example, in the data's order; rows sum to one."""
    monkeypatch.setattr(module_under_test, "EVALUATION_BATCH", batch)
    data = federation()
    method = fedem(data)
    down = one_round(method, data)[1]
    gen = torch.Generator().manual_seed(1)
    pi = torch.rand(7, 3, generator=gen, dtype=torch.float64)
    pi /= pi.sum(1, keepdim=True)
    q = method.responsibilities(down.theta, pi, data.train)
    assert q.shape == (7, 28, 3)
    for c, n in enumerate(data.train.size):
        x, y = data.train.client(c)
        likelihood = torch.stack([likelihoods(method, down.theta, c, m, x)[torch.arange(n), y] for m in range(3)], 1)
        expected = pi[c] * likelihood / (pi[c] * likelihood).sum(1, keepdim=True)
        assert torch.allclose(q[c, :n], expected, rtol=0, atol=1e-12)
        assert torch.allclose(q[c, :n].sum(1), torch.ones(n).double(), rtol=0, atol=1e-12)
        assert (q[c, n:] == 0).all()


def likelihoods(method: FedEM, theta: Params, c: int, m: int, x: Tensor) -> Tensor:
    """Class probabilities of component m at client c."""
    w = {k: v[c, m] for k, v in theta.items()}
    logits: Tensor = functional_call(method.task.module, w, (x,)).detach()
    return logits.softmax(1)


def test_mixture_weights_are_mean_responsibilities() -> None:
    """π_m = mean_i q_im over the client's own examples, so rows sum to one."""
    data = federation()
    method = fedem(data)
    _, down, client, updated, _ = one_round(method, data)
    assert torch.allclose(client.pi, torch.tensor(1 / 3, dtype=torch.float64), rtol=0, atol=1e-15)
    q = method.responsibilities(down.theta, client.pi, data.train)
    for c, n in enumerate(data.train.size):
        assert torch.allclose(updated.pi[c], q[c, :n].mean(0), rtol=0, atol=1e-14)
    assert torch.allclose(updated.pi.sum(1), torch.ones(7).double(), rtol=0, atol=1e-12)
    assert (rounds(method, data).states["pi"].sum(1) - 1).abs().max() < 1e-12


def test_the_m_step_against_a_plain_loop() -> None:
    """Each component by torch's SGD on mean over the batch of q_im · (-log p(y_i | x_i, θ_m)); q by the naive E-step.

    The batches are shuffled, so each example's weight has to be found by its place among the client's data.
    """
    data = federation()
    method = fedem(data)
    _, down, client, _, up = one_round(method, data)
    own = keys(data, "round", 0)
    for c, n in enumerate(data.train.size):
        x, y = data.train.client(c)
        joint = torch.stack([likelihoods(method, down.theta, c, m, x)[torch.arange(n), y] / 3 for m in range(3)], 1)
        q = joint / joint.sum(1, keepdim=True)
        plan = schedule(data.train[[c]], own.fold("descend")[[c]], TRAIN.budget(method.task))
        for m in range(3):
            w = {k: v[c, m].clone().requires_grad_() for k, v in down.theta.items()}
            optimizer = torch.optim.SGD(w.values(), lr=TRAIN.lr, momentum=TRAIN.momentum)
            for rows, count in zip(plan.rows[:, 0], plan.counts[:, 0], strict=True):
                local = torch.from_numpy(rows[:count]) - data.train.start[c]
                losses = nn.functional.cross_entropy(
                    functional_call(method.task.module, w, (x[local],)), y[local], reduction="none"
                )
                optimizer.zero_grad()
                (q[local, m] * losses).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for k, v in w.items():
                assert torch.allclose(up.theta[k][c, m], v, rtol=0, atol=1e-12)
    assert client.pi.shape == (7, 3)


@pytest.mark.parametrize("damped", [False, True])
def test_permuting_components_permutes_everything(damped: bool) -> None:
    data = federation()
    method = fedem(data, damped=damped)
    server, down, _, client, _ = one_round(method, data)
    order, ids, own = torch.tensor([2, 0, 1]), torch.arange(7), keys(data, "round", 1)
    a, up, _ = method.local_update(client, down, data.train, own)
    mixed = Down(tree.map(lambda v: v[:, order], down.theta))
    b, permuted, _ = method.local_update(Client(client.pi[:, order]), mixed, data.train, own)
    assert torch.allclose(b.pi, a.pi[:, order], rtol=0, atol=1e-14)
    for k, v in up.theta.items():
        assert torch.allclose(permuted.theta[k], v[:, order], rtol=0, atol=1e-13)
    before = method.aggregate(server, up, ids)
    after = method.aggregate(Server(tree.index(server.theta, order), server.known), permuted, ids)
    for k, v in before.theta.items():
        assert torch.allclose(after.theta[k], v[order], rtol=0, atol=1e-13)
    x = next(data.test.batches(50)).x
    one, two = (
        method.predict(method.personalise(s, Down(tree.expand(new.theta, 7)), data.train, keys(data)), x, keys(data))
        for s, new in ((a, before), (b, after))
    )
    assert torch.allclose(one, two, rtol=0, atol=1e-11)


def test_absent_clients_count_from_the_first_round() -> None:
    """Four clients, of whom 0 and 1 report n = 2 and 4 in round one, with components at 3 and 6; all start at 0.

    The reporters' mean is (2·3 + 4·6)/6 = 5. The other two are unknown and count 3 each, the reporters' mean, so the
    share is 6/12 and θ = 2.5. Then client 2 reports n = 10 at 7.5: known are 2, 4 and 10, the last one counts 10 (now
    the mean of the reporters), so θ = 2.5 + 10/26 (7.5 - 2.5) = 4.423…
    """
    method = FedEM(components=1, damped=True)
    server = Server({"w": torch.zeros(1, 1).double()}, torch.zeros(4).double())
    first = method.aggregate(server, Up({"w": tensor(3.0, 6.0).view(2, 1, 1)}, tensor(2.0, 4.0)), torch.tensor([0, 1]))
    assert float(first.theta["w"]) == pytest.approx(2.5, abs=1e-14)
    assert first.known.tolist() == [2.0, 4.0, 0.0, 0.0]
    second = method.aggregate(first, Up({"w": tensor(7.5).view(1, 1, 1)}, tensor(10.0)), torch.tensor([2]))
    assert float(second.theta["w"]) == pytest.approx(2.5 + 10 / 26 * 5, abs=1e-14)


def test_probabilities_are_mixed_not_logits() -> None:
    """p(y | x) = Σ_m π_m softmax(logits_m): by hand for two components; the softmax of mixed logits is another."""
    data = federation()
    method = fedem(data, components=2)
    down = one_round(method, data)[1]
    theta = tree.map(lambda v: 4 * v, down.theta)
    pi = tensor(0.3, 0.7).expand(7, 2)
    x = next(data.test.batches(50)).x
    log_p = method.predict(Personal(theta, pi), x, keys(data))
    for c in range(7):
        expected = sum(float(pi[c, m]) * likelihoods(method, theta, c, m, x[c]) for m in range(2))
        assert torch.allclose(log_p[c].exp(), torch.as_tensor(expected), rtol=0, atol=1e-12)
    logits = sum(float(pi[0, m]) * method.task.outputs(method.component(theta, m), x) for m in range(2))
    assert (log_p.exp() - torch.as_tensor(logits).softmax(2)).abs().max() > 0.05


def test_prediction_golden_numbers() -> None:
    """Components with constant probabilities (0.9, 0.1) and (0.1, 0.9), π = (3/4, 1/4): 0.7 and 0.3.

    Mixed logits would give softmax(±1.0986) = (0.75, 0.25) instead.
    """
    task = Task(nn.Linear(1, 2), Categorical(2), dtype=torch.float64)
    method = FedEM(components=2).bind(task, Train())
    bias = torch.stack([tensor(0.9, 0.1).log(), tensor(0.1, 0.9).log()])[None]
    personal = Personal({"head.bias": bias, "head.weight": torch.zeros(1, 2, 2, 1).double()}, tensor(0.75, 0.25)[None])
    p = method.predict(personal, torch.ones(1, 1, 1).double(), keys(federation())[:1]).exp()
    assert p.flatten().tolist() == pytest.approx([0.7, 0.3], abs=1e-12)


def test_the_global_model_has_equal_weights() -> None:
    data = federation()
    method = fedem(data)
    server = one_round(method, data)[0]
    theta = tree.expand(server.theta, 1)
    expected = sum(likelihoods(method, theta, 0, m, data.test.x) / 3 for m in range(3))
    found = method.predict_global(server, data.test.x)
    assert torch.allclose(found.exp(), torch.as_tensor(expected), rtol=0, atol=1e-12)


def test_aggregation_by_hand() -> None:
    """Reporters 2 and 0 with n = (1, 3) and components (0, 10), (4, 30): means (3, 25).

    Damped, where client 1 with 12 examples is known from before and absent, and client 3 never reported and counts as
    the reporters do on average, 2: 4/18 of the step from (1, 1), so (1 + 2 · 2/9, 1 + 24 · 2/9) = (13/9, 57/9).
    """
    data = federation()
    up = Up({"t": torch.stack([tensor(0, 10), tensor(4, 30)])}, tensor(1, 3))
    server, ids = Server({"t": tensor(1, 1)}, tensor(3, 12, 0, 0)), torch.tensor([2, 0])
    plain, damped = (fedem(data, components=2, damped=d).aggregate(server, up, ids) for d in (False, True))
    assert plain.theta["t"].tolist() == [3.0, 25.0]
    assert damped.theta["t"].tolist() == pytest.approx([13 / 9, 57 / 9], abs=1e-12)
    for new in (plain, damped):
        assert new.known.tolist() == [3.0, 12.0, 1.0, 0.0]


def test_damping_is_nothing_when_everyone_reports() -> None:
    data = federation()
    a, b = (rounds(fedem(data, damped=d), data).server for d in (False, True))
    for k, v in a.items():
        assert torch.allclose(b[k], v, rtol=0, atol=1e-12)


def test_components_start_apart_and_the_first_is_the_common_one() -> None:
    data = federation()
    method = fedem(data)
    theta = method.init_server(Key.from_seed(5), 7).theta
    assert same(tree.index(theta, 0), method.task.init(Key.from_seed(5).fold("init")))
    assert float(torch.pdist(torch.cat([v.flatten(1) for v in theta.values()], 1)).min()) > 0.1


def test_the_personal_mixture_is_fitted_to_the_newest_components() -> None:
    """π of the personal model: one E-step on training data with what comes down; the client's own state stays."""
    data = federation()
    method = fedem(data)
    server, _, _, client, up = one_round(method, data)
    new = Down(tree.expand(method.aggregate(server, up, torch.arange(7)).theta, 7))
    before = client.pi.clone()
    personal = method.personalise(client, new, data.train, keys(data))
    q = method.responsibilities(new.theta, client.pi, data.train)
    assert torch.allclose(personal.pi, q.sum(1) / data.train.n[:, None], rtol=0, atol=1e-14)
    assert torch.equal(client.pi, before)
    assert same(personal.theta, new.theta)
    assert not torch.allclose(personal.pi, client.pi, rtol=0, atol=1e-6)


def test_the_e_step_is_in_evaluation_mode() -> None:
    """With batch normalisation: running statistics are used, not those of the batch, and not written to."""
    data = federation(sizes=(30, 21, 12))
    method = fedem(data, module=NORMED)
    _, down, client, _, _ = one_round(method, data)
    before = tree.clone(down)
    whole = method.responsibilities(down.theta, client.pi, data.train)
    assert same(before, down)
    one = ClientData.single(*(part[:1] for part in data.train.client(1)))
    alone = method.responsibilities(tree.index(down.theta, slice(1, 2)), client.pi[1:2], one)
    assert torch.allclose(alone[0, 0], whole[1, 0], rtol=0, atol=1e-12)


def test_a_component_that_explains_nothing_dies_out() -> None:
    """π_m = 0 stays 0 and is no trouble: log 0 = -∞ has no share in the softmax, nor in the prediction."""
    data = federation()
    method = fedem(data, components=2)
    _, down, _, _, _ = one_round(method, data)
    client, up, logs = method.local_update(
        Client(tensor(1.0, 0.0).expand(7, 2)), down, data.train, keys(data, "round", 0)
    )
    assert torch.equal(client.pi, tensor(1.0, 0.0).expand(7, 2))
    assert same(tree.map(lambda v: v[:, 1], up.theta), tree.map(lambda v: v[:, 1].clone(), down.theta))
    assert torch.isfinite(logs["loss"]).all()
    x = next(data.test.batches(50)).x
    log_p = method.predict(Personal(down.theta, client.pi), x, keys(data))
    assert torch.allclose(log_p, method.task.predictive(method.component(down.theta, 0), x), rtol=0, atol=1e-12)
