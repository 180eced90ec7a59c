"""Partitions of single papers: superclasses, log-normal sizes, own mixes, redrawn shares, users, domains."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.views import column_view, parts_of
from fedprior.data.partition import Dirichlet, LogNormal, Mixture, Superclass, by_column, domains, merged
from fedprior.errors import FedpriorError

Indices = NDArray[np.int64]
quick = settings(deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(classes: int, each: int) -> Indices:
    return rng().permutation(np.repeat(np.arange(classes), each))


def disjoint(parts: list[Indices]) -> Indices:
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    return together


# Superclasses: labels are fine % 4, so that classes k, k + 4, k + 8, ... are within label k


@quick
@given(st.sampled_from([(5, 1), (5, 5), (6, 2), (4, 2), (3, 1)]), st.integers(1, 5), seeds, st.booleans())
def test_superclass_invariants(shape: tuple[int, int], groups: int, seed: int, equal: bool) -> None:
    """S classes in each of 4 superclasses, s of them at a client: groups of S / s clients deal out every class once."""
    S, s = shape
    fine = balanced(4 * S, 20)
    clients = groups * S // s
    parts = parts_of(Superclass(clients=clients, subclasses=s, equal=equal), fine % 4, rng(seed), fine)
    assert sorted(disjoint(parts).tolist()) == list(range(len(fine)))
    table = np.stack([np.bincount(fine[part], minlength=4 * S) for part in parts])  # [clients, classes]
    held = table > 0
    assert (held.reshape(clients, S, 4).sum(1) == s).all()  # s classes of every superclass
    for group in held.reshape(groups, S // s, 4 * S):
        assert (group.sum(0) == 1).all()
    for row in table:
        assert len(set(row[row > 0])) == 1  # equally many of each
    assert all(len(set(sizes)) == 1 for sizes in table.sum(1).reshape(groups, S // s))


def test_superclass_exact_procedure() -> None:
    """Every superclass's list is shuffled for every group; client k gets the k-th of each and pops its last block."""
    fine = balanced(6, 12)
    deal, cut = rng(5).spawn(2)
    lists = [[0, 2, 4], [1, 3, 5]]  # labels are fine % 2
    hands = []
    for _ in range(4):
        shuffled = [deal.permutation(names) for names in lists]
        hands += [[names[k] for names in shuffled] for k in range(3)]
    classes = [cut.permutation(np.flatnonzero(fine == c)) for c in range(6)]
    points = np.sort(1 + cut.choice(11, 3, replace=False))
    blocks = [np.split(indices, points) for indices in classes]
    expected = [sorted(np.concatenate([blocks[c].pop() for c in hand])) for hand in hands]
    parts = parts_of(Superclass(clients=12), fine % 2, rng(5), fine)
    assert [part.tolist() for part in parts] == expected


@pytest.mark.parametrize(
    ("options", "fine", "sentence"),
    [
        ({"clients": 5}, None, "the data has no superclasses: partition 'superclass' is for cifar100 and sun397."),
        ({"clients": 4}, balanced(12, 5), "4 clients with subclasses=1 cannot divide the 3 classes of a superclass"),
        ({"clients": 6, "subclasses": 2}, balanced(12, 5), "6 clients with subclasses=2 cannot divide the 3"),
        ({"clients": 18}, balanced(12, 5), "5 examples of a class cannot be split into 6 blocks: use fewer clients."),
        ({"clients": 3}, balanced(11, 5), "superclasses must have equally many classes"),
    ],
)
def test_superclass_errors(options: dict[str, Any], fine: Indices | None, sentence: str) -> None:
    labels = balanced(4, 15) if fine is None else fine % 4
    with pytest.raises(FedpriorError, match=f"^{re.escape(sentence)}"):
        parts_of(Superclass(**options), labels, rng(), fine)


# Log-normal sizes


