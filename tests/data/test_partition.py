"""Partitions: the laws all keep, then IID, Dirichlet and quantity skew, then clients by column."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from data.views import column_view, parts_of
from fedprior.data.heterogeneity import label_spread, size_spread
from fedprior.data.partition import (
    PARTITIONS,
    ByLabel,
    Dirichlet,
    Iid,
    LabelsPerClient,
    Partitioner,
    Quantity,
    RandomSlicing,
    Shards,
    by_column,
)
from fedprior.data.partition.base import dirichlet_counts, filled
from fedprior.errors import FedpriorError

Indices = NDArray[np.int64]
quick = settings(deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)
BY_LABEL = [name for name, thing in PARTITIONS.items() if isinstance(thing, type) and issubclass(thing, ByLabel)]
NUMBERED = [*BY_LABEL, "superclass"]
alphas = st.sampled_from([1e-3, 1e-2, 0.1, 0.5, 10.0, 1e6])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(classes: int, each: int) -> Indices:
    return rng().permutation(np.repeat(np.arange(classes), each))


@st.composite
def unbalanced(draw: st.DrawFn, least: int = 1) -> Indices:
    """Shuffled labels 0, 3, 6, ... of one to six classes with `least` to 60 examples each."""
    sizes = draw(st.lists(st.integers(least, 60), min_size=1, max_size=6))
    return rng(draw(seeds)).permutation(np.repeat(3 * np.arange(len(sizes)), sizes))


def sizes_of(parts: list[Indices]) -> list[int]:
    return [len(part) for part in parts]


def assert_exact_cover(parts: list[Indices], n: int) -> None:
    assert np.sort(np.concatenate(parts)).tolist() == list(range(n))


@quick
@given(st.data(), st.sampled_from(["iid", "dirichlet", "capped", "quantity"]), unbalanced(), seeds, alphas)
def test_free_sizes_always_fit(data: st.DataObject, name: str, labels: Indices, seed: int, alpha: float) -> None:
    """Where sizes are free, any clients * min_size <= N works, however small alpha is."""
    clients = data.draw(st.integers(1, len(labels)))
    min_size = data.draw(st.integers(1, len(labels) // clients))
    partitioner: Partitioner = {
        "iid": Iid(clients=clients, min_size=min_size),
        "dirichlet": Dirichlet(clients=clients, min_size=min_size, alpha=alpha),
        "capped": Dirichlet(clients=clients, min_size=min_size, alpha=alpha, cap=True),
        "quantity": Quantity(clients=clients, min_size=min_size, alpha=alpha),
    }[name]
    parts = parts_of(partitioner, labels, rng(seed))
    assert len(parts) == clients
    assert_exact_cover(parts, len(labels))
    assert min(sizes_of(parts)) >= min_size


@quick
@given(st.data(), st.sampled_from(["labels", "shards", "slicing"]), unbalanced(least=10), seeds)
def test_dealt_labels_cover(data: st.DataObject, name: str, labels: Indices, seed: int) -> None:
    """At most 10 clients or blocks share a class of at least 10, so there is a partition for all of these."""
    C = len(np.unique(labels))
    clients = data.draw(st.integers(1, 10))
    partitioner: Partitioner
    if name == "labels":
        k = data.draw(st.integers(-(-C // clients), C))
        partitioner = LabelsPerClient(clients=clients, labels=k, min_size=k)
    elif name == "shards":
        s = data.draw(st.integers(1, len(labels) // clients))
        partitioner = Shards(clients=clients, shards=s, min_size=s)
    else:
        k = data.draw(st.sampled_from([k for k in range(1, C + 1) if C % k == 0]))
        partitioner = RandomSlicing(clients=clients * C // k, labels=k, min_size=k, equal=data.draw(st.booleans()))
    parts = parts_of(partitioner, labels, rng(seed))
    assert len(parts) == partitioner.clients
    assert_exact_cover(parts, len(labels))
    assert min(sizes_of(parts)) >= partitioner.min_size


@pytest.mark.parametrize("name", NUMBERED)
def test_reproducible_sorted_int64(name: str) -> None:
    """Superclasses: five labels of two classes each."""
    fine = balanced(10, 400)
    given = (fine // 2, fine) if name == "superclass" else (fine, None)
    first, again, other = (parts_of(PARTITIONS[name](), given[0], rng(seed), given[1]) for seed in (1, 1, 2))
    assert len(first) == 20
    assert [part.tolist() for part in first] == [part.tolist() for part in again]
    assert [part.tolist() for part in first] != [part.tolist() for part in other]
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in first)


@pytest.mark.parametrize("name", NUMBERED)
def test_more_clients_than_samples(name: str) -> None:
    with pytest.raises(FedpriorError, match=r"^4 examples are too few for 5 clients of at least 1: use fewer"):
        parts_of(PARTITIONS[name](clients=5, min_size=1), np.array([0, 1, 0, 1]), rng())


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"alpha": float("nan")}, {"clients": 0}, {"alhpa": 1.0}])
def test_options_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Dirichlet(**wrong)  # type: ignore[arg-type]


def test_iid_sizes_differ_by_at_most_one() -> None:
    """103 = 7 * 14 + 5: five clients of 15 and two of 14."""
    assert sorted(sizes_of(parts_of(Iid(clients=7), balanced(1, 103), rng()))) == [14, 14, 15, 15, 15, 15, 15]


@pytest.mark.parametrize("partitioner", [Iid(clients=10), Dirichlet(clients=10, alpha=1e6)])
def test_large_alpha_looks_iid(partitioner: Partitioner) -> None:
    """Dir(1e6): shares 0.1 +- 1e-4, so 40 of each label a client, give or take 1: TV <= 10 / 400 / 2.

    IID varies more: a count has sd sqrt(400 * 0.1 * 0.9) = 6, so TV is about 10 * 0.8 * 6 / 400 / 2 = 0.06.
    """
    labels = balanced(10, 400)
    parts = parts_of(partitioner, labels, rng())
    numbers = size_spread(sizes_of(parts)) | label_spread([labels[part] for part in parts], 10)
    assert numbers["tv"] <= (0.0125 if isinstance(partitioner, Dirichlet) else 0.1)
    assert numbers["size_cv"] < 0.01


def test_small_alpha_gives_each_class_to_one_client() -> None:
    """Dir(1e-3) over 5 clients: P(another has 0.5 %) = 4 * 1e-3 * ln(200) = 0.02 for each of ten classes.

    The repair moves at most 4 examples in all.
    """
    labels = balanced(10, 100)
    parts = parts_of(Dirichlet(clients=5, alpha=1e-3, min_size=1), labels, rng())
    largest = np.max([np.bincount(labels[part], minlength=10) for part in parts], axis=0)  # [classes]
    assert (largest >= 96).sum() >= 8


def test_dirichlet_moments() -> None:
    """E p = 1/M and Var p = (M - 1) / (M^2 (M alpha + 1)): for M = 4, alpha = 0.5 it is 3 / 48 = 1/16.

    Over 2000 classes the mean share of a client has sd 0.25 / sqrt(2000) = 0.0056.
    """
    labels = balanced(2000, 40)
    parts = parts_of(Dirichlet(clients=4, alpha=0.5), labels, rng())
    shares = np.stack([np.bincount(labels[part], minlength=2000) for part in parts]) / 40  # [4, 2000]
    assert shares.mean(axis=1) == pytest.approx(np.full(4, 0.25), abs=0.025)
    assert shares.var() == pytest.approx(1 / 16, rel=0.05)


@quick
@given(seeds, alphas)
def test_cap_closes_full_clients(seed: int, alpha: float) -> None:
    """A client at N / M = 50 gets no later class, so only its last class takes it past 50: at most 49 + 20.

    The repair may give or take one example.
    """
    labels = balanced(10, 20)
    parts = parts_of(Dirichlet(clients=4, alpha=alpha, cap=True, min_size=1), labels, rng(seed))
    held = np.cumsum([np.bincount(labels[part], minlength=10) for part in parts], axis=1)  # [4, 10]
    assert (np.diff(held, axis=1)[held[:, :-1] > 50] <= 1).all()
    assert held[:, -1].max() <= 69


def test_cap_sends_the_second_class_to_the_other_client() -> None:
    """alpha = 1e-9 gives class 0 whole to one of two clients, which then holds N / 2."""
    partitioner = Dirichlet(clients=2, alpha=1e-9, cap=True)
    assert all(sizes_of(parts_of(partitioner, balanced(2, 30), rng(seed))) == [30, 30] for seed in range(20))


class Fixed(np.random.Generator):
    """A generator with a known Dirichlet draw: numpy's legacy one underflows to 0 or NaN for small alpha."""

    p: NDArray[np.float64]

    def dirichlet(self, alpha: object, size: object = None) -> NDArray[np.float64]:
        return self.p


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_underflow_gives_the_class_to_a_random_client(value: float) -> None:
    owners = set()
    for seed in range(20):
        broken = Fixed(np.random.PCG64(seed))
        broken.p = np.full(3, value)
        sizes = sizes_of(parts_of(Dirichlet(clients=3, alpha=1e-3, min_size=1), balanced(1, 30), broken))
        assert sorted(sizes) == [1, 1, 28]
        owners.add(int(np.argmax(sizes)))
    assert owners == {0, 1, 2}


