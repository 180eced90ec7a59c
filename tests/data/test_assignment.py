"""Who gets what: views of tables, numbers to predict, official test sets, options under former names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data.views import counts
from fedprior.data import DATASETS, load
from fedprior.data.assignment import Assignment, Limits, Shares, assign_examples
from fedprior.data.datasets import defaults, option_names
from fedprior.data.official import dealt, official_tests
from fedprior.data.partition import PARTITIONS, Dirichlet, Iid, LogNormal, Parts, View, register_partition
from fedprior.data.partition.view import spread
from fedprior.data.registry import register_dataset
from fedprior.data.store import RECORDS
from fedprior.data.table import Table
from fedprior.data.target import Classes, Number
from fedprior.errors import FedpriorError
from fedprior.rng import Key

KEY = Key.from_seed(0)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    registries: list[dict[str, Any]] = [DATASETS, RECORDS, PARTITIONS]
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


def numbers(n: int = 400, **changes: Any) -> Table:
    """One input, and twice that to predict."""
    x = np.random.default_rng(1).normal(size=(n, 1))
    return Table(x, 2 * x[:, 0], Number(), {}, **changes)


def assigned(table: Table, partition: Any, limits: Limits | None = None, **shares: Any) -> Assignment:
    return assign_examples("mine", table, partition, limits or Limits(), Shares(**shares), KEY)


# Official test sets


def test_shares_are_rounded_without_bias() -> None:
    """Ten test examples at clients with 1, 2 and 4 of 7: 10/7, 20/7 and 40/7 on average, rounded up or down each time.

    A size has sd below 0.5, its mean over 2,000 seeds one below 0.012; rounding to the nearest is off by 0.43.
    """
    held = {"a": {0: 1}, "b": {0: 2}, "c": {0: 4}}
    drawn = [dealt(held, {0: np.arange(10)}, None, Key.from_seed(seed)) for seed in range(2000)]
    sizes = np.array([[len(tests[client]) for client in held] for tests in drawn])  # [seeds, clients]
    exact = np.array([10, 20, 40]) / 7
    assert (sizes.sum(1) == 10).all()
    assert (np.abs(sizes - exact) < 1 + 1e-6).all()
    np.testing.assert_allclose(sizes.mean(0), exact, atol=0.05)


def test_every_test_example_is_as_likely_at_a_client() -> None:
    """Of ten test examples, each is at the client with 4 of 7 in 4/7 of 1,000 seeds, sd 0.016."""
    held = {"a": {0: 1}, "b": {0: 2}, "c": {0: 4}}
    drawn = [dealt(held, {0: np.arange(10)}, None, Key.from_seed(seed))["c"] for seed in range(1000)]
    np.testing.assert_allclose(np.bincount(np.concatenate(drawn), minlength=10) / 1000, 4 / 7, atol=0.08)


def test_test_examples_of_a_kind_that_nobody_trains_on() -> None:
    """Kinds 0, 0, 1, 1 in training, 0, 1, 2 in testing: 2 is left, dealt out or shared."""
    kinds, official = np.array([0, 0, 1, 1, 0, 1, 2]), np.arange(7) >= 4
    rows = {"a": np.array([0, 1]), "b": np.array([2, 3])}
    for how in ("official", "shared"):
        tests = official_tests(how, kinds, rows, official, None, KEY)
        assert {client: own.tolist() for client, own in tests.items()} == {"a": [4], "b": [5]}


# What a partition sees and says


def test_a_partition_sees_the_training_examples_only() -> None:
    """Its rows are numbers of what it sees; those of the assignment are numbers of the table."""
    seen: list[View] = []

    def halves(view: View) -> Parts:
        seen.append(view)
        return Parts({"even": np.arange(0, len(view), 2), "odd": np.arange(1, len(view), 2)})

    official = np.arange(40) % 4 == 0
    columns = {"site": np.arange(40) // 10}
    table = Table(np.arange(40.0)[:, None], np.arange(40) % 2, Classes.numbered(2), {}, columns, official=official)
    found = assigned(table, halves, test="shared")
    (view,) = seen
    assert view.inputs()[:, 0].tolist() == np.flatnonzero(~official).tolist()
    assert view.labels.tolist() == table.y[~official].tolist()
    assert view.column().tolist() == view.column("site").tolist() == columns["site"][~official].tolist()
    assert view.data == "mine"
    assert found.rows["odd"].tolist() == np.flatnonzero(~official)[1::2].tolist()
    assert found.tests is not None
    assert not np.intersect1d(np.concatenate(list(found.tests.values())), np.flatnonzero(~official)).size


def test_parts_of_a_view() -> None:
    view = View(
        np.arange(6), coarse=np.arange(6) // 2, columns={"site": np.arange(6) * 2}, select=lambda rows: 10.0 * rows
    )
    some = view.at(np.array([5, 1, 3])).at(np.array([2, 0]))
    assert some.labels.tolist() == [3, 5]
    assert some.inputs().tolist() == [30, 50]
    assert some.column().tolist() == [6, 10]
    assert some.coarse is not None
    assert some.coarse.tolist() == [1, 2]
    with pytest.raises(FedpriorError, match="the data has no column that names clients"):
        View(np.arange(3)).column()


@pytest.mark.parametrize("whole", [True, False], ids=["parts", "names and rows"])
def test_a_partition_of_ones_own(whole: bool) -> None:
    """A function of the view and of its options, which are checked and listed as all others are."""

    @register_partition("thirds")
    def thirds(view: View, first: int = 0) -> Any:
        """Rows by turns."""
        rows = {f"site{k}": np.arange((k + first) % 3, len(view), 3) for k in range(3)}
        return Parts(rows) if whole else rows

    federation = load("digits", partition="thirds", first=1)
    assert federation.clients == ("site0", "site1", "site2")
    assert option_names("digits", {"partition": "thirds"})[-1] == "first"
    assert "view" not in option_names("digits", {"partition": "thirds"})
    with pytest.raises(FedpriorError, match="first = 'x'"):
        load("digits", partition="thirds", first="x")
    with pytest.raises(FedpriorError, match="unknown option 'view'"):
        load("digits", partition="thirds", view=3)


def test_every_partition_takes_a_view() -> None:
    """By the one way in, whatever it looks at."""
    fine = np.arange(4000) % 10
    site = np.array([f"s{i}" for i in np.arange(4000) // 40])
    inputs: NDArray[np.float64] = np.random.default_rng(0).normal(size=(4000, 2))
    for name in PARTITIONS:
        view = View(fine, np.random.default_rng(0), fine // 2, {"site": site}, lambda rows: inputs[rows])
        options = {"within": "dirichlet", "min_size": 1} if name == "domains" else {}
        parts = spread(name, options, view)
        assert parts.clients
        assert all((np.diff(rows) > 0).all() for rows in parts.clients.values()), name
        assert len(parts.kinds(view)) == 4000
        assert (parts.labels is None) == (name != "superclass")


# Numbers to predict


def test_labels_of_a_number_are_its_tenths() -> None:
    """Dir(0.01) over tenths: a client's numbers come from few of them, and none is lost."""
    table = numbers()
    found = assigned(table, Dirichlet(clients=5, alpha=0.01, min_size=2))
    tenths = table.target.binned(table.y)[1]
    assert sorted(np.concatenate(list(found.rows.values())).tolist()) == list(range(400))
    assert all((found.labels[client] == table.y[rows]).all() for client, rows in found.rows.items())
    largest = np.max([np.bincount(tenths[rows], minlength=10) for rows in found.rows.values()], axis=0)
    assert np.median(largest) >= 36  # of the 40 of a tenth
    assert found.target == Number()


