"""Wrappers change one function each, and nothing else."""

from __future__ import annotations

import pytest
import torch

from fedprior import tree
from fedprior.errors import FedpriorError
from fedprior.local import Train, descend
from fedprior.methods import build
from fedprior.protocol import Weights
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
