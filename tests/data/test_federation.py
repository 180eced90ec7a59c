"""Federations from arrays: splits, scaling, checks at the door, and the checksum."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.views import classes, counts
from fedprior.data.federation import SPLITS, Federation, from_arrays
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError

quick = settings(deadline=None, max_examples=50)

Clients = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]


def numbered(y: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """x is the row's number."""
    return np.arange(len(y), dtype=np.float64)[:, None], y


def random_clients(sizes: Mapping[str, int], features: int = 3, classes: int = 2) -> Clients:
    rng = np.random.default_rng(0)
    return {k: (rng.normal(5, 3, (n, features)), rng.integers(classes, size=n)) for k, n in sizes.items()}


def rows_of(federation: Federation, split: str, c: int = 0) -> list[int]:
    return [int(r) for r in federation.split(split).client(c)[0][:, 0].tolist()]


def refusal(clients: Mapping[str, Any], **options: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        from_arrays(clients, **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


# Splits


@pytest.mark.parametrize(
    ("n", "validation", "test", "sizes"),
    [
        (10, 0.1, 0.2, (7, 1, 2)),
        (100, 0.1, 0.2, (70, 10, 20)),
        (100, 0.0, 0.5, (50, 0, 50)),
        (2, 0.1, 0.2, (1, 0, 1)),
        (2, 0.4, 0.5, (1, 0, 1)),
        (4, 0.45, 0.5, (1, 1, 2)),
        (5, 0.6, 0.3, (1, 2, 2)),
    ],
)
def test_sizes_of_the_splits(n: int, validation: float, test: float, sizes: tuple[int, int, int]) -> None:
    """Test gets round(test · n) but at least 1, validation round(validation · n), and training at least 1: 5 examples
    at 0.6 and 0.3 are round(1.5) = 2 to test and min(3, 5 - 2 - 1) = 2 to validate."""
    federation = from_arrays({"a": numbered(np.arange(n) % 2)}, validation=validation, test=test)
    assert tuple(federation.split(s).size[0] for s in SPLITS) == sizes


@pytest.mark.parametrize("how", ["random", "stratified"])
def test_many_small_clients_have_their_share_of_validation_examples(how: Any) -> None:
    """1,000 clients of 3 examples at 10 % have 300 together, ± 4 √(1000 · 0.3 · 0.7) = 58; in turns, most have had one.

    Over five turns a client has one in 1.5 of them on average, and none in five only where the draws of all five are
    above 0.3: multiples of the golden ratio leave no gap as wide as 0.7 among five, so that everyone has had one.
    """
    clients = {f"c{k}": numbered(np.array([0, 1, 0])) for k in range(1000)}
    turns = [np.array(from_arrays(clients, split=how, turn=turn).validation.size) for turn in range(5)]
    assert all(abs(turn.sum() - 300) < 58 for turn in turns)
    assert max(turn.max() for turn in turns) == 1
    assert np.stack(turns).any(0).all()
    assert from_arrays({"a": numbered(np.array([0, 1, 0]))}, validation=0.0, test=0.2).validation.size == (0,)


@quick
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=60),
    st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7]),
    st.sampled_from([0.01, 0.2, 0.5, 0.8, 0.99]),
    st.integers(0, 5),
)
def test_every_example_is_in_exactly_one_split(labels: list[int], validation: float, test: float, seed: int) -> None:
    """And takes its label along; none of train and test is ever empty."""
    y = np.array(labels)
    if validation + test >= 1:
        validation = 0.0
    federation = from_arrays({"a": numbered(y)}, validation=validation, test=test, seed=seed)
    parts = [rows_of(federation, s) for s in SPLITS]
    assert sorted(itertools.chain(*parts)) == list(range(len(y)))
    assert parts[0]
    assert parts[2]
    for split, rows in zip(SPLITS, parts, strict=True):
        assert federation.split(split).y.tolist() == y[rows].tolist()


