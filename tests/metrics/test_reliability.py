"""Reliability: what was claimed against what came true."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from fedprior.data.target import Classes, Number
from fedprior.metrics.reliability import LEVELS, reliability, wilson

TWO, THREE = Classes.numbered(2), Classes.numbered(3)


def logs(*rows: tuple[float, ...]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.array(rows)), dtype=np.float64)


def test_two_classes_are_judged_by_the_second() -> None:
    """Claims of 0.72 and 0.78 share the bin from 0.7 to 0.8: one of two came true, at a mean claim of 0.75."""
    predictive = logs((0.28, 0.72), (0.22, 0.78), (0.96, 0.04), (0.0, 1.0))
    points = reliability(TWO, predictive, np.array([1, 0, 0, 1]))
    assert [p.claimed for p in points] == pytest.approx([0.04, 0.75, 1.0])
    assert [(p.found, p.n) for p in points] == [(0.0, 1), (0.5, 2), (1.0, 1)]


def test_several_classes_are_judged_by_the_predicted_one() -> None:
    """0.6 for class 0, right, and 0.65 for class 2, wrong."""
    [point] = reliability(THREE, logs((0.6, 0.3, 0.1), (0.2, 0.15, 0.65)), np.array([0, 1]))
    assert point.claimed == pytest.approx(0.625)
    assert (point.found, point.n) == (0.5, 2)


def test_intervals_of_a_number() -> None:
    """Mean 10 and deviation 2: a label at 11 is half a deviation off, inside intervals from 2 Φ(½) - 1 = 38 % on."""
    points = reliability(Number(), np.array([[10.0, 2 * math.log(2)]]), np.array([11.0]))
    assert [p.claimed for p in points] == pytest.approx(LEVELS)
    assert [p.found for p in points] == [float(level >= 2 * norm.cdf(0.5) - 1) for level in LEVELS]


def test_a_calibrated_number_is_on_the_diagonal() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(3, 5, 4000)
    points = reliability(Number(), np.tile([3.0, 2 * math.log(5)], (4000, 1)), y)
    assert [p.found for p in points] == pytest.approx(LEVELS, abs=0.03)


def test_nothing_is_said_without_labels_or_of_a_diverged_model() -> None:
    assert reliability(TWO, np.empty((0, 2)), np.empty(0, int)) == []
    assert reliability(TWO, np.array([[np.nan, 0.0]]), np.array([1])) == []


def test_wilson() -> None:
    """No hit of 10: (0, z² / (n + z²)) = (0, 3.8415 / 13.8415 = 0.2775); 5 of 10: 0.5 ± 0.2634, as published tables."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_holds_the_share(pair: tuple[int, int]) -> None:
    hits, n = pair
    low, high = wilson(hits, n)
    assert 0 <= low <= hits / n + 1e-12
    assert hits / n - 1e-12 <= high <= 1
    assert low < high
