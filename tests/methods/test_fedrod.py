"""FedRoD: balanced softmax by hand, and a personal head whose gradient reaches nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedprior import tree
from fedprior.data.client import ClientData
from fedprior.methods.fedrod import Client, FedRoD, Personal
from fedprior.protocol import Weights
from fedprior.rng import Key, Keys
from fedprior.training import Train
from fedprior.tree import Params
from support import TRAIN, bound, federation, keys, one_round, rounds, same

WHOLE = replace(TRAIN, batch_size=100, epochs=3)  # a batch is all of a client's data


def fedrod(data: Any, train: Train = TRAIN, module: nn.Module | None = None) -> FedRoD:
    method = bound("fedrod", data, train, module)
    assert isinstance(method, FedRoD)
    return method


def labelled(*labels: int) -> ClientData:
    """One client with these labels and some inputs."""
    x = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return ClientData.single(x, torch.tensor(labels))


def test_log_counts_by_hand() -> None:
    """Labels (0, 0, 0, 1) of three classes: log 3, log 1 = 0, and for the class that is absent log 1e-9."""
    method = fedrod(federation())
    expected = torch.tensor([[math.log(3), 0.0, math.log(1e-9)]], dtype=torch.float64)
    assert torch.allclose(method.log_counts(labelled(0, 0, 0, 1)), expected, rtol=0, atol=1e-12)


def test_balanced_softmax_by_hand() -> None:
    """A network of zeros has logits 0, so class c has probability n_c / n under the balanced softmax.

    Labels (0, 0, 0, 1): the loss is 3/4 · ln(4/3) + 1/4 · ln 4 = 0.5623351446 (+ 2.5e-10 for the absent class), where
    plain cross-entropy gives ln 3 = 1.0986. Its gradient by the generic bias is n_c/n minus the label's share: zero for
    every class, so the bias stays, where plain cross-entropy would move it by η (share - 1/3).
    """
    method = fedrod(federation(), Train(lr=1.0, batch_size=10, steps=1))
    data, own = labelled(0, 0, 0, 1), Keys.of(Key.from_seed(0), ["a"])
    down = Weights(tree.zeros_like(tree.expand(method.task.init(Key.from_seed(0)), 1)))
    client, up, logs = method.local_update(method.init_client(down, data, own), down, data, own)
    assert float(logs["loss"]) == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4), abs=1e-9)
    assert float(up.w["head.bias"].abs().max()) < 1e-9
    share = torch.tensor([[0.75, 0.25, 0.0]], dtype=torch.float64) - 1 / 3
    assert torch.allclose(client.head["head.bias"], share, rtol=0, atol=1e-12)  # the personal head sees plain logits


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_round_against_a_plain_loop(weight_decay: float) -> None:
    """Per step, with torch's module and SGD, on all of a client's data:

    w by cross-entropy of logits(w) + log n_c;  h_p by cross-entropy of logits(w) + h_p(z(w)), both held fixed.
    """
    data = federation()
    train = replace(WHOLE, weight_decay=weight_decay)
    method = fedrod(data, train)
    server, down, _, _, _ = one_round(method, data)
    gen = torch.Generator().manual_seed(2)
    head = tree.map(lambda v: torch.randn(v.shape, generator=gen, dtype=v.dtype), method.task.split(down.w)[1])
    updated, up, _ = method.local_update(Client(head), down, data.train, keys(data, "round", 0))
    module = method.task.module
    for c in range(len(data)):
        x, y = data.train.client(c)
        w = {k: v.clone().requires_grad_() for k, v in server.w.items()}
        own = {k: v[c].clone().requires_grad_() for k, v in head.items()}
        optimizer = torch.optim.SGD(
            [*w.values(), *own.values()], lr=train.lr, momentum=train.momentum, weight_decay=weight_decay
        )
        counts = torch.tensor([max(1e-9, float((y == k).sum())) for k in range(3)], dtype=torch.float64)
        for _ in range(3):
            z = torch.relu(x.flatten(1) @ w["base.1.weight"].T + w["base.1.bias"])
            logits = functional_call(module, w, (x,))
            personal = logits.detach() + z.detach() @ own["head.weight"].T + own["head.bias"]
            loss = nn.functional.cross_entropy(logits + counts.log(), y) + nn.functional.cross_entropy(personal, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for k, v in w.items():
            assert torch.allclose(up.w[k][c], v, rtol=0, atol=1e-12)
        for k, v in own.items():
            assert torch.allclose(updated.head[k][c], v, rtol=0, atol=1e-12)


def test_the_personal_head_reaches_nothing_else() -> None:
    """The shared network is the same bit for bit whatever the personal head is; the head is not."""
    data = federation()
    method = fedrod(data)
    _, down, client, updated, up = one_round(method, data)
    other = Client(tree.map(lambda v: v + 3.0, client.head))
    moved, sent, _ = method.local_update(other, down, data.train, keys(data, "round", 0))
    assert same(sent, up)
    assert not same(moved, updated)


def test_balanced_clients_train_as_fedavg() -> None:
    """Where every class has as many examples, log n_c is a constant and changes no softmax: the server is FedAvg's."""
    data = federation(sizes=(30, 30))
    for c in range(2):
        assert len(set(data.train.client(c)[1].bincount().tolist())) == 1
    ours, theirs = (rounds(bound(n, data), data).server for n in ("fedrod", "fedavg"))
    for k, v in theirs.items():
        assert torch.allclose(ours[k], v, rtol=0, atol=1e-12)


