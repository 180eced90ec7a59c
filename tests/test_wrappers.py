"""Wrappers change one function each, and nothing else."""

from __future__ import annotations

import pytest
import torch

from fedprior import tree
from fedprior.errors import FedpriorError
from fedprior.local import Train, descend
from fedprior.methods import build
from fedprior.methods._averaging import Up as AveragingUp
from fedprior.protocol import Weights
from fedprior.rng import Key
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
    inner, outer = bound("fedavg", data), bound("fedavg+am", data, am={"step": step})
    server, _, _, _, up = one_round(inner, data)
    ids = torch.arange(len(data))
    mean = inner.aggregate(server, up, ids)
    expected = tree.map(lambda w, m: (1 - step) * w + step * m, server, mean)
    found = outer.aggregate(server, up, ids)
    for a, b in zip(tree.leaves(expected), tree.leaves(found), strict=True):
        assert torch.allclose(a, b, atol=1e-14)


def test_am_equals_the_methods_own_server_step() -> None:
    """pFedMe has β as an option: `pfedme+am` with β = 2 is pFedMe(server_step=2)."""
    data = federation()
    own, wrapped = bound("pfedme", data, server_step=2.0), bound("pfedme+am", data)
    for a, b in zip(rounds(own, data).server.values(), rounds(wrapped, data).server.values(), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_wrappers_compose_and_describe_themselves() -> None:
    method = build("pfedbred+ft+am", {"strength": 3.0, "ft": {"steps": 4}, "am": {"step": 1.5}})
    assert method.about.name == "pfedbred+ft+am"
    assert method.about.title == "pFedBreD+FT+AM"
    options = method.hyperparameters()
    assert (options["strength"], options["ft"]["steps"], options["am"]["step"]) == (3.0, 4, 1.5)
    assert build("pfedbred+ft+am", options).hyperparameters() == options


@pytest.mark.parametrize(
    ("name", "part"),
    [("pfedfda+ft", "plain network"), ("fedbps+am", "more than the weights"), ("fedavg+tf", "did you mean 'ft'")],
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
    found = changes({"rule": "adam", "beta1": 0.5, "beta2": 0.75, "tau": 1.0}, [1.0, 1.0])
    assert found == pytest.approx(expected, abs=1e-12)


def test_server_yogi_and_adagrad_by_hand() -> None:
    """Changes 1, then ½, with β₁ = 0, τ = 1.

    yogi, β₂ = ½: v = 0 - ½·1·sign(0-1) = ½; then ½ - ½·¼·sign(½-¼) = 3/8.  adagrad: v = 1, then 1¼.
    """
    yogi = [1 / (0.5**0.5 + 1), 1 / (0.5**0.5 + 1) + 0.5 / (0.375**0.5 + 1)]
    assert changes({"rule": "yogi", "beta1": 0.0, "beta2": 0.5, "tau": 1.0}, [1.0, 0.5]) == pytest.approx(yogi)
    adagrad = [0.5, 0.5 + 0.5 / (1.25**0.5 + 1)]
    assert changes({"rule": "adagrad", "beta1": 0.0, "tau": 1.0}, [1.0, 0.5]) == pytest.approx(adagrad)


def test_server_momentum_of_zero_changes_nothing() -> None:
    data = federation()
    plain, wrapped = bound("fedavg", data), bound("fedavg+opt", data, opt={"beta1": 0.0})
    a, b = rounds(plain, data), rounds(wrapped, data)
    for client in data.clients:
        for name, value in a.models[client].items():
            assert b.models[client][name] == pytest.approx(value, abs=1e-12)
