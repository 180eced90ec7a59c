"""The local loop: which rows it visits, that stacks equal singles, and that padding is invisible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedprior import tree
from fedprior.data import client as client_module
from fedprior.data.client import Batch, Budget, ClientData, fold, schedule
from fedprior.rng import Key, Keys

quick = settings(deadline=None, max_examples=50)
many_sizes = st.lists(st.integers(1, 12), min_size=1, max_size=5)
RAGGED = (4, 9, 1, 7)  # not in falling order


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbered(sizes: Sequence[int]) -> ClientData:
    """x is the row's number, y its client."""
    starts = np.cumsum([0, *sizes])[:-1]
    x = torch.arange(sum(sizes), dtype=torch.float64)[:, None]
    y = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    return ClientData(x, y, tuple(int(s) for s in starts), tuple(sizes))


def keys_of(clients: int) -> Keys:
    return Keys.of(Key.from_seed(0), [f"client-{c}" for c in range(clients)])


class Seen(NamedTuple):
    times: Tensor  # [C, T] how often each row came
    steps: Tensor  # [C]


def visits(data: ClientData, budget: Budget) -> Seen:
    """Run the loop and count rows; every batch is checked on the way."""

    def step(seen: Seen, fixed: Tensor, batch: Batch, keys: Keys) -> Seen:
        real = batch.weight > 0
        torch.testing.assert_close(batch.weight.sum(1), torch.ones(len(seen.steps), dtype=torch.float64))
        assert torch.equal(batch.weight, real.double() / real.sum(1, keepdim=True))
        assert real.sum(1).max() == real.shape[1], "a batch is no wider than its largest client"
        assert batch.counts() == real.sum(1).tolist()
        assert len(keys) == len(fixed) == len(batch.y) == len(seen.steps)
        for c, name in enumerate(fixed.tolist()):
            assert (batch.y[c][real[c]] == name).all(), "a client got another's rows"
        seen.times.scatter_add_(1, batch.x[..., 0].long(), real.long())
        return Seen(seen.times, seen.steps + 1)

    start = Seen(torch.zeros(len(data), len(data.y), dtype=torch.int64), torch.zeros(len(data), dtype=torch.int64))
    return fold(step, start, torch.arange(len(data)), data, keys_of(len(data)), budget)


def mine(data: ClientData, c: int) -> slice:
    return slice(data.start[c], data.start[c] + data.size[c])


# Which rows


@quick
@given(many_sizes, st.integers(1, 6), st.integers(0, 3))
def test_an_epoch_uses_every_example_once(sizes: list[int], batch_size: int, epochs: int) -> None:
    """E epochs of n examples: each of a client's rows E times, no other row ever, E ⌈n/B⌉ steps."""
    data = numbered(sizes)
    seen = visits(data, Budget(batch_size, epochs))
    for c, n in enumerate(sizes):
        assert seen.times[c, mine(data, c)].tolist() == [epochs] * n
        assert seen.times[c].sum() == epochs * n
        assert seen.steps[c] == epochs * math.ceil(n / batch_size)


@quick
@given(many_sizes, st.integers(1, 6), st.integers(0, 9))
def test_a_budget_of_steps_is_exact_and_continues_across_epochs(sizes: list[int], batch_size: int, steps: int) -> None:
    """S steps are ⌊S/e⌋ whole epochs of e batches and a part of the next: visits differ by at most one."""
    data = numbered(sizes)
    seen = visits(data, Budget(batch_size, steps=steps))
    assert seen.steps.tolist() == [steps] * len(sizes)
    for c, n in enumerate(sizes):
        whole, more = divmod(steps, math.ceil(n / batch_size))
        times = seen.times[c, mine(data, c)]
        assert set(times.tolist()) <= {whole, whole + 1}
        assert times.sum() == whole * n + more * batch_size  # the short batch comes last, so it is not among `more`


def test_a_dropped_short_batch_is_another_one_every_epoch() -> None:
    """Seven examples in batches of three: two batches an epoch, and one example, not always the same, is left out.

    A client with fewer examples than a batch keeps the only one it has.
    """
    plan = schedule(numbered([7, 2]), keys_of(2), Budget(3, epochs=20, drop=True))
    assert plan.counts[:, 0].tolist() == [3] * 40
    assert plan.counts[:, 1].tolist() == [2] * 20 + [0] * 20
    epochs = plan.rows[:, 0].reshape(20, 6)
    assert all(len(set(epoch)) == 6 for epoch in epochs.tolist())
    assert len({frozenset(range(7)) - frozenset(epoch) for epoch in epochs.tolist()}) > 1