def test_few_examples_of_a_number() -> None:
    """30 of 400: three of each tenth."""
    table = numbers()
    found = assigned(table, Iid(clients=2), Limits(examples=30))
    rows = np.concatenate(list(found.rows.values()))
    assert np.bincount(table.target.binned(table.y)[1][rows]).tolist() == [3] * 10


def test_an_official_test_set_of_a_number() -> None:
    """A client is tested on the tenths that it trains on."""
    table = numbers(official=np.arange(400) % 4 == 0)
    tenths = table.target.binned(table.y)[1]
    found = assigned(table, Dirichlet(clients=3, alpha=0.1), test="shared")
    assert found.tests is not None
    for client, rows in found.rows.items():
        assert set(tenths[found.tests[client]]) == set(tenths[rows])


def test_numbers_cannot_be_mislabelled() -> None:
    with pytest.raises(FedpriorError, match="mine has a numeric target, and only classes can be mislabelled"):
        assigned(numbers(4000), LogNormal(clients=4, labels=2, mislabel=True))
    assert len(assigned(numbers(4000), LogNormal(clients=4, labels=2)).rows) == 4


def test_a_data_set_with_a_number() -> None:
    @register_dataset()
    def doubled() -> Table:
        """Numbers."""
        return numbers()

    federation = load("doubled", clients=4)
    assert isinstance(federation.target, Number)
    assert counts(federation).shape == (4, 10)


# Former names


def test_former_names_of_options() -> None:
    """The same federation; a default that the former name overrides is not spelled out beside it."""
    for partition, old, new in (("column", "at_most", "max_clients"), ("merged", "least", "min_users")):
        options: dict[str, Any] = {"partition": partition} | ({"clients": 2} if partition == "merged" else {})
        a, b = load("digits", **options, **{old: 3}), load("digits", **options, **{new: 3})
        assert a.fingerprint() == b.fingerprint()
        assert a.options == options | {old: 3}
        assert new in option_names("digits", options)
        assert old not in option_names("digits", options)
        spelled = defaults("digits", options | {old: 3}) | options | {old: 3}
        assert load("digits", **spelled).fingerprint() == a.fingerprint()
        with pytest.raises(FedpriorError, match=f"give only '{new}'"):
            load("digits", **options, **{old: 3, new: 3})
