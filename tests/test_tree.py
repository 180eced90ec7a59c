"""Trees: structure first, then the numbers (squared distance, weighted mean, bytes)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedprior import tree
from fedprior.tree import Params

quick = settings(deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)


class Pair(NamedTuple):
    left: Tensor
    w: Params


class Nest(NamedTuple):
    """Field names that are prefixes of each other, a NamedTuple inside, two dicts."""

    w: Params
    w2: Params
    pair: Pair
    n: Tensor


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def params(draw: st.DrawFn, clients: int = 3) -> Params:
    """Zero to four tensors [clients, ...] under names such as `base.0.weight` and `a/b`, in sorted order."""
    names = draw(st.sets(st.text("ab0._/", min_size=1, max_size=6).filter(lambda k: k.strip("/") == k), max_size=4))
    shapes = st.lists(st.integers(1, 3), max_size=2)
    return {k: normal(draw(seeds), clients, *draw(shapes)) for k in sorted(names)}


@st.composite
def nests(draw: st.DrawFn, clients: int = 3) -> Nest:
    pair = Pair(normal(draw(seeds), clients, 2), draw(params(clients)))
    return Nest(draw(params(clients)), draw(params(clients)), pair, normal(draw(seeds), clients))


def assert_equal(a: Any, b: Any) -> None:
    """The same structure, names in the same order, the same numbers."""
    assert type(a) is type(b)
    assert list(tree.flatten(a)) == list(tree.flatten(b))
    assert all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


# Structure


@quick
@given(nests())
def test_unflatten_inverts_flatten(nest: Nest) -> None:
    assert_equal(tree.unflatten(Nest, tree.flatten(nest)), nest)


@quick
@given(params())
def test_unflatten_inverts_flatten_for_bare_kinds(w: Params) -> None:
    """A dict or a tensor may be the whole tree; a tensor's path is then empty."""
    assert_equal(tree.unflatten(Params, tree.flatten(w)), w)
    assert_equal(tree.unflatten(Tensor, tree.flatten(torch.ones(2))), torch.ones(2))


def test_flatten_names_leaves_by_their_path() -> None:
    nest = Nest({"base.0.weight": torch.ones(1)}, {}, Pair(torch.ones(1), {"b": torch.ones(1)}), torch.ones(1))
    assert list(tree.flatten(nest)) == ["w/base.0.weight", "pair/left", "pair/w/b", "n"]
    assert list(tree.flatten({"a": {"b": torch.ones(1)}})) == ["a/b"]


def test_unflatten_refuses_a_missing_leaf() -> None:
    with pytest.raises(KeyError, match="pair/left"):
        tree.unflatten(Nest, {"n": torch.ones(1)})


@quick
@given(nests())
def test_map_is_leaf_by_leaf(nest: Nest) -> None:
    """map(f, a, b) has f(a_leaf, b_leaf) at every path and a's structure."""
    other = tree.map(lambda leaf: leaf + 1, nest)
    got = tree.map(lambda a, b: a * b, nest, other)
    expected = {path: leaf * (leaf + 1) for path, leaf in tree.flatten(nest).items()}
    assert type(got) is Nest
    assert type(got.pair) is Pair
    assert_equal(tree.flatten(got), expected)


def test_map_pairs_dict_entries_by_name() -> None:
    a, b = {"p": torch.tensor([1.0]), "q": torch.tensor([2.0])}, {"q": torch.tensor([20.0]), "p": torch.tensor([10.0])}
    assert_equal(tree.map(torch.add, a, b), {"p": torch.tensor([11.0]), "q": torch.tensor([22.0])})


@pytest.mark.parametrize("alien", [None, 1.0, 3, "x", [torch.ones(1)], (torch.ones(1),), np.ones(1)], ids=repr)
def test_refuses_what_is_not_a_tree(alien: object) -> None:
    """Also deep inside; `items` tells where."""
    for bad in (alien, {"a": alien}, Pair(torch.ones(1), {"b": alien})):  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="is not a tree"):
            tree.map(torch.neg, bad)
        with pytest.raises(TypeError, match="is not a tree"):
            tree.leaves(bad)
    with pytest.raises(TypeError, match="at 'w/b' is not a tree"):
        tree.leaves(Pair(torch.ones(1), {"b": alien}))  # type: ignore[dict-item]


# The client axis


def test_index_by_slice_gives_views() -> None:
    w = {"a": normal(0, 4, 2)}
    tree.index(w, slice(1, 3))["a"].fill_(7)
    assert (w["a"] == 7).all(1).tolist() == [False, True, True, False]


@pytest.mark.parametrize("rows", [[2, 0], torch.tensor([2, 0])], ids=["list", "tensor"])
def test_index_by_indices_gives_copies(rows: Any) -> None:
    w = {"a": normal(0, 4, 2)}
    before = w["a"].clone()
    chosen = tree.index(w, rows)
    assert torch.equal(chosen["a"], before[[2, 0]])
    chosen["a"].fill_(7)
    assert torch.equal(w["a"], before)