def test_the_last_short_batch_is_kept() -> None:
    """7 examples in threes: 3 + 3 + 1."""
    plan = schedule(numbered([7]), keys_of(1), Budget(3, epochs=2))
    assert plan.counts[:, 0].tolist() == [3, 3, 1, 3, 3, 1]


def test_a_batch_below_the_smallest_is_skipped() -> None:
    """7 in threes with smallest = 2 is 3 + 3; 8 is 3 + 3 + 2; a client with 1 example takes no step at all."""
    data = numbered([7, 8, 1])
    plan = schedule(data[:2], keys_of(2), Budget(3, epochs=1, smallest=2))
    assert plan.counts.T.tolist() == [[3, 3, 0], [3, 3, 2]]
    for budget in (Budget(3, epochs=2, smallest=2), Budget(3, steps=5, smallest=2)):
        seen = visits(data, budget)
        assert seen.times[0].sum() == 6 * (2 if budget.epochs else 2.5)
        assert seen.steps[2] == 0
        assert seen.times[2].sum() == 0


@pytest.mark.parametrize(
    ("n", "budget", "steps"),
    [
        (10, Budget(5, epochs=2), 4),
        (11, Budget(5, epochs=2), 6),
        (11, Budget(5, epochs=2, smallest=2), 4),
        (12, Budget(5, epochs=2, smallest=2), 6),
        (11, Budget(5, epochs=2, drop=True), 4),
        (10, Budget(5, epochs=2, drop=True), 4),
        (3, Budget(5, epochs=2, drop=True), 2),
        (1, Budget(5, epochs=2, smallest=2, drop=True), 0),
        (3, Budget(5, epochs=4), 4),
        (1, Budget(5, epochs=4, smallest=2), 0),
        (0, Budget(5, epochs=4), 0),
        (11, Budget(5, steps=7), 7),
        (1, Budget(5, steps=7, smallest=2), 0),
        (0, Budget(5, steps=7), 0),
        (9, Budget(5, epochs=0), 0),
    ],
)
def test_budget_length(n: int, budget: Budget, steps: int) -> None:
    assert budget.length(n) == steps


def test_every_epoch_and_client_is_shuffled_anew() -> None:
    """40 rows in one batch: three epochs and two clients give six different orders, none the stored one."""
    data = numbered([40, 40])
    rows = schedule(data, keys_of(2), Budget(40, epochs=3)).rows - np.asarray(data.start)[:, None]
    orders = {tuple(order) for order in rows.reshape(-1, 40).tolist()} | {tuple(range(40))}
    assert len(orders) == 7
    assert all(sorted(order) == list(range(40)) for order in orders)


def test_the_shuffle_depends_on_the_key_alone() -> None:
    data, budget = numbered([9]), Budget(4, epochs=2)
    a, b = (schedule(data, keys_of(1).fold(purpose), budget).rows for purpose in ("a", "a"))
    c = schedule(data, keys_of(1).fold("c"), budget).rows
    assert (a == b).all()
    assert (a != c).any()


def test_clients_without_examples_or_steps_come_back_unchanged() -> None:
    """An empty client may start past the end of the flat tensor."""
    data = ClientData(torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, dtype=torch.int64), (3, 0, 3), (0, 3, 0))

    def step(carry: Tensor, fixed: Any, batch: Batch, keys: Keys) -> Tensor:
        return carry + 1

    done = fold(step, torch.arange(3), {}, data, keys_of(3), Budget(2, epochs=2))
    assert done.tolist() == [0, 1 + 4, 2]
    assert fold(step, torch.arange(3), {}, data, keys_of(3), Budget(2, epochs=0)).tolist() == [0, 1, 2]


# Stacks


class Walk(NamedTuple):
    w: dict[str, Tensor]  # [C, 3]
    loss: Tensor  # [C]


def noisy_step(carry: Walk, fixed: dict[str, Tensor], batch: Batch, keys: Keys) -> Walk:
    """Linear regression with a prior and Langevin noise, written into the carry: uses all that a step is given."""
    error = torch.einsum("cbd,cd->cb", batch.x, carry.w["w"]) - batch.y
    gradient = torch.einsum("cb,cb,cbd->cd", batch.weight, error, batch.x) + carry.w["w"] - fixed["prior"]
    carry.w["w"].sub_(0.1 * gradient + 0.01 * keys.fold("noise").normal(3, dtype=torch.float64))
    return Walk(carry.w, carry.loss + (batch.weight * error**2).sum(1))


def regression(sizes: Sequence[int]) -> ClientData:
    numbers = numbered(sizes)
    return ClientData(normal(0, len(numbers.y), 3), numbers.y, numbers.start, numbers.size)


def start_of(clients: int) -> tuple[Walk, dict[str, Tensor]]:
    return Walk({"w": normal(1, clients, 3)}, torch.zeros(clients, dtype=torch.float64)), {
        "prior": normal(2, clients, 3)
    }


