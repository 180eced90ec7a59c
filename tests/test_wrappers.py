"""Wrappers change one function each, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedprior import tree
from fedprior.errors import FedpriorError
from fedprior.methods import build
from fedprior.methods._averaging import Up as AveragingUp
from fedprior.methods._envelope import Up
from fedprior.protocol import Weights
from fedprior.rng import Key
from fedprior.training import Train, descend, descend_head
from fedprior.wrappers import Optimised
from support import bound, federation, keys, one_round, rounds, same


def test_fine_tuning_leaves_training_alone() -> None:
    """The server and every state are bit-equal with and without FT; only the personal models differ."""
    data = federation()
    plain, tuned = rounds(bound("pfedme", data), data), rounds(bound("pfedme+ft", data), data)
    assert same(plain.server, tuned.server)
    assert same(plain.states, tuned.states)
    assert any((plain.models[c]["w/head.bias"] != tuned.models[c]["w/head.bias"]).any() for c in data.clients)


def test_no_steps_of_fine_tuning_change_nothing() -> None:
    data = federation()
    plain, tuned = rounds(bound("fedavg", data), data), rounds(bound("fedavg+ft", data, ft={"steps": 0}), data)
    assert (plain.vector() == tuned.vector()).all()


def test_fine_tuning_of_the_head_alone_for_epochs() -> None:
    """Two epochs on features of the personal model's base; the base stays as it was."""
    data = federation()
    method = bound("fedavg+ft", data, ft={"part": "head", "epochs": 2, "batch_size": 8})
    _, down, _, updated, _ = one_round(method, data)
    tuned = method.personalise(updated, down, data.train, keys(data, "p"))
    base, head = method.task.split(down.w)
    train = Train(lr=0.01, batch_size=8, epochs=2)
    by_hand, _ = descend_head(method.task, train, head, base, data.train, keys(data, "p").fold("ft"))
    assert isinstance(tuned, Weights)
    assert list(tuned.w) == list(down.w)
    assert same(method.task.split(tuned.w)[1], by_hand)
    assert same(tree.clone(method.task.split(tuned.w)[0]), tree.clone(base))


def test_fine_tuning_is_plain_gradient_descent() -> None:
    """20 steps of SGD at 0.01 with batches of 20, from the inner method's personal model, on the training data."""
    data = federation()
    method = bound("fedavg+ft", data)
    _, down, _, updated, _ = one_round(method, data)
    tuned = method.personalise(updated, down, data.train, keys(data, "p"))
    train = Train(lr=0.01, batch_size=20, steps=20)
    by_hand, _ = descend(
        method.task, train, lambda w, _, b: method.task.nll(w, b), down.w, {}, data.train, keys(data, "p").fold("ft")
    )
    assert isinstance(tuned, Weights)
    assert same(tuned.w, by_hand)


@pytest.mark.parametrize("step", [0.5, 1.0, 2.0])
def test_the_server_goes_step_times_as_far(step: float) -> None:
    """w ← w + β (mean - w): β = 2 gives 2·mean - w, β = 1 the mean itself."""
    data = federation()
    inner, outer = bound("fedavg", data), bound("fedavg+server_step", data, server_step={"step": step})
    server, _, _, _, up = one_round(inner, data)
    ids = torch.arange(len(data))
    mean = inner.aggregate(server, up, ids)
    expected = tree.map(lambda w, m: (1 - step) * w + step * m, server, mean)
    found = outer.aggregate(server, up, ids)
    for a, b in zip(tree.leaves(expected), tree.leaves(found), strict=True):
        assert torch.allclose(a, b, atol=1e-14)


