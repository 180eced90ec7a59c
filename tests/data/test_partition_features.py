"""Slices along the inputs: exact cover, intervals, mixing, names of inputs, gaps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.views import counts
from fedprior.data import load
from fedprior.data.assignment import Limits, Shares, assign_examples
from fedprior.data.partition import Features, Indices, View
from fedprior.data.partition.features import principal
from fedprior.data.table import Table
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError
from fedprior.rng import Key

quick = settings(deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)
KEY = Key.from_seed(0)


def view(x: NDArray[Any], seed: int = 0, names: tuple[str, ...] = ()) -> View:
    return View(np.zeros(len(x), dtype=np.int64), np.random.default_rng(seed), select=lambda r: x[r], features=names)


def rows_of(partition: Features, x: NDArray[Any], seed: int = 0) -> list[Indices]:
    return list(partition(view(x, seed)).clients.values())


@quick
@given(st.integers(1, 9), st.integers(9, 60), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([None, 1]), seeds)
def test_exact_cover_in_equal_sizes(clients: int, n: int, mix: float, feature: int | None, seed: int) -> None:
    """Whatever is mixed: everyone once, sizes within one of each other, and again the same."""
    x = np.random.default_rng(seed).normal(size=(n, 3))
    partition = Features(clients=clients, mix=mix, feature=feature)
    parts = rows_of(partition, x, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [p.tolist() for p in parts] == [p.tolist() for p in rows_of(partition, x, seed)]
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("feature", [0, 2, None])
def test_unmixed_clients_have_intervals_of_their_own(feature: int | None) -> None:
    """In the order of the clients, whatever the seed."""
    x = np.random.default_rng(3).normal(size=(100, 2, 2))
    partition = Features(clients=7, feature=feature)
    z = (x - x.mean(0)).reshape(100, 4) / x.std(0).reshape(4)
    score = z @ principal(z) if feature is None else x.reshape(100, 4)[:, feature]
    parts = rows_of(partition, x)
    ends = [(score[part].min(), score[part].max()) for part in parts]
    assert all(left[1] < right[0] for left, right in itertools.pairwise(ends))
    assert [p.tolist() for p in parts] == [p.tolist() for p in rows_of(partition, x, 1)]


def test_all_mixed_looks_iid() -> None:
    """4 clients of 2,500 of the numbers 0..9999: a mean has sd 10,000 / sqrt(12 · 2,500) · sqrt(3/4) = 50.

    Half mixed, means are half-way: client 0 has (1,250 + 5,000) / 2, up to about sd 50.
    """
    x = np.random.default_rng(0).permutation(10_000)[:, None].astype(np.float64)
    whole, half = (rows_of(Features(clients=4, feature=0, mix=mix), x, 5) for mix in (1.0, 0.5))
    assert [x[part].mean() for part in whole] == pytest.approx([5000] * 4, abs=200)
    assert [x[part].mean() for part in half] == pytest.approx([3125, 4375, 5625, 6875], abs=200)
    assert [p.tolist() for p in whole] != [p.tolist() for p in rows_of(Features(clients=4, feature=0, mix=1.0), x, 6)]


def test_how_many_are_mixed() -> None:
    """Of 1,000 examples at 10 clients, 200 change places; a tenth of those comes back to where it was: 180 ± 5 σ.

    The number that stays is about Binomial(200, 0.1), sd 4.2.
    """
    x = np.arange(1000.0)[:, None]
    parts = rows_of(Features(clients=10, feature=0, mix=0.2), x, 2)
    moved = sum((part // 100 != k).sum() for k, part in enumerate(parts))
    assert 180 - 21 < moved < 180 + 21


@quick
@given(st.integers(3, 30), st.integers(1, 40), seeds)
def test_the_first_principal_direction(n: int, d: int, seed: int) -> None:
    """As the whole decomposition has it; of its two signs, the one in which the largest entry is positive."""
    z = np.random.default_rng(seed).normal(size=(n, d)) * np.arange(1, d + 1)
    _, s, v = np.linalg.svd(z, full_matrices=False)
    if len(s) > 1 and s[1] > 0.99 * s[0]:
        return
    got = principal(z)
    assert abs(got @ v[0]) == pytest.approx(1, abs=1e-6)
    assert got @ got == pytest.approx(1)
    assert got[np.abs(got).argmax()] > 0


def test_units_do_not_matter() -> None:
    x = np.random.default_rng(1).normal(size=(50, 4)) @ np.random.default_rng(2).normal(size=(4, 4))
    scaled = x * np.array([1, 1e3, 1e-3, 10]) + np.array([5, 0, 0, 1e4])
    assert [p.tolist() for p in rows_of(Features(clients=3), x)] == [
        p.tolist() for p in rows_of(Features(clients=3), scaled)
    ]


def test_gaps_and_constants() -> None:
    """A gap is a median: row 1 lies between 1 and 3. A constant input tells nothing, nor does one that is missing."""
    x = np.array([[1.0], [np.nan], [3.0], [0.0], [9.0], [2.0]])
    assert [p.tolist() for p in rows_of(Features(clients=3, feature=0), x)] == [[0, 3], [1, 5], [2, 4]]
    wide = np.hstack([x, np.full((6, 1), 7.0), np.full((6, 1), np.nan)])
    assert [p.tolist() for p in rows_of(Features(clients=3), wide)] == [[0, 3], [1, 5], [2, 4]]


def test_inputs_by_name() -> None:
    x = np.random.default_rng(1).normal(size=(20, 2))
    named = view(x, names=("age", "dose"))
    by_name, by_number = (Features(clients=2, feature=feature)(named).clients for feature in ("dose", 1))
    assert all((by_name[client] == by_number[client]).all() for client in by_number)
    with pytest.raises(FedpriorError, match="unknown feature 'dos': did you mean 'dose'"):
        Features(clients=2, feature="dos")(named)
    for feature in (2, -1):
        with pytest.raises(
            FedpriorError, match=f"^feature={feature} is not one of the 2 inputs, which are numbered from 0"
        ):
            Features(clients=2, feature=feature)(named)


def test_without_inputs_or_enough_examples() -> None:
    with pytest.raises(FedpriorError, match="the inputs are not available"):
        Features(clients=2)(View(np.zeros(5, dtype=np.int64)))
    with pytest.raises(FedpriorError, match="5 examples are too few for 2 clients of at least 3"):
        Features(clients=2, min_size=3)(View(np.zeros(5, dtype=np.int64)))


@pytest.mark.parametrize("feature", [1, None])
def test_official_tests_lie_in_the_clients_slices(feature: int | None) -> None:
    """Of 300 examples every third is for testing: in the client's own slice, or everywhere when all are mixed."""
    x = np.random.default_rng(4).normal(size=(300, 3))
    official = np.arange(300) % 3 == 0
    table = Table(x, np.arange(300) % 2, Classes.numbered(2), {}, official=official)
    z = (x - x[~official].mean(0)) / x[~official].std(0)
    where = z @ principal(z[~official]) if feature is None else x[:, feature]
    apart, mixed = (
        assign_examples(
            "mine", table, Features(clients=3, feature=feature, mix=mix), Limits(), Shares(test="official"), KEY
        )
        for mix in (0.0, 1.0)
    )
    assert apart.tests is not None
    assert mixed.tests is not None
    assert sum(map(len, apart.tests.values())) == sum(map(len, mixed.tests.values())) == 100
    ends = [where[rows] for rows in apart.rows.values()]
    low, high = ends[0].max(), ends[2].min()
    assert where[apart.tests["client-0"]].max() < ends[1].min()
    assert where[apart.tests["client-1"]].min() > low
    assert where[apart.tests["client-1"]].max() < high
    assert where[apart.tests["client-2"]].min() > ends[1].max()
    for rows in mixed.tests.values():
        assert where[rows].min() < low < high < where[rows].max()


def test_breast_cancer_split_by_features() -> None:
    """Large tumours are malignant (label 0): the last of five clients by radius has no other, the first few."""
    federation = load("breast_cancer", partition="features", clients=5, feature="mean radius", validation=0)
    shares = counts(federation)[:, 0] / counts(federation).sum(1)
    assert shares[0] < 0.1
    assert shares[-1] > 0.95
    assert len(load("breast_cancer", partition="features", clients=4, mix=0.5)) == 4
    again = load("breast_cancer", partition="features", clients=5, feature="mean radius", validation=0)
    assert again.fingerprint() == federation.fingerprint()