def walk(data: ClientData, budget: Budget, rows: Sequence[int] | slice = slice(None)) -> Walk:
    """The clients `rows` of a federation as one stack."""
    rows = list(range(len(data)))[rows] if isinstance(rows, slice) else list(rows)
    carry, fixed = start_of(len(data))
    return fold(
        noisy_step, tree.index(carry, rows), tree.index(fixed, rows), data[rows], keys_of(len(data))[rows], budget
    )


def assert_close(a: Walk, b: Walk) -> None:
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@quick
@given(
    many_sizes,
    st.integers(1, 6),
    st.sampled_from([Budget(0, epochs=2), Budget(0, steps=5), Budget(0, epochs=3, smallest=2)]),
)
def test_a_stack_equals_its_clients_alone(sizes: list[int], batch_size: int, length: Budget) -> None:
    data, budget = regression(sizes), length._replace(batch_size=batch_size)
    stack = walk(data, budget)
    for c in range(len(sizes)):
        assert_close(tree.index(stack, slice(c, c + 1)), walk(data, budget, [c]))


@quick
@given(st.permutations(range(4)), st.integers(1, 4))
def test_order_and_company_do_not_matter(order: list[int], size: int) -> None:
    """Any stack of some of the clients in any order gives each the same result."""
    data, budget, rows = regression(RAGGED), Budget(3, epochs=2), order[:size]
    assert_close(walk(data, budget, rows), tree.index(walk(data, budget), rows))


def test_one_after_another_is_the_same_walk() -> None:
    """`together=False`: every step sees one client, and the stack comes back as it does otherwise."""
    data = regression([7, 3, 0, 5])
    budget = Budget(2, epochs=2)
    assert_close(walk(data, budget._replace(together=False)), walk(data, budget))


def test_the_step_is_alive() -> None:
    """Guards the tests above: prior, noise and data all reach the result."""
    data, budget = regression(RAGGED), Budget(3, epochs=2)
    carry, fixed = start_of(4)
    usual = walk(data, budget)
    changed = [
        fold(noisy_step, carry, {"prior": fixed["prior"] + 1}, data, keys_of(4), budget),
        fold(noisy_step, carry, fixed, data, keys_of(4).fold("other"), budget),
        walk(ClientData(data.x + 1, data.y, data.start, data.size), budget),
    ]
    assert not any(torch.allclose(other.w["w"], usual.w["w"]) for other in changed)


@pytest.mark.parametrize("sizes", [RAGGED, tuple(sorted(RAGGED, reverse=True))], ids=["unsorted", "sorted"])
@pytest.mark.parametrize("budget", [Budget(3, epochs=2), Budget(3, epochs=0)], ids=["steps", "none"])
def test_inputs_are_never_written_to(sizes: tuple[int, ...], budget: Budget) -> None:
    """Though the step writes into its carry; nor does the result share memory with the input."""
    data, (carry, fixed) = regression(sizes), start_of(4)
    before = tree.clone({"carry": carry.w["w"], "loss": carry.loss, "prior": fixed["prior"], "x": data.x})
    done = fold(noisy_step, carry, fixed, data, keys_of(4), budget)
    done.w["w"].fill_(7)
    after = {"carry": carry.w["w"], "loss": carry.loss, "prior": fixed["prior"], "x": data.x}
    assert all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("rows", [[0, 3], [1], [3, 2, 1]], ids=str)
def test_rows_of_other_clients_are_never_touched(rows: list[int]) -> None:
    """Poison: with NaN in every row of the others, the same finite result."""
    data, budget = regression(RAGGED), Budget(3, epochs=2)
    poisoned = data.x.clone()
    for c in set(range(4)) - set(rows):
        poisoned[mine(data, c)] = torch.nan
    got = walk(ClientData(poisoned, data.y, data.start, data.size), budget, rows)
    assert got.w["w"].isfinite().all()
    assert_close(got, walk(data, budget, rows))


