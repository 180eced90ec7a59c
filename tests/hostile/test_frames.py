"""Tables in memory with anything in them, for `from_frame` and the estimators: a model per site, or one sentence."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprior
from hostile.cases import DRAWN, one_sentence
from hostile.strange import several

N = 60
Y = np.arange(N) % 2
DAY = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def table(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    own = {"site": ["a", "b", "c"] * 20, "u": rng.normal(size=N), "v": rng.normal(size=N)}
    return pd.DataFrame(own | columns)


def fitted(frame: pd.DataFrame, y: Any = Y, **options: Any) -> fedprior.FederatedClassifier:
    usual: dict[str, Any] = {"method": "fedavg", "site": "site", "rounds": 1}
    return fedprior.FederatedClassifier(**(usual | options)).fit(frame, y)


COLUMNS: dict[str, Any] = {
    "a category": pd.Categorical(["p", "q"] * 30, categories=["p", "q", "r"]),
    "intervals": pd.cut(np.arange(N), 3),
    "yes and no with gaps": pd.array([True, False, None] * 20, dtype="boolean"),
    "whole numbers with gaps": pd.array([1, 2, None] * 20, dtype="Int64"),
    "decimals": [decimal.Decimal("1.5"), decimal.Decimal("2.5"), decimal.Decimal("NaN")] * 20,
    "bytes": [b"a", b"b", b"c"] * 20,
    "dates with a zone": pd.date_range("2020", periods=N, tz="Europe/Berlin"),
    "dates with and without a zone": [DAY, DAY.replace(tzinfo=None)] * 30,
    "durations": pd.to_timedelta(np.arange(N), unit="D"),
    "complex numbers": np.arange(N) + 1j,
    "sparse": pd.arrays.SparseArray([0, 1, 0] * 20),
    "objects": [object() for _ in range(N)],
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_columns_of_every_type(column: Any) -> None:
    frame = table(w=column)
    assert fitted(frame).predict(frame).shape == (N,)


@DRAWN
@given(several(3).filter(lambda names: len({n.strip() for n in names}) == 3), several(2))
def test_any_names_of_sites_and_columns(sites: list[str], columns: list[str]) -> None:
    """Each site keeps a model of its own."""
    frame = table(site=pd.Series(sites * 20, dtype=object))
    frame = frame.rename(columns=dict(zip(("u", "v"), columns, strict=False)))
    if len(set(frame.columns)) == 3:
        assert sorted(fitted(frame).sites_) == sorted(name.strip() for name in sites)
        assert fitted(frame).predict(frame).shape == (N,)


def test_names_that_only_a_nul_tells_apart() -> None:
    frame = table(site=pd.Series(["a", "a\0", "b"] * 20, dtype=object))
    assert sorted(fitted(frame).sites_) == ["a", "a\0", "b"]
    assert fedprior.data.from_frame(frame.assign(y=Y), site="site", target="y").clients == ("a", "a\0", "b")


@pytest.mark.parametrize("names", [["site", 0, 1], ["site", ("a", 1), "v"], ["site", None, "v"]])
def test_columns_whose_names_are_no_text(names: list[Any]) -> None:
    frame = table().set_axis(names, axis=1)
    assert fitted(frame).predict(frame).shape == (N,)


def test_rows_of_one_name() -> None:
    frame = table().set_axis([0] * N)
    assert fitted(frame).predict(frame).shape == (N,)


FRAMES: dict[str, Any] = {
    "two columns of one name": table().set_axis(["site", "u", "u"], axis=1),
    "1 and '1'": table().set_axis(["site", 1, "1"], axis=1),
    "no site in some rows": table(site=["a", "b", None] * 20),
    "lists": table(w=[[1]] * N),
    "text among numbers": table(w=[1, "x", 2.5] * 20),
    "numbers of 400 digits": table(w=pd.Series([10**400, *range(N - 1)], dtype=object)),
    "infinite": table(w=[np.inf, 1, 2] * 20),
    "no inputs": table()[["site"]],
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_tables_that_cannot_be_used(frame: pd.DataFrame) -> None:
    with one_sentence():
        fitted(frame)


def test_numbers_without_commas_have_no_decimal_commas() -> None:
    with pytest.raises(fedprior.FedpriorError) as error:
        fitted(FRAMES["numbers of 400 digits"])
    assert "comma" not in str(error.value)


LABELS: dict[str, Any] = {
    "bytes": np.array([b"a", b"b"] * 30),
    "numbers and text": np.array([1, "a"] * 30, dtype=object),
    "too few": Y[:10],
    "two columns": [[1, 2]] * N,
    "a word": "abc",
    "no text that UTF-8 holds": ["\ud800", "b"] * 30,
    "missing": [None, 1] * 30,
}
NUMBERS: dict[str, Any] = {
    "words": list("ab") * 30,
    "400 digits": [10**400, 1] * 30,
    "complex numbers": Y * 1j,
    "dates": pd.date_range("2020", periods=N),
    "durations": pd.Series(pd.to_timedelta(np.arange(N), unit="D")),
    "objects": [object()] * N,
}


@pytest.mark.parametrize("y", LABELS.values(), ids=LABELS)
def test_classes_that_cannot_be_used(y: Any) -> None:
    with one_sentence():
        fitted(table(), y)


@pytest.mark.parametrize("y", NUMBERS.values(), ids=NUMBERS)
def test_numbers_that_cannot_be_used(y: Any) -> None:
    with one_sentence():
        fedprior.FederatedRegressor("fedavg", site="site", rounds=1).fit(table(), y)


@pytest.mark.parametrize(
    "option", [{"method": ["fedavg"]}, {"method": {}}, {"kinds": 5}, {"kinds": "x"}, {"kinds": [1]}, {"site": ["site"]}]
)
def test_options_of_another_type(option: dict[str, Any]) -> None:
    with one_sentence():
        fitted(table(), **option)


@DRAWN
@given(st.sampled_from(["validation", "test", "scaling", "workers", "random_state", "model"]), st.text(min_size=1))
def test_options(name: str, value: str) -> None:
    if (name, value) not in (("workers", "auto"), ("scaling", "own"), ("scaling", "shared")):
        with one_sentence():
            fitted(table(), **{name: value})