class Legacy(np.random.Generator):
    """The authors' two generators: NumPy's old one for the law, Python's for the rest."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.PCG64(0))
        self.old, self.plain = np.random.RandomState(seed), random.Random(seed)

    def lognormal(self, *args: Any) -> Any:
        return self.old.lognormal(*args)

    def integers(self, low: Any, high: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return self.plain.randint(low, high)


MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)


def test_lognormal_replays_the_authors_mnist() -> None:
    """Their script with their seeds, replayed independently: 59,229 examples at 100 clients of 74 to 4,017, median 435;
    three quarters of each client, rounded down, are 44,383."""
    parts = parts_of(LogNormal(clients=100), np.repeat(np.arange(10), MNIST), Legacy(1))
    sizes = np.array([len(part) for part in parts])
    assert (sizes.sum(), sizes.min(), np.median(sizes), sizes.max()) == (59229, 74, 435, 4017)
    assert sum(int(0.75 * n) for n in sizes) == 44383
    disjoint(parts)


def test_lognormal_replays_the_authors_cifar() -> None:
    """54,572 examples at 20 clients of 1,150 to 4,536."""
    parts = parts_of(LogNormal(clients=20, style="cifar"), np.repeat(np.arange(10), 6000), Legacy(1))
    sizes = [len(part) for part in parts]
    assert (sum(sizes), min(sizes), max(sizes)) == (54572, 1150, 4536)


def test_the_authors_wrong_labels() -> None:
    """Of 3,000 first examples, those where label u + j mod 10 is not j are wrong. For j the label is right at every
    tenth client: 3 · 10 of 300 triples of 10 examples: 3,000 - 300 = 2,700 are wrong."""
    labels = np.repeat(np.arange(10), MNIST)
    plain, wrong = LogNormal(clients=100), LogNormal(clients=100, mislabel=True)
    parts = parts_of(plain, labels, Legacy(1))
    assert all((a == labels[b]).all() for a, b in zip(plain.relabelled(labels, parts), parts, strict=True))
    found = wrong.relabelled(labels, parts)
    assert sum((a != labels[b]).sum() for a, b in zip(found, parts, strict=True)) == 2700
    assert found[7][:30].max() <= 9
    assert np.bincount(found[7], minlength=10)[:3].tolist() == [10, 10, 10]  # classes 7, 8, 9, ten each as 0, 1, 2


@quick
@given(st.integers(1, 30), st.integers(1, 5), st.lists(st.integers(300, 2000), min_size=5, max_size=8), seeds)
def test_lognormal_invariants(clients: int, k: int, counts: list[int], seed: int) -> None:
    """Labels u, u + 1, ... mod C, at least ten of each, nobody's twice, classes consumed from their start."""
    labels = rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    parts = parts_of(LogNormal(clients=clients, labels=k, style=("mnist", "cifar")[seed % 2]), labels, rng(seed))
    used = disjoint(parts)
    for u, part in enumerate(parts):
        own = np.bincount(labels[part], minlength=len(counts))
        assert set(np.flatnonzero(own)) == {(u + j) % len(counts) for j in range(k)}
        assert own[own > 0].min() >= 10
    for c in range(len(counts)):
        mine = np.sort(used[labels[used] == c])
        assert mine.tolist() == np.flatnonzero(labels == c)[: len(mine)].tolist()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"clients": 20},
            "class 0 has 59 examples, but its clients need 60, 10 each: use fewer clients or fewer labels",
        ),
        ({"labels": 11}, "labels=11 is more than the 10 classes: use a smaller number."),
    ],
)
def test_lognormal_errors(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpriorError, match=f"^{re.escape(sentence)}"):
        parts_of(LogNormal(**options), balanced(10, 59), rng())


# A mix of its own for every client


