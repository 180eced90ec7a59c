"""Gains over repeated splits: intervals against closed forms and simulation, and many sites at once."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedprior.metrics.judging import PRIOR, Differences, discoveries, estimates


def site(*splits: list[float], units: list[list[int]] | None = None) -> Differences:
    ends = np.cumsum([0, *map(len, splits)])
    rows = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    return Differences([np.array(own) for own in splits], rows if units is None else [np.array(u) for u in units])


def test_one_site_in_one_split_is_students_interval_with_a_prior() -> None:
    """d = (1, 2, 3, 6): mean 3, Σ(d - 3)² = 14, pooled variance 14/3, which is the site's own.

    Moderated: (3 · 14/3 + 14) / (3 + 3) = 14/3, so the error is √(14/3 / 4) with 6 degrees of freedom.
    """
    found = estimates({"a": site([1.0, 2.0, 3.0, 6.0])})["a"]
    width = stats.t.ppf(0.975, PRIOR + 3) * math.sqrt(14 / 3 / 4)
    assert found[:3] == pytest.approx((3, 3 - width, 3 + width))
    assert found.p == pytest.approx(2 * stats.t.sf(3 / math.sqrt(14 / 3 / 4), PRIOR + 3))
    assert found.units == 4


def test_a_single_row_borrows_its_width_from_the_others() -> None:
    """Pooled variance of the other site: 2 / 2 = 1. The single row has error 1 with 3 degrees of freedom."""
    found = estimates({"many": site([-1.0, 0.0, 1.0]), "one": site([5.0])})["one"]
    assert found.low == pytest.approx(5 - stats.t.ppf(0.975, 3))
    assert found.units == 1


def test_nothing_borrows_nothing() -> None:
    found = estimates({"one": site([5.0]), "none": site([]), "lost": site([math.nan, 1.0])})
    assert found["one"].mean == 5
    assert math.isnan(found["one"].low)
    assert math.isnan(found["none"].mean)
    assert math.isnan(found["lost"].mean)
    assert found["none"].units == 0


def test_a_row_that_is_tested_twice_counts_once() -> None:
    twice = site([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], units=[[0, 1, 2], [0, 1, 2]])
    found = estimates({"a": twice})["a"]
    assert (found.mean, found.units) == (2.0, 3)
    assert found.low == found.high == 2.0  # every row's mean is the same


def test_rows_of_a_group_count_together() -> None:
    alone = estimates({"a": site([1.0, 3.0])})["a"]
    grouped = estimates({"a": site([1.0, 1.0, 1.0, 3.0, 3.0, 3.0], units=[[7, 7, 7, 9, 9, 9]])})["a"]
    assert grouped == pytest.approx(alone)


def test_splits_that_differ_beyond_their_rows_widen_the_interval() -> None:
    """Split means 0 and 4 with rows that hardly vary within: var(0, 4) / 2 = 4 is nearly all of the variance."""
    rng = np.random.default_rng(0)
    rows = [(mean + 0.01 * rng.normal(size=50)).tolist() for mean in (0.0, 4.0)]
    level = estimates({"a": site([*rows[0], *rows[1]])})["a"]
    found = estimates({"a": site(*rows)})["a"]
    assert found.high - found.low > 5 * (level.high - level.low)


def test_intervals_cover_and_false_alarms_are_rare() -> None:
    """Skewed differences (centred exponentials, and one in ten rows far off), 12 sites of 10 to 60 rows, 5 splits.

    In 300 comparisons without any gain, intervals must cover zero in 95 % of the cases (at least 93 %: 3,600 intervals
    have a standard error of 0.4 points), and at most 5 % may declare any site (plus three standard errors, 3.8 points).
    """
    rng = np.random.default_rng(1)
    sizes, covered, alarms = np.linspace(2, 12, 12).astype(int), 0, 0
    for _ in range(300):
        sites = {}
        for k, n in enumerate(sizes):
            draws = rng.exponential(size=(5, n)) - 1 + 4 * (rng.random((5, n)) < 0.1) * rng.normal(size=(5, n))
            sites[str(k)] = site(*(row.tolist() for row in draws * (1 + k / 12)))
        found = estimates(sites)
        covered += sum(f.low <= 0 <= f.high for f in found.values())
        alarms += bool(discoveries({name: f.p for name, f in found.items()}))
    assert covered / (300 * len(sizes)) > 0.93
    assert alarms / 300 < 0.05 + 0.038


def test_benjamini_hochberg_by_hand() -> None:
    """Thresholds .0125, .025, .0375, .05: .03 is above the second, but .035 is below the third, so three are found."""
    p = {"a": 0.01, "b": 0.03, "c": 0.035, "d": 0.2, "nothing": math.nan}
    assert discoveries(p) == {"a", "b", "c"}
    assert discoveries({"a": 0.02, "b": 0.9, "c": 0.8}) == set()
    assert discoveries({}) == set()