@quick
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 10**6))
def test_labels_are_spread_evenly(sizes: list[int], seed: int) -> None:
    """All labels are cut at one fraction t, each up to one example: |m_k - t n_k| < 1 for its m_k of n_k examples in
    training (and in training and validation together). So some t is in every ((m_k - 1)/n_k, (m_k + 1)/n_k)."""
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    if len(y) < 2:
        return
    federation = from_arrays({"a": numbered(y)}, seed=seed, validation=0.2, test=0.3)
    train = counts(federation, "train")[0]
    for m in (train, train + counts(federation, "validation")[0]):
        n = np.array(sizes)
        assert ((m - 1) / n).max() < ((m + 1) / n).min()


def test_a_large_client_is_split_in_proportion() -> None:
    """300 and 100 examples at 70 / 10 / 20 %: 210 + 30 + 60 and 70 + 10 + 20, give or take one."""
    y = np.repeat([0, 1], [300, 100])
    federation = from_arrays({"a": numbered(y)})
    got = np.stack([counts(federation, s)[0] for s in SPLITS])
    assert np.abs(got - [[210, 70], [30, 10], [60, 20]]).max() <= 1


def test_the_split_is_random_and_keyed() -> None:
    """Another seed, another split; another client with the same labels, too."""
    y = np.zeros(50, dtype=np.int64)
    a, b = (from_arrays({"a": numbered(y), "b": numbered(y)}, seed=seed) for seed in (0, 1))
    splits = [rows_of(a, "test", 0), rows_of(a, "test", 1), rows_of(b, "test", 0), list(range(40, 50))]
    assert len({tuple(rows) for rows in splits}) == 4


def test_a_clients_split_does_not_depend_on_the_others() -> None:
    """Dropped, reordered or of another size: `b` keeps its rows."""
    clients = random_clients({"a": 20, "b": 30, "c": 40})
    for others in (["a", "b", "c"], ["b"], ["c", "b"]):
        federation = from_arrays({k: clients[k] for k in others}, standardise=True)
        alone = from_arrays({"b": clients["b"]}, standardise=True)
        for split in SPLITS:
            x, y = federation.split(split).client(others.index("b"))
            assert torch.equal(x, alone.split(split).x)
            assert torch.equal(y, alone.split(split).y)


# Scaling