def normed() -> nn.Module:
    """A perceptron whose running variances start at one and fall fast: its inputs are small."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=0.9), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("name", "options"), [("fedavg+server_step", {}), ("pfedme", {"beta": 2.0}), ("pfedme+server_step", {})]
)
def test_running_statistics_are_not_extrapolated(name: str, options: dict[str, Any]) -> None:
    """Reported: weights 3 and a running variance of 0.2, where the server has 1 and 1.

    β = 2: the weights go to 1 + 2 (3 - 1) = 5; the variance is that of the report, 0.2, not 1 + 2 (0.2 - 1) = -0.6.
    """
    data = federation()
    method = bound(name, data, module=normed(), **options)
    server = tree.map(torch.ones_like, method.init_server(Key.from_seed(5), len(data)))
    reported = {k: torch.full_like(v, 0.2 if k in method.task.buffers else 3.0)[None] for k, v in server.w.items()}
    up = Up if name.startswith("pfedme") else AveragingUp
    new = method.aggregate(server, up(reported, torch.ones(1).double()), torch.tensor([0])).w
    for k, v in new.items():
        assert torch.allclose(v, torch.full_like(v, 0.2 if k in method.task.buffers else 5.0), atol=1e-12), k


def test_a_longer_step_with_batch_norm_stays_finite() -> None:
    """Ten rounds: a variance below zero would make every prediction NaN."""
    data = federation(sizes=(30, 21, 12))
    trace = rounds(bound("fedavg+server_step", data, module=normed()), data, 10)
    assert all(np.isfinite(trace.test[c]).all() for c in data.clients)


def test_a_longer_step_equals_the_methods_own() -> None:
    """pFedMe has β as an option: `pfedme+server_step` with β = 2 is pFedMe(beta=2)."""
    data = federation()
    own, wrapped = bound("pfedme", data, beta=2.0), bound("pfedme+server_step", data)
    for a, b in zip(rounds(own, data).server.values(), rounds(wrapped, data).server.values(), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_wrappers_compose_and_describe_themselves() -> None:
    given = {"strength": 3.0, "beta": 0.9, "ft": {"steps": 4}, "server_step": {"step": 1.5}}
    method = build("pfedbred+ft+server_step", given)
    assert method.about.name == "pfedbred+ft+server_step"
    assert method.about.title == "pFedBreD+FT+server step"
    options = method.hyperparameters()
    assert (options["strength"], options["beta"], options["ft"]["steps"], options["server_step"]["step"]) == (
        3,
        0.9,
        4,
        1.5,
    )
    assert build("pfedbred+ft+server_step", options).hyperparameters() == options


def test_a_wrappers_old_name_still_works() -> None:
    """`+am` is `+server_step`, and its options may stand under either name; β of the method itself was server_step."""
    old = {"strength": 3.0, "server_step": 0.9, "am": {"step": 1.5}}
    new = {"strength": 3.0, "beta": 0.9, "server_step": {"step": 1.5}}
    method = build("pfedbred+server_step", new)
    assert method.hyperparameters()["server_step"] == {"step": 1.5}
    for name, options in (("pfedbred+am", old), ("pfedbred+am", new), ("pfedbred+server_step", old)):
        assert build(name, options).about.name == "pfedbred+server_step"
        assert build(name, options).hyperparameters() == method.hyperparameters()
    with pytest.raises(FedpriorError, match="former name of the wrapper 'server_step'"):
        build("fedavg+am", {"am": {"step": 1.5}, "server_step": {"step": 1.5}})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("pfedfda+ft", "plain network"),
        ("fedbps+server_step", "more than the weights"),
        ("fedavg+tf", "did you mean 'ft'"),
    ],
)
def test_what_does_not_qualify_says_why(name: str, part: str) -> None:
    with pytest.raises(FedpriorError, match=part):
        build(name)


def changes(method_options: dict[str, object], rounds_of_change: list[float]) -> list[float]:
    """The server's scalar weight after each round, when the inner method would move it by the given amounts."""
    data = federation()
    method = bound("fedavg+opt", data, opt=method_options)
    assert isinstance(method, Optimised)
    server = method.init_server(Key.from_seed(5), len(data))
    start = {k: torch.zeros_like(v) for k, v in server.w.items()}
    server = server._replace(w=start)
    seen = []
    for change in rounds_of_change:
        moved = tree.map(lambda v, c=change: (v + c)[None], server.w)
        server = method.aggregate(server, AveragingUp(moved, torch.ones(1)), torch.tensor([0]))
        seen.append(float(server.w["head.bias"][0]))
    return seen


def test_server_momentum_by_hand() -> None:
    """β₁ = ½, η = 1, changes 1, 1: m = 1, 1.5, so w = 1, 2.5."""
    assert changes({"rule": "momentum", "beta1": 0.5}, [1.0, 1.0]) == pytest.approx([1.0, 2.5], abs=1e-12)


def test_server_adam_by_hand() -> None:
    """β₁ = ½, β₂ = ¾, τ = 1, changes 1, 1.

    m = ½, ¾;  v = ¼, 7/16;  w = ½/(½+1) = 1/3, then + ¾/(√7/4+1).
    """
    expected = [1 / 3, 1 / 3 + 0.75 / (7**0.5 / 4 + 1)]
    found = changes({"rule": "adam", "lr": 1.0, "beta1": 0.5, "beta2": 0.75, "tau": 1.0}, [1.0, 1.0])
    assert found == pytest.approx(expected, abs=1e-12)


def test_server_yogi_and_adagrad_by_hand() -> None:
    """Changes 1, then ½, with β₁ = 0, τ = 1.

    yogi, β₂ = ½: v = 0 - ½·1·sign(0-1) = ½; then ½ - ½·¼·sign(½-¼) = 3/8.  adagrad: v = 1, then 1¼.
    """
    yogi = [1 / (0.5**0.5 + 1), 1 / (0.5**0.5 + 1) + 0.5 / (0.375**0.5 + 1)]
    whole: dict[str, object] = {"lr": 1.0, "beta1": 0.0, "tau": 1.0}
    assert changes({**whole, "rule": "yogi", "beta2": 0.5}, [1.0, 0.5]) == pytest.approx(yogi)
    adagrad = [0.5, 0.5 + 0.5 / (1.25**0.5 + 1)]
    assert changes({**whole, "rule": "adagrad"}, [1.0, 0.5]) == pytest.approx(adagrad)


@pytest.mark.parametrize("change", [0.01, 1.0])
def test_adaptive_rules_take_small_steps_by_default(change: float) -> None:
    """A first step of η m / (√v + τ): with β₁ = 0.9, β₂ = 0.99 and τ = 0.001 it is all but independent of the change Δ.

    adam and yogi: m = Δ/10 and √v = Δ/10, so η Δ / (Δ + 0.01), η = 0.03; adagrad: √v = Δ, so η Δ/10 / (Δ + 0.001),
    η = 0.1. Momentum: Δ itself, η = 1.
    """
    for rule in ("adam", "yogi"):
        assert changes({"rule": rule}, [change]) == pytest.approx([0.03 * change / (change + 0.01)], abs=1e-12)
    assert changes({"rule": "adagrad"}, [change]) == pytest.approx([0.01 * change / (change + 0.001)], abs=1e-12)
    assert changes({"rule": "momentum"}, [change]) == pytest.approx([change], abs=1e-12)


def test_server_momentum_of_zero_changes_nothing() -> None:
    data = federation()
    plain, wrapped = bound("fedavg", data), bound("fedavg+opt", data, opt={"beta1": 0.0})
    a, b = rounds(plain, data), rounds(wrapped, data)
    for client in data.clients:
        for name, value in a.models[client].items():
            assert b.models[client][name] == pytest.approx(value, abs=1e-12)