def test_index_by_int_takes_one_client() -> None:
    w = {"a": normal(0, 4, 2)}
    assert torch.equal(tree.index(w, 2)["a"], w["a"][2])


@quick
@given(nests(clients=5), st.integers(1, 4))
def test_cat_inverts_slicing(nest: Nest, cut: int) -> None:
    assert_equal(tree.cat([tree.index(nest, slice(cut)), tree.index(nest, slice(cut, None))]), nest)


def test_cat_joins_in_the_given_order() -> None:
    parts = [{"a": torch.full((rows, 1), float(rows))} for rows in (2, 1, 3)]
    assert tree.cat(parts)["a"].flatten().tolist() == [2, 2, 1, 3, 3, 3]
    assert torch.equal(tree.cat(parts[:1])["a"], parts[0]["a"])


def test_expand_shares_memory_and_clone_does_not() -> None:
    w = {"a": normal(0, 2, 3), "scalar": torch.tensor(1.5)}
    stack = tree.expand(w, 4)
    assert stack["a"].shape == (4, 2, 3)
    assert stack["scalar"].tolist() == [1.5] * 4
    assert all(stack[k].data_ptr() == w[k].data_ptr() and stack[k].stride(0) == 0 for k in w)
    own = tree.clone(stack)
    assert own["a"].is_contiguous()
    own["a"][0].fill_(7)
    assert torch.equal(own["a"][1], w["a"])
    assert torch.equal(stack["a"][0], w["a"])


def test_clone_is_contiguous_whatever_the_layout() -> None:
    """Also for a layout that `Tensor.clone` would keep, such as channels last."""
    leaf = normal(0, 2, 3, 4).transpose(1, 2)
    assert tree.clone(leaf).is_contiguous()
    assert torch.equal(tree.clone(leaf), leaf)


def test_zeros_like() -> None:
    nest = Nest({"a": normal(0, 3, 2)}, {}, Pair(normal(1, 3), {}), torch.arange(3))
    zeros = tree.zeros_like(nest)
    assert {k: (v.shape, v.dtype) for k, v in tree.items(zeros)} == {k: (v.shape, v.dtype) for k, v in tree.items(nest)}
    assert not any(leaf.any() for leaf in tree.leaves(zeros))


# Squared distance


def test_sqdist_by_hand() -> None:
    """Client 0: (1-0)² + (2-2)² + (5-3)² = 5; client 1: (3-0)² + (4-2)² + (1-3)² = 17."""
    a = {"v": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "w": torch.tensor([[[5.0]], [[1.0]]])}
    b = tree.expand({"v": torch.tensor([0.0, 2.0]), "w": torch.tensor([[3.0]])}, 2)
    assert tree.sqdist(a, b).tolist() == [5.0, 17.0]


@quick
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4), seeds)
def test_sqdist_is_the_naive_sum(shapes: list[list[int]], seed: int) -> None:
    a = {str(i): normal(seed + i, 3, *shape) for i, shape in enumerate(shapes)}
    b = {str(i): normal(seed - i - 1, 3, *shape) for i, shape in enumerate(shapes)}
    naive = [sum(((a[k][c] - b[k][c]).numpy() ** 2).sum() for k in a) for c in range(3)]
    torch.testing.assert_close(tree.sqdist(a, b), torch.tensor(naive), rtol=1e-12, atol=0)


def test_sqdist_gradient() -> None:
    """∂/∂a = 2 (a - b) = -∂/∂b, against finite differences; b may be one tree that all clients share."""
    leaves = [normal(i, *shape).requires_grad_() for i, shape in enumerate([(3, 2), (3, 2, 2), (2,), (2, 2)])]

    def distance(v: Tensor, w: Tensor, v0: Tensor, w0: Tensor) -> Tensor:
        return tree.sqdist({"v": v, "w": w}, tree.expand({"v": v0, "w": w0}, 3))

    assert torch.autograd.gradcheck(distance, leaves)


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_sqdist_gradient_of_each_side_alone(wanted: tuple[bool, bool]) -> None:
    """With cotangents g = (1, 10): 2 g (a - b) for the left side, its negative for the right."""
    a, b = normal(0, 2, 3).requires_grad_(wanted[0]), normal(1, 2, 3).requires_grad_(wanted[1])
    tree.sqdist(a, b).backward(torch.tensor([1.0, 10.0], dtype=torch.float64))  # type: ignore[no-untyped-call]
    pull = 2 * torch.tensor([[1.0], [10.0]]) * (a - b).detach()
    for leaf, sign, want in zip((a, b), (1, -1), wanted, strict=True):
        assert (leaf.grad is not None) == want
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, sign * pull)


