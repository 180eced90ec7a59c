"""FedPAC: statistics against loops over classes, alignment by hand, and the combination of heads in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import functional_call

from fedprior import tree
from fedprior.data.client import ClientData
from fedprior.methods import fedpac as module_under_test
from fedprior.methods.fedpac import Down, FedPAC, Server, Up
from fedprior.rng import Key
from fedprior.training import Train
from fedprior.tree import Params
from support import HALF, TRAIN, bound, federation, keys, one_round, rounds, same

LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))  # no base: features are inputs
WHOLE = replace(TRAIN, batch_size=100, epochs=3)


def fedpac(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> FedPAC:
    method = bound("fedpac", data, train, module, **options)
    assert isinstance(method, FedPAC)
    return method


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def features(base: Params, x: Tensor) -> Tensor:
    """The perceptron's hidden layer, naively."""
    return torch.relu(x.flatten(1) @ base["base.1.weight"].T + base["base.1.bias"])


@pytest.mark.parametrize("batch", [500, 7])
def test_statistics_against_loops_over_classes(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts, class means and mean squared norms of features; the fourth client lacks a class. In one pass or many."""
    monkeypatch.setattr(module_under_test, "EVALUATION_BATCH", batch)
    data = federation()
    method = fedpac(data)
    base = one_round(method, data)[1].base
    counts, means, squares = method.statistics(base, data.train)
    for c in range(len(data)):
        x, y = data.train.client(c)
        z = features(tree.index(base, c), x)
        for k in range(3):
            mine = z[y == k]
            assert float(counts[c, k]) == len(mine)
            mean = mine.mean(0) if len(mine) else torch.zeros(6).double()
            square = mine.square().sum(1).mean() if len(mine) else torch.tensor(0.0).double()
            assert torch.allclose(means[c, k], mean, rtol=0, atol=1e-12)
            assert torch.allclose(squares[c, k], square, rtol=0, atol=1e-12)
    assert (counts == 0).any()


def test_variance_by_hand() -> None:
    """Features 1 and 3 of class 0, 3 of class 1, one dimension. π = (2/3, 1/3), means (2, 3), mean squares (5, 9).

    h = π · mean = (4/3, 1); V = (Σ π E z² - Σ h²)/n = (19/3 - 25/9)/3 = 32/27.
    """
    task_data = federation()
    method = fedpac(task_data, module=LINEAR)
    x = torch.zeros(3, 4, dtype=torch.float64)
    x[:, 0] = tensor(1.0, 3.0, 3.0)
    data, own = ClientData.single(x, torch.tensor([0, 0, 1])), keys(task_data)[:1]
    down = method.broadcast(method.init_server(Key.from_seed(0), 1), torch.arange(1))
    _, up, logs = method.local_update(method.init_client(down, data, own), down, data, own)
    assert up.scaled[0, :, 0].tolist() == pytest.approx([4 / 3, 1.0, 0.0], abs=1e-12)
    assert float(up.variance) == float(logs["variance"]) == pytest.approx(32 / 27, abs=1e-12)
    assert up.counts.tolist() == [[2.0, 1.0, 0.0]]


def test_statistics_are_of_the_received_base_and_means_of_the_trained_one() -> None:
    """h and V by loops on the base that came down; the means that are sent, on the base that goes up."""
    data = federation()
    method = fedpac(data)
    _, down, _, _, up = one_round(method, data)
    for c, n in enumerate(data.train.size):
        x, y = data.train.client(c)
        before, after = (features(tree.index(part, c), x) for part in (down.base, up.base))
        variance = torch.tensor(0.0).double()
        for k in range(3):
            share = float((y == k).sum()) / n
            if share:
                scaled = share * before[y == k].mean(0)
                assert torch.allclose(up.scaled[c, k], scaled, rtol=0, atol=1e-12)
                assert torch.allclose(up.means[c, k], after[y == k].mean(0), rtol=0, atol=1e-12)
                variance += share * before[y == k].square().sum(1).mean() - scaled.square().sum()
        assert torch.allclose(up.variance[c], variance / n, rtol=0, atol=1e-12)
        assert float(up.variance[c]) > 0


def test_weights_by_hand() -> None:
    """P_jk = V_j [j = k] + (h_i - h_j)(h_i - h_k), one class and dimension.

    Alike (h = 0, 0; V = 1, 3): P = diag(1, 3), so a = (3/4, 1/4) for both. Apart (h = 0, 1; V = 1, 1): P = diag(1, 2)
    for the first, so (2/3, 1/3), and mirrored for the second. Three (h = 0, 1, 1; V = 1): the first has
    P = [[1,0,0],[0,2,1],[0,1,2]], whose P⁻¹1 = (1, 1/3, 1/3), so (0.6, 0.2, 0.2); the others have P = diag(2, 1, 1), so
    (0.2, 0.4, 0.4).
    """
    method = fedpac(federation())
    for h, variance, expected in (
        (tensor(0, 0), tensor(1, 3), [[0.75, 0.25], [0.75, 0.25]]),
        (tensor(0, 1), tensor(1, 1), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]]),
        (tensor(0, 1, 1), tensor(1, 1, 1), [[0.6, 0.2, 0.2], [0.2, 0.4, 0.4], [0.2, 0.4, 0.4]]),
        (tensor(0), tensor(5), [[1.0]]),
    ):
        weights = method.combine(h.view(-1, 1, 1), variance)
        assert torch.allclose(weights, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_clients_far_apart_keep_their_own_heads() -> None:
    """h = 0 and 1000, V = 1: the other's weight is about 1e-6, below 1e-3, so it is dropped and one's own is 1."""
    weights = fedpac(federation()).combine(tensor(0, 1000).view(-1, 1, 1), tensor(1, 1))
    assert torch.equal(weights, torch.eye(2).double())


def test_small_weights_are_dropped_and_the_rest_renormalised() -> None:
    """Alike, V = (1, 1, 4000): a ∝ (1, 1, 1/4000), the last 1.2e-4 is dropped: (1/2, 1/2, 0).

    With V = (1, 1, 400) it is 1.2e-3 and stays.
    """
    method = fedpac(federation())
    dropped, kept = (method.combine(torch.zeros(3, 1, 1).double(), tensor(1, 1, v)) for v in (4000, 400))
    assert torch.allclose(dropped, tensor(0.5, 0.5, 0.0).expand(3, 3), rtol=0, atol=1e-12)
    assert (dropped[:, 2] == 0).all()
    assert torch.allclose(kept, (tensor(400, 400, 1) / 801).expand(3, 3), rtol=0, atol=1e-12)


def test_weights_are_on_the_simplex() -> None:
    """And they minimise a'Pa, P by loops over clients and classes, but for the share that is dropped.

    The minimum by SciPy: non-negative x with ‖Lx‖² + (Σx - 1)² least, L'L = P, points to it.
    """
    data = federation()
    method = fedpac(data)
    up = one_round(method, data)[4]
    weights = method.combine(up.scaled, up.variance)
    assert (weights >= 0).all()
    assert ((weights == 0) | (weights >= 1e-3)).all()
    assert torch.allclose(weights.sum(1), torch.ones(7).double(), rtol=0, atol=1e-12)
    for i in range(7):
        P = torch.zeros(7, 7).double()
        for j in range(7):
            for k in range(7):
                gaps = [(up.scaled[i, c] - up.scaled[j, c]) @ (up.scaled[i, c] - up.scaled[k, c]) for c in range(3)]
                P[j, k] = sum(gaps) + (up.variance[j] if j == k else 0)
        rows = np.vstack([torch.linalg.cholesky(P).T.numpy(), np.ones(7)])
        x = nnls(rows, np.array([0.0] * 7 + [1.0]))[0]
        best = np.where(x / x.sum() >= 1e-3, x, 0)
        assert weights[i].tolist() == pytest.approx(list(best / best.sum()), abs=1e-8)


@pytest.mark.parametrize(("absent", "expected"), [("keep", (0.0, 2.0)), ("mean", (17.5, 17.5))])
def test_heads_are_combined_by_hand(absent: str, expected: tuple[float, float]) -> None:
    """Two reporters, clients 3 and 1 of four, alike with V = (1, 3): both get 0.75·10 + 0.25·20 = 12.5.

    The heads of clients 0 and 2, who do not report, stay, or become the mean by examples n = (1, 3): (1·10 + 3·20)/4 =
    17.5. The base is (1·0 + 3·4)/4 = 3. Class means by class counts: class 0 (2·1 + 6·5)/8 = 4; class 1 of the second
    alone: 7; class 2, which nobody has, stays at 9.
    """
    data = federation()
    method = fedpac(data, absent_heads=absent)
    server = Server(
        {"b": tensor(9.0)}, {"h": torch.arange(4).double()[:, None]}, tensor(9, 9, 9)[:, None], tensor(1, 0, 2)
    )
    up = Up(
        base={"b": tensor(0, 4)[:, None]},
        head={"h": tensor(10, 20)[:, None]},
        n=tensor(1, 3),
        counts=torch.stack([tensor(2, 0, 0), tensor(6, 5, 0)]),
        means=torch.stack([tensor(1, 0, 0), tensor(5, 7, 0)])[:, :, None],
        scaled=torch.zeros(2, 3, 1).double(),
        variance=tensor(1, 3),
    )
    new = method.aggregate(server, up, torch.tensor([3, 1]))
    assert new.heads["h"].flatten().tolist() == pytest.approx([expected[0], 12.5, expected[1], 12.5], abs=1e-12)
    assert server.heads["h"].flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert new.base["b"].tolist() == [3.0]
    assert new.means.flatten().tolist() == pytest.approx([4.0, 7.0, 9.0], abs=1e-12)
    assert [bool(s > 0) for s in new.seen] == [True, True, True]


def test_each_client_receives_its_own_head() -> None:
    data = federation()
    method = fedpac(data)
    server, _, _, _, up = one_round(method, data)
    new = method.aggregate(server, up, torch.arange(7))
    weights = method.combine(up.scaled, up.variance)
    down = method.broadcast(new, torch.tensor([4, 2]))
    for row, i in enumerate((4, 2)):
        for k, heads in up.head.items():
            expected = sum(float(weights[i, j]) * heads[j] for j in range(7))
            assert torch.allclose(down.head[k][row], torch.as_tensor(expected), rtol=0, atol=1e-12)
    assert all(torch.equal(v[0], v[1]) for v in down.base.values())


@pytest.mark.parametrize("choice", ["trained", "aggregated"])
def test_the_personal_network_is_as_trained_or_as_combined(choice: str) -> None:
    """After a round of all: the network in the client's hands, or the mean base with the client's combined head."""
    data = federation()
    method = fedpac(data, predict_with=choice)
    server, _, _, client, up = one_round(method, data)
    down = method.broadcast(method.aggregate(server, up, torch.arange(7)), torch.arange(7))
    trained, combined = {**up.base, **up.head}, {**down.base, **down.head}
    w = method.personalise(client, down, data.train, keys(data, "personalise", 0)).w
    assert same(w, {k: (trained if choice == "trained" else combined)[k] for k in w})
    assert not same(trained, combined)
    assert method.moment == ("after local training" if choice == "trained" else "after aggregation")


def test_alignment_by_hand() -> None:
    """No hidden layer, so z = x. Inputs (1, 2, 0, 0) of class 0 and (0, 0, 0, 6) of class 1, λ = 0.5.

    Global means: class 0 at 0, class 1 not seen. The first is apart by (1 + 4)/4 = 1.25, the mean over features, the
    second counts as 0: over examples 0.625, so the objective is CE + 0.3125.
    """
    data = federation()
    method = fedpac(data, module=LINEAR, alignment=0.5)
    x = torch.stack([tensor(1, 2, 0, 0), tensor(0, 0, 0, 6)])
    batch = next(ClientData.single(x, torch.tensor([0, 1])).batches(5))
    head = tree.expand(method.task.init(Key.from_seed(0)), 1)
    seen = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
    fixed = {"head": head, "global": {"means": torch.zeros(1, 3, 4).double(), "seen": seen}}
    cross_entropy = float(method.task.nll(head, batch))
    assert float(method.base_objective({}, fixed, batch)) == pytest.approx(cross_entropy + 0.3125, abs=1e-12)
    both = {**fixed, "global": {"means": torch.zeros(1, 3, 4).double(), "seen": seen + 1}}
    assert float(method.base_objective({}, both, batch)) == pytest.approx(  # and (1.25 + 9)/2 · 0.5
        cross_entropy + 2.5625, abs=1e-12
    )


def test_alignment_is_off_in_the_first_round() -> None:
    """No means exist yet, so λ has no effect on the first round, bit for bit; on the second it has."""
    data = federation()
    without, with_it = (fedpac(data, alignment=a) for a in (0.0, 5.0))
    assert same(one_round(without, data)[4], one_round(with_it, data)[4])
    a, b = (rounds(m, data, 2) for m in (without, with_it))
    assert not same(a.server, b.server)


def test_alignment_pulls_features_to_the_means() -> None:
    data = federation()
    gaps = []
    for alignment in (0.0, 1.0, 10.0):
        method = fedpac(data, replace(TRAIN, lr=0.02), alignment=alignment)
        server, _, client, _, up = one_round(method, data)
        down = method.broadcast(method.aggregate(server, up, torch.arange(7)), torch.arange(7))
        _, up, _ = method.local_update(client, down, data.train, keys(data, "round", 1))
        gaps.append(float((up.means - down.means)[up.counts > 0].norm()))
    assert gaps == sorted(gaps, reverse=True)


def test_a_round_against_a_plain_loop() -> None:
    """On all of a client's data, torch's module and SGD: two steps on the head with its own learning rate, then three
    on the base with CE + λ · mean over examples and features of (z - mean of its class)²."""
    data = federation()
    method = fedpac(data, WHOLE, head_epochs=2, head_lr=0.3, alignment=0.7)
    server, _, client, _, _ = one_round(method, data)
    gen = torch.Generator().manual_seed(1)
    means = torch.randn(3, 6, generator=gen, dtype=torch.float64)
    down = method.broadcast(Server(server.base, server.heads, means, tensor(4, 4, 4)), torch.arange(7))
    updated, up, _ = method.local_update(client, down, data.train, keys(data, "round", 1))
    for c in range(7):
        x, y = data.train.client(c)
        base, head = ({k: v[c].clone() for k, v in part.items()} for part in (down.base, down.head))
        for part, lr, steps, strength in ((head, 0.3, 2, 0.0), (base, WHOLE.lr, 3, 0.7)):
            for v in part.values():
                v.requires_grad_()
            optimizer = torch.optim.SGD(part.values(), lr=lr, momentum=WHOLE.momentum)
            for _ in range(steps):
                logits = functional_call(method.task.module, {**base, **head}, (x,))
                apart = (features(base, x) - means[y]).square().mean()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(logits, y) + strength * apart
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for v in part.values():
                v.requires_grad_(False)
        for k, v in {**base, **head}.items():
            assert torch.allclose(updated.w[k][c], v, rtol=0, atol=1e-12)
            assert torch.allclose({**up.base, **up.head}[k][c], v, rtol=0, atol=1e-12)


def test_without_alignment_and_combination_it_is_fedrep(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ = 0, everyone keeps its own head, the head's learning rate is the base's: FedRep's bases and heads."""
    data = federation()
    monkeypatch.setattr(FedPAC, "combine", lambda self, scaled, variance: torch.eye(len(scaled)).double())
    ours = rounds(fedpac(data, alignment=0.0, head_epochs=2, head_lr=TRAIN.lr), data)
    theirs = rounds(bound("fedrep", data, head_epochs=2), data)
    for k, v in theirs.server.items():
        assert torch.allclose(ours.server[k.replace("w/", "base/")], v, rtol=0, atol=1e-12)
    for k, v in theirs.states.items():
        assert torch.allclose(ours.states[k.replace("own/", "w/")], v, rtol=0, atol=1e-12)
        assert torch.allclose(ours.server[k.replace("own/", "heads/")], v, rtol=0, atol=1e-12)


def test_clients_that_stay_away_keep_their_heads() -> None:
    """After one round with half of the clients, the others' heads at the server are the common start."""
    data = federation()
    method = fedpac(data)
    start = method.task.init(Key.from_seed(5).fold("init"))
    trace = rounds(method, data, 1, participation=HALF)
    heads = trace.server["heads/head.weight"]
    assert sum(torch.equal(h, start["head.weight"]) for h in heads) == 3


def test_mean_heads_change_nothing_when_all_report() -> None:
    data = federation()
    keep, mean = (rounds(fedpac(data, absent_heads=choice), data, 2) for choice in ("keep", "mean"))
    assert same(keep.server, mean.server)


def test_the_personal_model_is_as_trained() -> None:
    data = federation()
    method = fedpac(data)
    _, down, _, updated, up = one_round(method, data)
    assert same(method.personalise(updated, down, data.train, keys(data)), updated)
    assert same(updated.w, {k: {**up.base, **up.head}[k] for k in sorted({*up.base, *up.head})})


def test_running_statistics_stay_while_the_head_trains() -> None:
    """Without base epochs the base comes back bit for bit, and nothing that came in is written to."""
    data = federation(sizes=(30, 21, 12))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    method = fedpac(data, TRAIN.lasting(0), normed)
    server = method.init_server(Key.from_seed(5), 3)
    down = method.broadcast(server, torch.arange(3))
    assert isinstance(down, Down)
    before, sent = tree.clone(server), tree.clone(down)
    client = method.init_client(down, data.train, keys(data, "join"))
    _, up, _ = method.local_update(client, down, data.train, keys(data, "round", 0))
    assert same(before, server)
    assert same(sent, down)
    assert same(up.base, sent.base)
    assert np.isfinite(rounds(fedpac(data, module=normed), data).vector()).all()