def test_standardise_uses_each_clients_training_examples_only() -> None:
    """Train has mean 0 and standard deviation 1; the others are mapped by the same numbers."""
    clients = random_clients({"a": 40, "b": 60})
    plain, scaled = from_arrays(clients), from_arrays(clients, standardise=True)
    for c in range(2):
        train = plain.train.client(c)[0].double()
        mean, std = train.mean(0), train.std(0, correction=0)
        own = scaled.train.client(c)[0].double()
        torch.testing.assert_close(own.mean(0), torch.zeros(3).double(), rtol=0, atol=1e-6)
        torch.testing.assert_close(own.std(0, correction=0), torch.ones(3).double(), rtol=1e-6, atol=0)
        for split in SPLITS:
            expected = (plain.split(split).client(c)[0].double() - mean) / std
            torch.testing.assert_close(scaled.split(split).client(c)[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_a_test_example_does_not_move_the_scaling() -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2
    test = rows_of(from_arrays({"a": numbered(y)}), "test")
    moved = x.copy()
    moved[test] += 1000
    a, b = from_arrays({"a": (x, y)}, standardise=True), from_arrays({"a": (moved, y)}, standardise=True)
    assert torch.equal(a.train.x, b.train.x)
    assert not torch.allclose(a.test.x, b.test.x)


@pytest.mark.parametrize("value", [0.0, 3.0, 0.1, 1e6 / 3])
def test_a_constant_column_becomes_zero(value: float) -> None:
    """And a test example that differs stays of its own size."""
    y = np.arange(20) % 2
    test = rows_of(from_arrays({"a": numbered(y)}), "test")
    x = np.full((20, 1), value)
    x[test[0]] += 0.1
    federation = from_arrays({"a": (x, y)}, standardise=True)
    torch.testing.assert_close(federation.train.x, torch.zeros(14, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(federation.test.x.abs().max().item(), 0.1, rtol=1e-3, atol=0)


def test_standardise_is_exact_for_single_precision_input() -> None:
    """14,000 float32 rows around 10⁴, where float32 has steps of 1e-3: the mean, of deviation 1, must be 0 ± 1e-3."""
    x = (np.random.default_rng(0).normal(size=(20_000, 2)) + 1e4).astype(np.float32)
    train = from_arrays({"a": (x, np.arange(20_000) % 2)}, standardise=True).train.x.double()
    assert train.mean(0).abs().max() < 1e-3
    assert (train.std(0) - 1).abs().max() < 1e-3


# What is refused


def test_missing_values_name_client_and_row() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        clients = dict(random_clients({"a": 5, "Site B": 5}))
        clients["Site B"][0][3, 1] = bad
        got = refusal(clients)
        assert "client 'Site B'" in got
        assert "row 3" in got


def test_a_client_needs_two_examples() -> None:
    good = random_clients({"a": 5})["a"]
    assert "client 'b' has 0 examples" in refusal({"a": good, "b": (np.zeros((0, 3)), np.zeros(0, dtype=int))})
    assert "client 'b' has 1 examples" in refusal({"a": good, "b": (np.zeros((1, 3)), np.zeros(1, dtype=int))})
    assert "no clients" in refusal({})


def test_examples_and_labels_must_match() -> None:
    assert "client 'a' has 5 examples but 4 labels" in refusal({"a": (np.zeros((5, 2)), np.zeros(4, dtype=int))})


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param([0, 1, -1, 0], id="negative"),
        pytest.param([0, 0.5, 1, 0], id="fraction"),
        pytest.param([0, np.nan, 1, 0], id="missing"),
        pytest.param([0, np.inf, 1, 0], id="infinite"),
        pytest.param(["a", "b", "a", "b"], id="text"),
        pytest.param([[0], [1], [0], [1]], id="column"),
        pytest.param([[0, 1], [1, 0], [0, 1], [1, 0]], id="one-hot"),
    ],
)
def test_labels_are_the_integers_from_zero(labels: list[Any]) -> None:
    assert "client 'a'" in refusal({"a": (np.zeros((4, 2)), np.array(labels))})


def test_whole_numbers_of_any_type_are_labels() -> None:
    for dtype in (np.float64, np.uint8, np.int32, np.bool_):
        federation = from_arrays({"a": (np.zeros((4, 2)), np.array([0, 1, 0, 1], dtype=dtype))})
        assert federation.train.y.dtype == torch.int64
        assert classes(federation) == 2


@pytest.mark.parametrize(
    ("validation", "test"), [(0.1, 0.0), (0.5, 0.5), (-0.1, 0.2), (0.0, 1.0), (0.1, -0.2), (0.1, np.nan)]
)
def test_bad_fractions(validation: float, test: float) -> None:
    got = refusal(random_clients({"a": 9}), validation=validation, test=test)
    assert f"test = {test}" in got


def test_a_label_beyond_the_classes() -> None:
    clients = {"a": numbered(np.array([0, 1, 2, 2]))}
    assert "a label is 2 but the federation has 2 classes" in refusal(clients, classes=2)
    assert {from_arrays(clients, classes=k).target for k in (3, None)} == {Classes.numbered(3)}
    assert from_arrays(clients, classes=7).label_counts().shape == (1, 7)


def test_clients_must_have_the_same_features() -> None:
    clients = {"a": random_clients({"a": 5}, features=3)["a"], "b": random_clients({"b": 5}, features=2)["b"]}
    assert "client 'b'" in refusal(clients)


def test_examples_must_be_numbers() -> None:
    assert "client 'a'" in refusal({"a": (np.full((4, 2), "male"), np.arange(4) % 2)})


def test_values_must_fit_the_stored_precision() -> None:
    x = np.zeros((4, 2))
    x[2, 0] = 1e39
    got = refusal({"a": (x, np.arange(4) % 2)})
    assert "client 'a'" in got
    assert "row 2" in got


# What it holds


def test_integers_become_floats_and_shapes_are_kept() -> None:
    x = np.arange(6 * 4, dtype=np.uint8).reshape(6, 1, 2, 2)
    federation = from_arrays({"a": (x, np.arange(6) % 2)})
    assert federation.train.x.dtype == torch.float32
    assert federation.shape == (1, 2, 2)
    assert len(federation) == 1


def test_label_counts_and_description() -> None:
    """Clients in the given order; every split's counts are those of its own labels."""
    federation = from_arrays(random_clients({"b": 30, "a": 20}, classes=3))
    assert federation.clients == ("b", "a")
    for split in SPLITS:
        expected = [
            [int((federation.split(split).client(c)[1] == k).sum()) for k in range(3)] for c in range(len(federation))
        ]
        assert counts(federation, split).tolist() == expected
    table = federation.describe()
    assert table.index.tolist() == ["b", "a"]
    assert table["train"].tolist() == [21, 14]
    assert table[["label 0", "label 1", "label 2"]].to_numpy().tolist() == counts(federation).tolist()


def test_select_keeps_the_clients_examples() -> None:
    federation = from_arrays(random_clients({"a": 20, "b": 30, "c": 40}))
    some = federation.select([2, 0])
    assert some.clients == ("c", "a")
    for split in SPLITS:
        for c, old in enumerate([2, 0]):
            for got, expected in zip(some.split(split).client(c), federation.split(split).client(old), strict=True):
                assert torch.equal(got, expected)
    assert counts(some).tolist() == counts(federation)[[2, 0]].tolist()


def test_to_changes_the_precision_of_every_split() -> None:
    federation = from_arrays(random_clients({"a": 20}))
    double = federation.to(torch.float64)
    for split in SPLITS:
        assert double.split(split).x.dtype == torch.float64
        assert torch.equal(double.split(split).x.float(), federation.split(split).x)
        assert double.split(split).y is federation.split(split).y
    assert federation.train.x.dtype == torch.float32


def test_share_memory_changes_no_number() -> None:
    federation = from_arrays(random_clients({"a": 20}))
    before = federation.fingerprint()
    assert federation.share_memory() is federation
    assert federation.train.x.is_shared()  # type: ignore[no-untyped-call]
    assert federation.fingerprint() == before


# The checksum


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("part", ["x", "y"])
def test_the_fingerprint_sees_every_value(split: str, part: str) -> None:
    """The last bit of one value of one split is enough."""
    federation = from_arrays(random_clients({"a": 20, "b": 30}))
    before = federation.fingerprint()
    tensor: torch.Tensor = getattr(federation.split(split), part)
    one = tensor.view(-1)
    one[-1] = torch.nextafter(one[-1], torch.tensor(9e9)) if part == "x" else 1 - one[-1]
    assert federation.fingerprint() != before


def test_the_fingerprint_sees_names_order_and_classes() -> None:
    clients = random_clients({"a": 20, "b": 30})
    prints = [
        from_arrays(clients).fingerprint(),
        from_arrays(clients, seed=1).fingerprint(),
        from_arrays(clients, classes=3).fingerprint(),
        from_arrays({"c": clients["a"], "b": clients["b"]}).fingerprint(),
        from_arrays({"b": clients["b"], "a": clients["a"]}).fingerprint(),
        from_arrays(clients).select([1, 0]).fingerprint(),
        from_arrays(clients).select([0]).fingerprint(),
    ]
    assert len(set(prints)) == len(prints)
    assert from_arrays(random_clients({"a": 20, "b": 30})).fingerprint() == prints[0]