def test_sqdist_of_one_number_per_client() -> None:
    """A leaf may be [C]: a model's scalar parameter in a stack. (1-3)² = 4 and (2-3)² = 1."""
    assert tree.sqdist(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])).tolist() == [4.0, 1.0]


def test_sqdist_second_derivative_is_right_or_refused() -> None:
    """With g = ∂‖a-b‖² = 2 (a-b) it is ∂ Σ a g = g + 2 a; forgetting that g depends on a would give g alone."""
    a, b = normal(0, 2, 3).requires_grad_(), normal(1, 2, 3)
    (g,) = torch.autograd.grad(tree.sqdist(a, b).sum(), a, create_graph=True)
    try:
        (second,) = torch.autograd.grad((a * g).sum(), a)
    except RuntimeError:
        return  # an honest refusal
    torch.testing.assert_close(second, (2 * (a - b) + 2 * a).detach())


# Weighted mean


@quick
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), seeds)
def test_average_is_the_weighted_mean(weights: list[float], seed: int) -> None:
    w = {"a": normal(seed, len(weights), 3, 2), "b": normal(seed + 1, len(weights))}
    got = tree.average(w, torch.tensor(weights))
    for k, leaf in w.items():
        expected = np.average(leaf.numpy(), axis=0, weights=torch.tensor(weights).double().numpy())
        np.testing.assert_allclose(got[k].numpy(), expected, rtol=1e-12, atol=1e-13)


def test_average_by_hand() -> None:
    """(1·10 + 3·20) / 4 = 17.5."""
    assert tree.average(torch.tensor([[10.0], [20.0]]), torch.tensor([1, 3])).tolist() == [17.5]


def test_average_accumulates_in_float64() -> None:
    """(1e8 + 1 - 1e8) / 3 = 1/3; float32 loses the 1 beside 1e8 and would give 0."""
    mean = tree.average(torch.tensor([1e8, 1.0, -1e8]), torch.ones(3))
    torch.testing.assert_close(mean, torch.tensor(1 / 3))


@quick
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.floats(1e-6, 1e6), seeds)
def test_average_does_not_depend_on_the_scale_of_weights(weights: list[float], scale: float, seed: int) -> None:
    leaf, share = normal(seed, len(weights), 3), torch.tensor(weights, dtype=torch.float64)
    torch.testing.assert_close(tree.average(leaf, scale * share), tree.average(leaf, share), rtol=1e-12, atol=1e-13)


@quick
@given(st.lists(st.tuples(st.floats(-(2.0**99), 2.0**99, width=32), st.floats(0, 1e6)), min_size=1, max_size=8))
def test_average_stays_between_the_clients(rows: list[tuple[float, float]]) -> None:
    """Coordinate by coordinate, exactly in float32: the float64 error is far below half a step of float32."""
    leaf = torch.tensor([value for value, _ in rows])
    weights = torch.tensor([weight for _, weight in rows], dtype=torch.float64)
    weights[0] += 1e-3
    mean = tree.average(leaf, weights)
    assert leaf.min() <= mean <= leaf.max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_average_keeps_the_dtype(dtype: torch.dtype) -> None:
    mean = tree.average({"a": torch.tensor([[1.0], [2.0]], dtype=dtype)}, torch.ones(2))["a"]
    assert mean.dtype == dtype
    assert mean.item() == 1.5


def test_nbytes_counts_what_a_message_carries() -> None:
    """2·3 float32 + 2 int64 + 3 bfloat16 = 24 + 16 + 6; an expanded leaf counts every client's share: 5·24."""
    leaf = torch.ones(2, 3)
    assert tree.nbytes(Pair(torch.arange(2), {"a": leaf, "b": torch.ones(3, dtype=torch.bfloat16)})) == 46
    assert tree.nbytes(tree.expand(leaf, 5)) == 120
    assert tree.nbytes({}) == 0


def test_a_leaf_that_keeps_pulls_gets_no_gradient_of_its_own() -> None:
    """2 (a - b) as a scale and a difference; the other tree's gradient stays dense."""
    a, b = torch.randn(3, 4, 2, dtype=torch.float64), torch.randn(3, 4, 2, dtype=torch.float64).requires_grad_()
    leaf = a.clone().requires_grad_()
    leaf.pulls = []  # type: ignore[attr-defined]
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    none, by_b = torch.autograd.grad((weight * tree.sqdist({"a": leaf}, {"a": b})).sum(), [leaf, b], allow_unused=True)
    assert none is None
    torch.testing.assert_close(by_b, -2 * weight.view(-1, 1, 1) * (a - b))
    ((scale, gap),) = leaf.pulls
    torch.testing.assert_close(scale, 2 * weight)
    torch.testing.assert_close(gap, (a - b).detach())
