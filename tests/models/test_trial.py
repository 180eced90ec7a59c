"""A network of one's own must take the examples and give what the target needs; otherwise one sentence says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedprior
from fedprior.errors import FedpriorError
from fedprior.methods import build
from fedprior.models.likelihood import Categorical, Gaussian
from fedprior.models.trial import try_network
from support import TRAIN, federation


class Detour(nn.Module):
    """Its last registered layer has two outputs, what it returns has three."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.inner = nn.Linear(2, 3), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.inner(x))


class Returns(nn.Module):
    def __init__(self, what: Any) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(4, 3), what

    def forward(self, x: torch.Tensor) -> Any:
        return self.what(self.linear(x))


@pytest.mark.parametrize(
    ("module", "classes", "told"),
    [
        (Detour(), 2, r"gives outputs of shape \[n, 3\] for n examples, but the target needs \[n, 2\]"),
        (nn.Linear(4, 3), 2, "needs"),
        (nn.Linear(5, 3), 3, r"cannot take a batch of examples, whose shape is \[n, 4\]"),
        (Returns(lambda out: (out, out)), 3, "gives a tuple and not one tensor"),
        (Returns(lambda out: out.unsqueeze(1)), 3, r"\[n, 1, 3\]"),
        (Returns(lambda out: out.mean(0, keepdim=True)), 3, "needs"),
        (Returns(lambda out: out.nothing), 3, "cannot take"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence(module: nn.Module, classes: int, told: str) -> None:
    with pytest.raises(FedpriorError, match=told) as error:
        try_network(module, (4,), Categorical(classes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("module", "likelihood"),
    [
        (nn.Linear(4, 3), Categorical(3)),
        (nn.Linear(4, 1), Categorical(2)),
        (nn.Linear(4, 2), Gaussian()),
        (nn.Linear(4, 2).double(), Gaussian()),
        (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), Categorical(3)),
    ],
)
def test_what_fits_is_taken_and_left_as_it_was(module: nn.Module, likelihood: Any) -> None:
    before = {k: v.clone() for k, v in module.state_dict().items()}
    training = module.training
    try_network(module, (4,), likelihood)
    assert module.training == training
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_a_run_refuses_it_before_the_first_round() -> None:
    with pytest.raises(FedpriorError, match=r"the target needs \[n, 3\]"):
        fedprior.run(build("fedavg", train=TRAIN), federation((9, 9)), model=Returns(lambda out: out[:, :2]), rounds=1)