@pytest.mark.parametrize("steps_at_a_time", [0, 1, 2, 5])
@pytest.mark.parametrize("sizes", [RAGGED, (9, 7, 4, 1), (6, 6)], ids=str)
def test_gathering_in_blocks_changes_nothing(
    steps_at_a_time: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, wherever a block ends: a step of 4 clients gathers 4 · 3 rows of 3 float64."""
    data, budget = regression(sizes), Budget(3, epochs=3)
    whole = walk(data, budget)
    monkeypatch.setattr(client_module, "GATHER_BYTES", steps_at_a_time * len(sizes) * 3 * 3 * 8)
    for a, b in zip(tree.leaves(walk(data, budget)), tree.leaves(whole), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("sizes", [RAGGED, (9, 7, 4, 1)], ids=["unsorted", "sorted"])
def test_a_shared_fixed_tree_is_not_copied(sizes: tuple[int, ...]) -> None:
    prior = normal(2, 3)
    seen: list[tuple[int, int]] = []

    def step(carry: Walk, fixed: dict[str, Tensor], batch: Batch, keys: Keys) -> Walk:
        seen.append((fixed["prior"].data_ptr(), fixed["prior"].stride(0)))
        return noisy_step(carry, fixed, batch, keys)

    data, (carry, _) = regression(sizes), start_of(4)
    done = fold(step, carry, tree.expand({"prior": prior}, 4), data, keys_of(4), Budget(3, epochs=2))
    assert set(seen) == {(prior.data_ptr(), 0)}
    own = fold(noisy_step, carry, {"prior": prior.repeat(4, 1)}, data, keys_of(4), Budget(3, epochs=2))
    assert_close(done, own)


@pytest.mark.parametrize("sizes", [RAGGED, (9, 7, 4, 1)], ids=["unsorted", "sorted"])
def test_a_step_gets_a_contiguous_carry(sizes: tuple[int, ...]) -> None:
    """Whatever layout the carry comes in, such as the channels-last weights of a user's network."""

    def step(carry: Tensor, fixed: Any, batch: Batch, keys: Keys) -> Tensor:
        assert carry.is_contiguous()
        return carry

    fold(step, normal(0, 4, 3, 5).transpose(1, 2), {}, regression(sizes), keys_of(4), Budget(3, epochs=1))


def test_every_step_has_its_own_keys() -> None:
    """Those of the clients that still train, folded with the number of the step."""
    seen: list[list[Key]] = []

    def step(carry: Tensor, fixed: Any, batch: Batch, keys: Keys) -> Tensor:
        seen.append(list(keys))
        return carry

    fold(step, torch.zeros(2), {}, regression([2, 4]), keys_of(2), Budget(2, epochs=1))
    small, large = keys_of(2)
    assert seen == [[large.fold("step", 0), small.fold("step", 0)], [large.fold("step", 1)]]


def test_an_error_in_a_step_is_not_swallowed() -> None:
    def step(carry: Tensor, fixed: Any, batch: Batch, keys: Keys) -> Tensor:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fold(step, torch.zeros(4), {}, regression(RAGGED), keys_of(4), Budget(3, epochs=1))


def test_weights_have_the_precision_of_the_data() -> None:
    for dtype, expected in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.int64, torch.float32),
    ):
        data = ClientData(torch.zeros(3, 2, dtype=dtype), torch.zeros(3, dtype=torch.int64), (0,), (3,))
        assert next(data.batches(2)).weight.dtype == expected


# ClientData


def test_rows_of_client_data() -> None:
    data = numbered([2, 3, 1])
    assert data[1:].size == (3, 1)
    assert data[[2, 0]].start == (5, 0)
    assert data[[2, 0]].size == (1, 2)
    assert data[1:].x is data.x
    assert len(data[[2, 0]]) == 2
    assert data.n.tolist() == [2, 3, 1]
    assert data.n.dtype == torch.float64


def test_one_clients_examples_are_views() -> None:
    data = numbered([2, 3, 1])
    x, y = data.client(1)
    assert x.flatten().tolist() == [2, 3, 4]
    assert y.tolist() == [1, 1, 1]
    x.fill_(9)
    assert data.x.flatten().tolist() == [0, 1, 9, 9, 9, 5]


def test_a_single_client_is_a_stack_of_one() -> None:
    data = ClientData.single(torch.arange(4.0), torch.zeros(4, dtype=torch.int64))
    assert len(data) == 1
    assert data.client(0)[0].tolist() == [0, 1, 2, 3]


@quick
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_batches_cover_everything_in_order(sizes: list[int], size: int, random: Any) -> None:
    data = numbered(sizes)
    data = data[random.sample(range(len(sizes)), len(sizes))]
    seen: list[list[float]] = [[] for _ in data.size]
    for batch in data.batches(size):
        assert batch.y.shape[1] <= size
        counts = batch.counts()
        for c, m in enumerate(counts):
            seen[c] += batch.x[c, :m, 0].tolist()
            torch.testing.assert_close(batch.weight[c].sum().item(), float(m > 0))
            assert (batch.weight[c, m:] == 0).all()
    assert seen == [data.client(c)[0].flatten().tolist() for c in range(len(data))]


def test_batches_never_touch_rows_of_other_clients() -> None:
    """Poison: the first row belongs to nobody in the stack; a NaN there would reach sums through 0 · NaN."""
    data = regression(RAGGED)
    data.x[mine(data, 0)] = torch.nan
    for batch in data[1:].batches(4):
        assert batch.x.isfinite().all()