def test_prediction_is_the_sum_of_both_heads() -> None:
    """log softmax of (W_g + W_p) z + b_g + b_p: heads are linear, so their sum is one head."""
    data = federation()
    method = fedrod(data)
    _, down, _, updated, _ = one_round(method, data)
    personal = method.personalise(updated, down, data.train, keys(data, "p"))
    x = next(data.test.batches(50)).x
    log_p = method.predict(personal, x, keys(data))
    summed = {k: v + updated.head[k] if k in updated.head else v for k, v in down.w.items()}
    for c in range(len(data)):
        logits = functional_call(method.task.module, tree.index(summed, c), (x[c],)).detach()
        assert torch.allclose(log_p[c], logits.log_softmax(1), rtol=0, atol=1e-12)
    assert (log_p - method.task.predictive(down.w, x)).abs().max() > 1e-3


def test_at_first_the_generic_head_decides() -> None:
    """A client that joins has a personal head of zeros: it predicts as the global model does."""
    data = federation()
    method = fedrod(data)
    server, down, client, _, _ = one_round(method, data)
    assert all((v == 0).all() for v in client.head.values())
    log_p = method.predict(Personal(down.w, client.head), data.test.x.expand(7, -1, -1), keys(data))
    shared = method.predict_global(server, data.test.x)
    assert shared is not None
    assert torch.allclose(log_p[3], shared, rtol=0, atol=1e-12)


def test_the_personal_model_has_the_newest_shared_network() -> None:
    data = federation()
    trace = rounds(fedrod(data), data)
    for c, client in enumerate(data.clients):
        for k, v in trace.server.items():
            assert (trace.models[client][k] == v.numpy()).all()
        for k, v in trace.states.items():
            assert (trace.models[client][k] == v[c].numpy()).all()


def test_running_statistics_train_with_the_shared_network() -> None:
    """One step on all data from running mean 0, momentum 0.1: 0.1 · mean of the norm's input; once, not twice."""
    data = federation(sizes=(30, 21))
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    method = fedrod(data, replace(WHOLE, epochs=1), normed)
    server, _, _, _, up = one_round(method, data)
    for c in range(2):
        z: Tensor = data.train.client(c)[0] @ server.w["1.weight"].T + server.w["1.bias"]
        assert torch.allclose(up.w["2.running_mean"][c], 0.1 * z.mean(0), rtol=0, atol=1e-12)
        assert torch.allclose(up.w["2.running_var"][c], 0.9 + 0.1 * z.var(0), rtol=0, atol=1e-12)
    fresh: Params = method.init_server(Key.from_seed(5)).w
    assert same(server.w, fresh)
