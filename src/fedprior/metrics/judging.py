"""Whether a site gains: means with intervals over repeated splits, and which of many are more than chance.

A site's rows are tested on in several splits. A row's differences are averaged, and a group's rows count together.
The variance of the site's mean is that of its rows, moderated by the rows of all sites (as Smyth 2004 does for genes),
so that the interval of a single row has a width; to it comes what splits differ by beyond their rows (training sets and
seeds). Treating the rows of different test sets as independent is asymptotically right for cross-validation
(Bayle et al., NeurIPS 2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PRIOR = 3.0
"""Degrees of freedom that the variance of all sites' rows counts for at each site."""
LEVEL = 0.95
Float = NDArray[np.float64]


class Differences(NamedTuple):
    """One site's paired differences, positive is better, one entry per split."""

    values: Sequence[Float]  # each [n_s]
    units: Sequence[NDArray[np.int64]]  # each [n_s]: the row, or the group, of each value


class Estimate(NamedTuple):
    """A mean, its interval, the p-value of "no difference", and the number of rows or groups."""

    mean: float
    low: float
    high: float
    p: float
    units: int
    error: float = math.nan  # standard error of the mean


class _Site(NamedTuple):
    mean: float
    n: int  # units
    square: float  # Σ (unit's total - its expectation)², in units of one row
    between: float  # variance of the mean because splits differ beyond their rows
    splits: int


def estimates(sites: Mapping[str, Differences]) -> dict[str, Estimate]:
    """Every site's mean difference; nan where it has no rows, or where one is not finite."""
    found = {name: _site(given) for name, given in sites.items()}
    known = [site for site in found.values() if site is not None]
    freedom = sum(site.n - 1 for site in known)
    pooled = sum(site.square for site in known) / freedom if freedom else math.nan
    return {name: _estimate(site, pooled) for name, site in found.items()}


def _site(given: Differences) -> _Site | None:
    values = np.concatenate([np.empty(0), *given.values])
    if not values.size or not np.isfinite(values).all():
        return None
    _, unit = np.unique(np.concatenate(given.units), return_inverse=True)
    times = np.bincount(unit)
    shares = np.bincount(unit, values) / times  # of each unit: the mean of its differences
    splits = [float(own.mean()) for own in given.values if len(own)]
    mean, n = float(shares.mean()), len(shares)
    square = float(np.square(shares - mean).sum())
    between = 0.0
    if len(splits) > 1 and n > 1:
        own = square / (n - 1) * float(np.mean([1 / len(np.unique(u)) for u in given.units if len(u)]))
        between = max(0.0, float(np.var(splits, ddof=1)) - own) / len(splits)
    return _Site(mean, n, square, between, len(splits))


def _estimate(site: _Site | None, pooled: float) -> Estimate:
    if site is None:
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0)
    if math.isnan(pooled):  # a single row in all
        return Estimate(site.mean, math.nan, math.nan, math.nan, site.n)
    from scipy.special import stdtr, stdtrit

    freedom = PRIOR + site.n - 1
    within = (PRIOR * pooled + site.square) / freedom / site.n
    total = within + site.between
    if total == 0:
        return Estimate(site.mean, site.mean, site.mean, 1.0 if site.mean == 0 else 0.0, site.n, 0.0)
    if site.between:  # Satterthwaite
        freedom = total**2 / (within**2 / freedom + site.between**2 / (site.splits - 1))
    error = math.sqrt(total)
    width = error * float(stdtrit(freedom, (1 + LEVEL) / 2))
    p = 2 * float(stdtr(freedom, -abs(site.mean) / error))
    return Estimate(site.mean, site.mean - width, site.mean + width, p, site.n, error)


def discoveries(p_values: Mapping[str, float], rate: float = 1 - LEVEL) -> set[str]:
    """Those of many that are more than chance, of which a share of at most `rate` is expected to be wrong.

    Benjamini & Hochberg 1995: the k smallest, for the largest k whose p-value is at most k/m · rate.
    """
    ordered = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    last = max((k for k, (p, _) in enumerate(ordered, 1) if p <= k / len(ordered) * rate), default=0)
    return {name for _, name in ordered[:last]}