def test_rounding_leaks_nothing() -> None:
    """Ten times 0.1 adds up to 0.9999999999999999; the eleventh client, with p = 0, gets nothing."""
    tenths = Fixed(np.random.PCG64())
    tenths.p = np.append(np.full(10, 0.1), 0)
    assert np.cumsum(tenths.p)[-1] < 1
    assert dirichlet_counts(10, 1.0, 11, tenths).tolist() == [1] * 10 + [0]


def test_repair_takes_the_fewest_from_the_largest() -> None:
    """Sizes 60, 31, 9, 0 with min_size 10 lack 11; the 60 gives them all, since 49 is still the largest."""
    owner = np.repeat([0, 1, 2], [60, 31, 9])
    repaired = filled(owner, 4, 10, rng())
    assert np.bincount(repaired).tolist() == [49, 31, 10, 10]
    assert (repaired != owner).sum() == 11
    assert np.array_equal(filled(owner, 3, 9, rng()), owner)


def test_many_clients_terminate() -> None:
    """1000 clients with at least 10 of 10,000 examples: exactly 10 each, whatever was drawn."""
    parts = parts_of(Dirichlet(clients=1000, alpha=1e-3, min_size=10), balanced(10, 1000), rng())
    assert sizes_of(parts) == [10] * 1000
    assert_exact_cover(parts, 10_000)


