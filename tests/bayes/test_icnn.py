"""The input-convex network of FedMAP's newest release: its value, its convexity, and the server's steps on it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedprior import tree
from fedprior.bayes import icnn
from fedprior.rng import Key
from fedprior.tree import Params


def averaging() -> Params:
    """One number θ: every hidden unit sees θ alone, later layers take plain means, without biases."""
    found = tree.zeros_like(icnn.init({"t": torch.zeros(1, dtype=torch.float64)}, Key.from_seed(0)))
    found["t/weight1"][:, 0] = 1.0
    found["t/weight2"][:] = 1 / 64
    found["t/weight3"][:] = 1 / 32
    return found


def stacked(network: Params, theta: Params, gamma: Params) -> Tensor:
    clients = len(next(iter(theta.values())))
    return icnn.energy(tree.expand(network, clients), theta, gamma)


def test_two_softplus_layers_by_hand() -> None:
    """s(s(θ)) = ln(1 + 1 + e^θ): ln 3 at 0, ln 4 at ln 2, whatever γ is."""
    theta = {"t": torch.tensor([[0.0], [math.log(2)]], dtype=torch.float64)}
    gamma = {"t": torch.tensor([[5.0], [-5.0]], dtype=torch.float64)}
    assert stacked(averaging(), theta, gamma).tolist() == pytest.approx([math.log(3), math.log(4)], abs=1e-12)


def test_it_is_convex_in_both_tensors_together() -> None:
    """f at a mixture of two points is at most the mixture of f; first layers have weights of both signs."""
    gen = torch.Generator().manual_seed(1)
    shapes = {"a": (3, 2), "b": (4,)}
    network = icnn.init({k: torch.zeros(s, dtype=torch.float64) for k, s in shapes.items()}, Key.from_seed(4))
    assert network["a/weight1"].min() < 0 < network["a/weight1"].max()
    assert all(network[k].min() >= 0 for k in network if k.endswith(("weight2", "weight3")))
    points = [
        {k: 5 * torch.randn(50, *s, dtype=torch.float64, generator=gen) for k, s in shapes.items()} for _ in range(4)
    ]
    ends = [stacked(network, points[0], points[1]), stacked(network, points[2], points[3])]
    for share in (0.25, 0.5, 0.9):
        between = [tree.map(lambda a, b, s=share: s * a + (1 - s) * b, points[i], points[i + 2]) for i in (0, 1)]
        assert (stacked(network, *between) <= share * ends[0] + (1 - share) * ends[1] + 1e-9).all()


def test_the_servers_steps_by_hand() -> None:
    """At θ = 0 the last layer sees ln 3 from each unit and 1 from its bias, so a step of η lowers them by η ln 3 and η.

    A step of 1 would make the weights negative: they stop at 0. Once the energy is not positive nothing moves.
    """
    zero = {"t": torch.zeros(1, 1, dtype=torch.float64)}
    network = averaging()
    after = icnn.lowered(network, lambda w: stacked(w, zero, zero).sum(), lr=0.01, steps=1)
    assert torch.allclose(after["t/weight3"], network["t/weight3"] - 0.01 * math.log(3), atol=1e-12)
    assert float(after["t/bias3"]) == pytest.approx(-0.01)
    clamped = icnn.lowered(network, lambda w: stacked(w, zero, zero).sum(), lr=1.0, steps=5)
    assert clamped["t/weight3"].abs().max() == 0
    assert float(clamped["t/bias3"]) == -1.0


def test_starts_by_fan_in_and_by_key() -> None:
    """Each layer is uniform within ±1/√inputs; another key gives another network, the same key the same."""
    w = {"a": torch.zeros(50)}
    first, again, other = (icnn.init(w, Key.from_seed(s)) for s in (1, 1, 2))
    assert first["a/weight1"].shape == (64, 100)
    assert 0.099 < float(first["a/weight1"].abs().max()) <= 0.1
    assert torch.equal(first["a/weight1"], again["a/weight1"])
    assert not torch.equal(first["a/weight1"], other["a/weight1"])
