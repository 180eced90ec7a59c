"""Optimisers on stacks against `torch.optim`, one client at a time, and by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedprior.optim import SGD, Adam, Factors, Optimizer, clipped
from fedprior.tree import Params

CLIENTS = 3

Oracle = Callable[[list[Tensor]], torch.optim.Optimizer]
PAIRS: dict[str, tuple[Optimizer, Oracle]] = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": (SGD(0.1, weight_decay=0.3), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.3)),
    "both": (
        SGD(0.1, momentum=0.5, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.3),
    ),
    "adam": (Adam(0.1), lambda p: torch.optim.Adam(p, lr=0.1)),
    "adam decay": (Adam(0.1, weight_decay=0.3), lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.3)),
    "adam betas": (
        Adam(0.1, beta1=0.5, beta2=0.7, eps=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.7), eps=1e-3),
    ),
}
pairs = pytest.mark.parametrize(("ours", "oracle"), PAIRS.values(), ids=PAIRS.keys())


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights() -> Params:
    return {"bias": normal(0, CLIENTS, 4), "kernel": normal(1, CLIENTS, 3, 2, 2), "scale": normal(2, CLIENTS)}


def gradients(step: int) -> Params:
    """Of the shapes of `weights`, different for every client and step, and of very different sizes."""
    return {k: 10.0 ** (step % 3 - 1) * normal(100 * step + i, *v.shape) for i, (k, v) in enumerate(weights().items())}


def assert_close(ours: Params, theirs: Params) -> None:
    for k, leaf in theirs.items():
        torch.testing.assert_close(ours[k], leaf, rtol=1e-12, atol=1e-12)


def by_torch(oracle: Oracle, steps: int, w: Params) -> Params:
    """Every client on its own, from `w`."""
    done: list[Params] = []
    for c in range(CLIENTS):
        mine = {k: v[c].clone().requires_grad_() for k, v in w.items()}
        optimizer = oracle(list(mine.values()))
        for step in range(steps):
            for k, g in gradients(step).items():
                mine[k].grad = g[c].clone()
            optimizer.step()
        done.append({k: v.detach() for k, v in mine.items()})
    return {k: torch.stack([d[k] for d in done]) for k in w}


@pairs
def test_a_stack_steps_like_torch_optim(ours: Optimizer, oracle: Oracle) -> None:
    w = weights()
    state = ours.init(w)
    for step in range(6):
        ours.update(w, gradients(step), state)
    assert_close(w, by_torch(oracle, 6, weights()))


@pairs
def test_gradients_may_have_any_layout(ours: Optimizer, oracle: Oracle) -> None:
    """Autograd hands out transposed and expanded gradients."""
    w = weights()
    state = ours.init(w)
    for step in range(3):
        grads = gradients(step)
        grads["kernel"] = grads["kernel"].permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
        assert not grads["kernel"].is_contiguous()
        ours.update(w, grads, state)
    assert_close(w, by_torch(oracle, 3, weights()))


@pairs
def test_weights_may_have_any_layout(ours: Optimizer, oracle: Oracle) -> None:
    """A model in channels-last memory has weights whose layout is not that of their contiguous gradients."""
    w = weights()
    w["kernel"] = w["kernel"].transpose(1, 3).contiguous().transpose(1, 3)
    assert not w["kernel"].is_contiguous()
    state = ours.init(w)
    for step in range(3):
        ours.update(w, gradients(step), state)
    assert_close(w, by_torch(oracle, 3, weights()))


@pairs
def test_a_prefix_of_a_stack_can_go_on_alone(ours: Optimizer, oracle: Oracle) -> None:
    """As in `fold`: three steps for all clients, two more for the first two, in views of weights and state."""
    w = weights()
    state = ours.init(w)
    for step in range(3):
        ours.update(w, gradients(step), state)
    part = {k: v[:2] for k, v in w.items()}
    first, second = ({k: v[:2] for k, v in moments.items()} for moments in (state.first, state.second))
    for step in (3, 4):
        ours.update(part, {k: g[:2] for k, g in gradients(step).items()}, type(state)(first, second, state.steps[:2]))
    long, short = by_torch(oracle, 5, weights()), by_torch(oracle, 3, weights())
    assert_close(w, {k: torch.cat([long[k][:2], short[k][2:]]) for k in w})


@pairs
def test_weights_without_a_gradient_stay(ours: Optimizer, oracle: Oracle) -> None:
    w = weights()
    ours.update(w, {"bias": gradients(1)["bias"]}, ours.init(w))
    assert torch.equal(w["kernel"], weights()["kernel"])
    assert not torch.equal(w["bias"], weights()["bias"])


def test_sgd_by_hand() -> None:
    """lr 0.1, m 0.5, wd 0.5, g = 1, w = 2: v = 0 + 1 + 1 = 2, w = 1.8; v = 1 + 1 + 0.9 = 2.9, w = 1.51."""
    optimizer, w = SGD(0.1, 0.5, 0.5), {"a": torch.tensor([[2.0]], dtype=torch.float64)}
    state = optimizer.init(w)
    for expected in (1.8, 1.51):
        optimizer.update(w, {"a": torch.ones(1, 1, dtype=torch.float64)}, state)
        torch.testing.assert_close(w["a"].item(), expected, rtol=1e-12, atol=0)


def test_adam_by_hand() -> None:
    """Bias-corrected, the first step is lr g/(|g| + ε), whatever |g|: 1 ↦ 1 - 0.1·3/(3 + 1) = 0.925 with ε = 1."""
    optimizer, w = Adam(0.1, eps=1.0), {"a": torch.ones(1, 1, dtype=torch.float64)}
    optimizer.update(w, {"a": torch.full((1, 1), 3.0, dtype=torch.float64)}, optimizer.init(w))
    torch.testing.assert_close(w["a"].item(), 0.925, rtol=1e-12, atol=0)


def test_states_hold_what_is_needed_and_no_more() -> None:
    """An optimiser without a moment keeps an empty dict; a fresh state is zero, however the weights are laid out."""
    w = weights()
    shapes = {k: v.shape for k, v in w.items()}
    for optimizer, first, second in ((SGD(0.1), {}, {}), (SGD(0.1, 0.9), shapes, {}), (Adam(0.1), shapes, shapes)):
        state = optimizer.init(w)
        assert {k: v.shape for k, v in state.first.items()} == first
        assert {k: v.shape for k, v in state.second.items()} == second
        assert state.steps.tolist() == [0] * CLIENTS
        assert not any(v.any() for v in (*state.first.values(), *state.second.values()))


def test_clipping_shortens_each_clients_gradient_over_all_tensors() -> None:
    """Client 0 has gradient (3, 4), norm 5: clipped to 1 it is (0.6, 0.8). Client 1 has norm 0.5 and keeps it."""
    grads = {"a": torch.tensor([[3.0], [0.3]]).double(), "b": torch.tensor([[4.0], [0.4]]).double()}
    found = clipped(grads, 1.0)
    assert torch.allclose(found["a"].flatten(), torch.tensor([0.6, 0.3]).double())
    assert torch.allclose(found["b"].flatten(), torch.tensor([0.8, 0.4]).double())
    w = {"a": torch.zeros(2, 1).double(), "b": torch.zeros(2, 1).double()}
    optimizer = SGD(lr=1.0, clip=1.0)
    optimizer.update(w, {k: g.clone() for k, g in grads.items()}, optimizer.init(w))
    assert torch.allclose(w["a"].flatten(), torch.tensor([-0.6, -0.3]).double())


FACTORED: dict[str, Optimizer] = {
    **{name: ours for name, (ours, _) in PAIRS.items()},
    "clip": SGD(0.1, clip=0.5),
    "clipped adam": Adam(0.1, clip=0.5),
}


@pytest.mark.parametrize("optimizer", FACTORED.values(), ids=FACTORED.keys())
@pytest.mark.parametrize("also_dense", [False, True])
@pytest.mark.parametrize(("products", "pulls"), [(1, 0), (2, 0), (0, 1), (1, 1), (2, 2)])
def test_factors_are_a_gradient(optimizer: Optimizer, products: int, pulls: int, *, also_dense: bool) -> None:
    """Shares gᵀ x and s · d, alone or beside a dense one, step as the same gradient multiplied out."""
    start = {"bias": normal(0, CLIENTS, 4), "matrix": normal(1, CLIENTS, 4, 6)}
    ours, theirs = ({k: v.clone() for k, v in start.items()} for _ in range(2))
    state, other = optimizer.init(ours), optimizer.init(theirs)
    for step in range(4):
        seed = 100 * step
        factors = Factors(
            [(normal(seed + i, CLIENTS, 5, 4), normal(seed + i + 5, CLIENTS, 5, 6)) for i in range(products)],
            [(normal(seed + i + 10, CLIENTS), normal(seed + i + 15, CLIENTS, 4, 6)) for i in range(pulls)],
        )
        full = torch.zeros_like(start["matrix"])
        for g, x in factors.products:
            full += g.transpose(1, 2) @ x
        for s, d in factors.pulls:
            full += s.view(-1, 1, 1) * d
        bias, extra = normal(seed + 20, CLIENTS, 4), normal(seed + 21, CLIENTS, 4, 6)
        dense = {"bias": bias.clone()} | ({"matrix": extra.clone()} if also_dense else {})
        optimizer.update(ours, dense, state, {"matrix": factors})
        optimizer.update(theirs, {"bias": bias, "matrix": full + extra if also_dense else full}, other)
    assert_close(ours, theirs)
    assert not torch.allclose(ours["matrix"], start["matrix"])