def test_quantity_varies_sizes_only() -> None:
    """Dir(1) sizes have cv sqrt((M - 1) / (M + 1)) = 0.95 for M = 20; labels stay mixed, TV 0.4 / sqrt(n)."""
    labels = np.repeat([0, 1], 20_000)
    parts = parts_of(Quantity(clients=20, alpha=1.0, min_size=50), labels, rng())
    numbers = size_spread(sizes_of(parts)) | label_spread([labels[part] for part in parts], 2)
    assert 0.5 < numbers["size_cv"] < 1.5
    assert numbers["tv"] < 0.03


def test_column_names_in_natural_order() -> None:
    parts = by_column(column_view(np.array(["site10", "site2", "a", "site2", " site10 ", "site1"]))).clients
    assert list(parts) == ["a", "site1", "site2", "site10"]
    assert [part.tolist() for part in parts.values()] == [[2], [5], [1, 3], [0, 4]]
    assert list(by_column(column_view(np.array([10, 9, 10, 1]))).clients) == ["1", "9", "10"]


@pytest.mark.parametrize("hole", [None, float("nan"), "", "  "])
def test_column_with_holes(hole: object) -> None:
    with pytest.raises(FedpriorError, match=r"is empty in 2 of 4 rows \(first \[1, 3\]\): give every row"):
        by_column(column_view(np.array(["a", hole, "b", hole], dtype=object)))


def test_column_without_rows() -> None:
    with pytest.raises(FedpriorError, match="empty in 0 of 0 rows"):
        by_column(column_view(np.array([], dtype=object)))


def test_column_lists_small_clients() -> None:
    with pytest.raises(FedpriorError, match=r"^clients with fewer than 2 examples: a \(1\), c \(1\); drop"):
        by_column(column_view(np.array(["a", "b", "b", "c"])), min_size=2)