@quick
@given(st.integers(1, 12), st.sampled_from([1e-3, 0.1, 1.0, 1e3]), st.lists(st.integers(1, 60), min_size=1), seeds)
def test_mixture_invariants(clients: int, alpha: float, counts: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    if len(labels) < clients:
        return
    parts = parts_of(Mixture(clients=clients, alpha=alpha), labels, rng(seed))
    disjoint(parts)
    assert {len(part) for part in parts} == {len(labels) // clients}


def test_mixture_law() -> None:
    """q ~ Dir(alpha / C) for C equal classes: Var q = (C - 1) / (C^2 (alpha + 1)); C = 4, alpha = 2: 3 / 48 = 1/16.

    A share of 100 draws has variance Var q + E q (1 - q) / 100 = 1/16 + (1/4 - 1/16 - 1/16) / 100 = 0.06375. Only the
    first 100 clients are looked at, for whom no class runs out: 400 clients' worth of each class is there.
    """
    labels = balanced(4, 40000)
    parts = parts_of(Mixture(clients=100, alpha=2.0, samples=100), labels, rng(1))
    shares = np.stack([np.bincount(labels[part], minlength=4) for part in parts]) / 100
    assert shares.mean(0) == pytest.approx(np.full(4, 0.25), abs=0.08)
    assert shares.var() == pytest.approx(0.06375, rel=0.15)


def test_mixture_takes_what_is_left() -> None:
    """alpha = 1e-3: one label a client. Two clients of 30 and classes of 30: the second has the other class, whatever
    its own mix is."""
    labels = balanced(2, 30)
    for seed in range(5):
        parts = parts_of(Mixture(clients=2, alpha=1e-3), labels, rng(seed))
        assert sorted(labels[part].sum() for part in parts) in ([0, 30], [1, 29])
    with pytest.raises(FedpriorError, match=r"^2 clients of samples=31 need more than the 60 examples"):
        parts_of(Mixture(clients=2, samples=31), labels, rng())


# Redrawn shares


def test_redraw_repeats_the_draw_of_all_classes() -> None:
    """The classes are shuffled once; then shares of every class are drawn until every client has 12, by hand."""
    labels = balanced(3, 30)
    own = rng(3)
    classes = [own.permutation(np.flatnonzero(labels == c)) for c in range(3)]
    draws = 0
    while True:
        draws += 1
        parts: list[list[int]] = [[] for _ in range(4)]
        for indices in classes:
            takers = [k for k in range(4) if len(parts[k]) < 90 / 4]
            cuts = np.rint(np.cumsum(own.dirichlet(np.full(len(takers), 0.5)))[:-1] * 30).astype(int)
            for k, piece in zip(takers, np.split(indices, cuts), strict=True):
                parts[k] += piece.tolist()
        if min(len(part) for part in parts) >= 12:
            break
    assert draws > 1
    got = parts_of(Dirichlet(clients=4, alpha=0.5, cap=True, redraw=True, min_size=12), labels, rng(3))
    assert [part.tolist() for part in got] == [sorted(part) for part in parts]


@quick
@given(seeds, st.booleans())
def test_redraw_keeps_the_minimum(seed: int, cap: bool) -> None:
    parts = parts_of(Dirichlet(clients=5, alpha=1.0, cap=cap, redraw=True, min_size=8), balanced(4, 50), rng(seed))
    assert len(disjoint(parts)) == 200
    assert min(len(part) for part in parts) >= 8


def test_redraw_gives_up() -> None:
    """Two clients, one class, each to have half of it: never at alpha = 1e-6."""
    with pytest.raises(FedpriorError, match=r"draws gave some client fewer than min_size=15 .* redraw=false\.$"):
        parts_of(Dirichlet(clients=2, alpha=1e-6, redraw=True, min_size=15), balanced(1, 30), rng())


# Columns


def test_small_clients_can_be_dropped() -> None:
    view = column_view(np.repeat(["w10", "w2", "w1"], [5, 3, 1]))
    assert list(by_column(view).clients) == ["w1", "w2", "w10"]
    assert list(by_column(view, min_size=2, smaller="drop").clients) == ["w2", "w10"]
    assert list(by_column(view, clients=2).clients) == ["w1", "w2"]
    assert list(by_column(view, max_clients=2).clients) == ["w1", "w2"]
    assert list(by_column(view, max_clients=1000).clients) == list(by_column(view).clients)
    for options in ({"clients": 4}, {"min_size": 6, "smaller": "drop"}):
        with pytest.raises(FedpriorError, match="use fewer clients or a smaller min_size"):
            by_column(view, **options)


@quick
@given(st.integers(1, 6), st.integers(1, 5), st.lists(st.integers(1, 4), min_size=30, max_size=50), seeds)
def test_merged_users(clients: int, min_users: int, tweets: list[int], seed: int) -> None:
    """Whole users, in the data's order, at least so many a client; everything is used once."""
    users = np.repeat([f"u{7 * k % 53}" for k in range(len(tweets))], tweets)
    parts = merged(column_view(users, rng(seed)), clients=clients, min_users=min_users, alpha=0.5).clients
    assert np.concatenate(list(parts.values())).tolist() == list(range(len(users)))
    held = [set(users[part]) for part in parts.values()]
    assert min(len(h) for h in held) >= min_users
    assert sum(len(h) for h in held) == len(tweets)
    again = merged(column_view(users, rng(seed)), clients=clients, min_users=min_users, alpha=0.5).clients
    assert all((again[name] == part).all() for name, part in parts.items())


def test_merged_by_hand() -> None:
    """Ten users, three clients of at least two: four more in proportions p; users per client 2 + rounded share."""
    p = rng(4).dirichlet([0.5] * 3)
    ends = np.rint(np.cumsum(p) * 4).astype(int) + np.array([2, 4, 6])
    parts = merged(column_view(np.arange(10), rng(4)), clients=3, min_users=2).clients
    assert [part.tolist() for part in parts.values()] == [
        list(range(a, b)) for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ]
    with pytest.raises(FedpriorError, match=r"^10 users cannot be split into 6 clients of at least 2"):
        merged(column_view(np.arange(10)), clients=6, min_users=2)


@quick
@given(st.integers(1, 4), seeds)
def test_domains_stay_apart(per_domain: int, seed: int) -> None:
    values, labels = np.repeat(["b", "a"], [60, 80]), np.arange(140) % 4
    parts = domains(column_view(values, rng(seed), labels), per_domain=per_domain, min_size=5).clients
    assert list(parts) == [f"{name}-{i}" for name in "ab" for i in range(per_domain)]
    assert sorted(disjoint(list(parts.values())).tolist()) == list(range(140))
    for name, part in parts.items():
        assert set(values[part]) == {name[0]}
        assert len(part) >= 5


def test_domains_by_hand() -> None:
    """Domains in the order of their names, each with a generator of its own, as the Dirichlet partition alone."""
    values, labels = np.repeat(["b", "a"], [60, 80]), np.arange(140) % 4
    first, second = rng(9).spawn(2)
    parts = domains(column_view(values, rng(9), labels), per_domain=2, alpha=0.3).clients
    alone = [60 + part for part in parts_of(Dirichlet(clients=2, alpha=0.3), labels[60:], first)]
    alone += parts_of(Dirichlet(clients=2, alpha=0.3), labels[:60], second)
    assert [part.tolist() for part in parts.values()] == [part.tolist() for part in alone]


def test_domains_by_slicing_and_their_errors() -> None:
    values, labels = np.repeat(["b", "a"], [60, 80]), np.arange(140) % 4
    view = column_view(values, labels=labels)
    parts = domains(view, per_domain=4, within="slicing", labels_each=2, min_size=1).clients
    assert all(len(set(labels[part])) == 2 for part in parts.values())
    with pytest.raises(FedpriorError, match=r"^in domain 'a', 80 examples are too few for 4 clients of at least 21"):
        domains(view, min_size=21)
