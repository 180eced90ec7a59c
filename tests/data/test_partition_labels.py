"""Partitions that deal out labels: labels per client, shards, random slicing, major and minor classes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.views import parts_of
from fedprior.data.partition import LabelsPerClient, MajorMinor, Partitioner, RandomSlicing, Shards
from fedprior.errors import FedpriorError

Indices = NDArray[np.int64]
quick = settings(deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)


def table(labels: Indices, partitioner: Partitioner, seed: int = 0) -> Indices:
    """Examples of each class at each client, [clients, classes]."""
    parts = parts_of(partitioner, labels, np.random.default_rng(seed))
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def balanced(classes: int, each: int) -> Indices:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


@quick
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), seeds)
def test_labels_per_client(clients: int, k: int, classes: int, seed: int) -> None:
    """Exactly k labels a client; owners of two labels differ by at most one, and so do shares of a label."""
    labels, partitioner = balanced(classes, 30), LabelsPerClient(clients=clients, labels=k)
    if k > classes or clients * k < classes:
        with pytest.raises(FedpriorError, match=f"cannot share {classes} labels"):
            table(labels, partitioner, seed)
        return
    counts = table(labels, partitioner, seed)
    assert ((counts > 0).sum(axis=1) == k).all()
    assert np.ptp((counts > 0).sum(axis=0)) <= 1
    assert (counts.sum(axis=0) == 30).all()
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)


@pytest.mark.parametrize(
    ("clients", "k", "min_size", "sentence"),
    [
        (3, 11, 1, "3 clients with labels=11 cannot share 10 labels: use from 4 to 10 labels per client."),
        (3, 3, 1, "3 clients with labels=3 cannot share 10 labels: use from 4 to 10 labels per client."),
        (8, 10, 1, "label 0 has 5 examples for 8 clients: use fewer clients or fewer labels per client."),
        (4, 3, 12, "a client gets 9 examples, fewer than min_size=12: use fewer clients or a smaller"),
    ],
)
def test_labels_per_client_errors(clients: int, k: int, min_size: int, sentence: str) -> None:
    """10 labels of 5. Dealt 4 hands of 3, the last client shares two labels with the first: 5 + 2 + 2 = 9."""
    with pytest.raises(FedpriorError, match=f"^{re.escape(sentence)}"):
        table(balanced(10, 5), LabelsPerClient(clients=clients, labels=k, min_size=min_size))


def test_shards_hold_few_labels() -> None:
    """200 shards of 30 from 10 classes of 600: no shard crosses a class, so a client has 1 or 2 labels."""
    counts = table(balanced(10, 600), Shards(clients=100, shards=2))
    assert (counts.sum(axis=1) == 60).all()
    assert (counts % 30 == 0).all()
    assert set((counts > 0).sum(axis=1)) == {1, 2}


def test_shards_uneven() -> None:
    """11 examples in 4 shards: sizes 3, 3, 3, 2, so two clients with two shards have 6 and 5."""
    assert sorted(table(balanced(1, 11), Shards(clients=2)).sum(axis=1)) == [5, 6]
    with pytest.raises(
        FedpriorError, match=r"^11 examples cannot be split into 20 shards: use fewer clients or shards"
    ):
        table(balanced(1, 11), Shards(clients=2, shards=10))


@quick
@given(st.sampled_from([(10, 5), (10, 2), (6, 6), (12, 3), (4, 1)]), st.integers(1, 8), seeds, st.booleans())
def test_slicing_invariants(shape: tuple[int, int], groups: int, seed: int, equal: bool) -> None:
    """Each client has L labels, equally many of each; a group has one size and deals out every class once."""
    classes, k = shape
    partitioner = RandomSlicing(clients=groups * classes // k, labels=k, equal=equal)
    counts = table(balanced(classes, 30), partitioner, seed)
    assert (counts.sum(axis=0) == 30).all()
    for group in counts.reshape(groups, classes // k, classes):
        assert ((group > 0).sum(axis=1) == k).all()
        assert ((group > 0).sum(axis=0) == 1).all()
        assert len(set(group[group > 0])) == 1
    assert not equal or np.ptp(counts.max(axis=1)) <= 1


def test_slicing_deals_new_hands_to_each_group() -> None:
    """C(10, 5) / 2 = 126 ways to split ten classes in two hands: 20 groups do not all have the same one."""
    first_hands = table(balanced(10, 30), RandomSlicing(clients=40))[::2] > 0
    assert len(np.unique(first_hands, axis=0)) > 10


def test_slicing_is_the_published_procedure() -> None:
    """A fresh shuffle for each pair; one set of cut points; a client pops the last blocks of its labels."""
    labels = balanced(10, 30)
    deal, cut = np.random.default_rng(5).spawn(2)
    shuffles = [deal.permutation(10) for _ in range(4)]
    hands = [hand for shuffle in shuffles for hand in (shuffle[:5], shuffle[5:])]
    classes = [cut.permutation(np.flatnonzero(labels == c)) for c in range(10)]
    points = np.sort(1 + cut.choice(29, 3, replace=False))
    blocks = [np.split(indices, points) for indices in classes]
    expected = [sorted(np.concatenate([blocks[c].pop() for c in hand])) for hand in hands]
    parts = parts_of(RandomSlicing(clients=8), labels, np.random.default_rng(5))
    assert [part.tolist() for part in parts] == expected


def test_slicing_law_of_sizes() -> None:
    """Four points without repeats among 1..99 cut 100 examples into five blocks, each of mean 20.

    P(a block has one example) = 4 / 99 = 0.04; over 2000 draws sd sqrt(0.04 * 0.96 / 2000) = 0.0044.
    A block has sd 16 or so, its mean over 2000 draws 0.36.
    """
    labels, partitioner = balanced(2, 100), RandomSlicing(clients=5, labels=2)
    blocks = np.array([table(labels, partitioner, seed)[:, 0] for seed in range(2000)])  # [2000, 5]
    assert blocks.mean(axis=0) == pytest.approx(np.full(5, 20), abs=1.8)
    assert (blocks == 1).mean(axis=0) == pytest.approx(np.full(5, 4 / 99), abs=0.02)


@quick
@given(st.lists(st.integers(12, 40), min_size=6, max_size=6), seeds)
def test_slicing_unequal_classes(sizes: list[int], seed: int) -> None:
    """Every class is cut at the same fractions as the smallest one, to within half an example."""
    labels = np.repeat(np.arange(6), sizes)
    counts = table(labels, RandomSlicing(clients=24, labels=3), seed)
    assert ((counts > 0).sum(axis=1) == 3).all()
    assert counts.sum(axis=0).tolist() == sizes
    ends = np.cumsum(counts.reshape(12, 2, 6).sum(axis=1)[::-1], axis=0)  # [groups, classes]; last block first
    smallest = int(np.argmin(sizes))
    assert (np.abs(ends - ends[:, [smallest]] * np.array(sizes) / sizes[smallest]) <= 0.5 + 1e-9).all()


@pytest.mark.parametrize(
    ("clients", "k", "min_size", "sentence"),
    [
        (20, 3, 1, "20 clients with labels=3 cannot form groups that hold 10 classes each: 10 must be a"),
        (12, 2, 1, "12 clients with labels=2 cannot form groups that hold 10 classes each: 10 must be a"),
        (15, 4, 1, "15 clients with labels=4 cannot form groups that hold 10 classes each: 10 must be a"),
        (24, 5, 1, "11 examples of a class cannot be split into 12 blocks: use fewer clients."),
        (16, 5, 6, "a client gets 5 examples, fewer than min_size=6: use fewer clients or a smaller"),
    ],
)
def test_slicing_errors(clients: int, k: int, min_size: int, sentence: str) -> None:
    """10 classes of 11 cut into 8 blocks: some block has one example, so some client has one of each, 5."""
    partitioner = RandomSlicing(clients=clients, labels=k, min_size=min_size)
    with pytest.raises(FedpriorError, match=f"^{re.escape(sentence)}"):
        table(balanced(10, 11), partitioner)


def test_major_uses_every_example_once() -> None:
    """20 clients of m = 300: a class is major for 4 (0.4 m each) and minor for all (0.02 m): 2 m = 600."""
    labels = balanced(10, 600)
    parts = parts_of(MajorMinor(), labels, np.random.default_rng(0))
    assert np.sort(np.concatenate(parts)).tolist() == list(range(6000))
    for client, row in enumerate(table(labels, MajorMinor())):
        majors = [2 * client % 10, (2 * client + 1) % 10]
        assert row[majors].tolist() == [126, 126]  # 42 % of 300
        assert np.delete(row, majors).tolist() == [6] * 8  # 2 %


def test_major_remainders() -> None:
    """m = 57: 11 uniform, 1 a class and 1 more for the last; 46 major, 15 each and 1 more for the last."""
    counts = table(balanced(10, 200), MajorMinor(clients=2, major=3, samples=57))
    assert counts.tolist() == [[16, 16, 17, 1, 1, 1, 1, 1, 1, 2], [1, 1, 1, 16, 16, 17, 1, 1, 1, 2]]


@quick
@given(st.integers(5, 40), st.integers(1, 4), st.floats(0, 1), seeds)
def test_major_never_repeats_when_nothing_wraps(clients: int, major: int, share: float, seed: int) -> None:
    """All clients together need at most 200 examples, which is what each class has."""
    partitioner = MajorMinor(clients=clients, major=major, uniform_share=share, samples=200 // clients)
    parts = parts_of(partitioner, balanced(10, 200), np.random.default_rng(seed))
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together) == clients * (200 // clients)


def test_major_wraps_across_clients_only() -> None:
    """20 clients of m = 100 need 2 m = 200 of each class of 60: 3 rounds and 20 examples more."""
    parts = parts_of(MajorMinor(samples=100), balanced(10, 60), np.random.default_rng(0))
    assert all(len(part) == len(np.unique(part)) == 100 for part in parts)
    assert np.bincount(np.bincount(np.concatenate(parts), minlength=600)).tolist() == [0, 0, 0, 400, 200]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"major": 11}, "major=11 is more than the 10 classes: use a smaller number."),
        (
            {"clients": 2},
            "a client needs 126 examples of class 0, which has 60: use more clients, fewer",
        ),
        (
            {"samples": 2, "min_size": 3},
            "a client gets 2 examples, fewer than min_size=3: use fewer clients or a smaller",
        ),
    ],
)
def test_major_errors(options: dict[str, Any], sentence: str) -> None:
    """10 classes of 60. Two clients of 300: 60 uniform, 6 a class, and 120 of each major class."""
    with pytest.raises(FedpriorError, match=f"^{re.escape(sentence)}"):
        table(balanced(10, 60), MajorMinor(**options))
