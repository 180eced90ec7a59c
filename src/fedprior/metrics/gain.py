"""What each client gained over a reference (usually Local), and how certain that is.

Two functions for two sources of uncertainty, with one result type; `Gain.over` names the source. Both
are paired percentile bootstraps: the method and the reference are resampled together.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprior.metrics.metric import Metric

TIE = 1e-12  # a mean of differences this small is rounding
SIGNS = np.array([-1, 0, 1])
BLOCK = 1 << 20  # resampled examples in memory at once


class Gain(NamedTuple):
    """Gain over the reference: positive is better. A client without test examples is nan and excluded from means."""

    clients: NDArray[np.float64]  # [N]
    low: NDArray[np.float64]  # [N]
    high: NDArray[np.float64]  # [N]
    mean: float  # over clients, each counting the same
    mean_low: float
    mean_high: float
    helped: float  # share of clients with a gain above zero
    harmed: float  # share of clients with a gain below zero
    over: str = "test examples"  # what the intervals were resampled over


def gain(
    method: Sequence[NDArray[np.bool_] | NDArray[np.float64]],
    reference: Sequence[NDArray[np.bool_] | NDArray[np.float64]],
    *,
    names: Sequence[str] | None = None,
    seed: int = 0,
    draws: int = 2000,
    level: float = 0.95,
) -> Gain:
    """Gain of N clients in a mean over the same test examples, resampled over those examples.

    Client i has a score for each of its n examples, right or wrong, or a number where more is better, and with
    d_j = method[i][j] - reference[i][j] the gain Σ_j d_j / n. For right and wrong, resampling n examples with
    replacement changes only how often -1, 0 and 1 come up, and those counts are multinomial(n, (n₋, n₀, n₊)/n): drawing
    them is the exact bootstrap, and cheap. The mean's interval resamples inside every client and averages the gains.

    The intervals are conditional *on these clients and this training run*; they do not cover the variation over
    other seeds (see `seed_gain`) or other clients. Zero width means that method and reference never disagreed
    on this test set, not that they never would. A model that diverged has scores of nan, and so have its client's
    gain and the mean; an infinite score leaves its client, and the mean, without an interval.

    Draws are keyed by seed and client name (the index, if no names are given), so a client's interval does
    not depend on the rest of the cohort.
    """
    names = [str(i) for i in range(len(method))] if names is None else names
    if len(set(names)) != len(names):
        raise ValueError("client names must differ: equal names would share their random draws")
    pairs = list(zip(method, reference, strict=True))
    resampled = [_resampled(m, r, _generator(seed, name), draws) for (m, r), name in zip(pairs, names, strict=True)]
    return _gain(
        clients=np.array([_mean(_difference(m, r)) for m, r in pairs], dtype=np.float64),
        resampled=np.array(resampled, dtype=np.float64).reshape(len(pairs), draws),
        evaluated=np.array([m.size > 0 for m, _ in pairs], dtype=np.bool_),
        level=level,
        over="test examples",
    )


def seed_gain(
    method: NDArray[np.float64],
    reference: NDArray[np.float64],
    *,
    metric: Metric,
    seed: int = 0,
    draws: int = 2000,
    level: float = 0.95,
) -> Gain:
    """Gain in any metric, values [S, N] of S ≥ 2 training seeds, resampled over the seeds.

    The gain is the mean over seeds of method - reference, on a scale on which more is better. A drawn seed brings
    all its clients along, because one run trained them together.

    With few seeds the intervals are too narrow, whatever the level, for they never leave the range of the S
    differences: that range covers the median difference with probability 1 - 2^(1-S), so 50 % for two seeds,
    75 % for three, 94 % for five.

    A client that is nan in both for every seed has no test set and is left out; any other nan is passed on to
    the mean. An infinite value leaves its client, and the mean, without an interval.
    """
    if method.ndim != 2 or method.shape != reference.shape or len(method) < 2:
        raise ValueError(f"want two arrays [S, N] with S >= 2, got {method.shape} and {reference.shape}")
    S = len(method)
    with np.errstate(invalid="ignore"):  # inf - inf
        difference = metric.badness(reference) - metric.badness(method)  # [S, N]
        clients = difference.mean(axis=0)
    finite = np.where(np.isfinite(difference), difference, np.nan)
    times = np.random.default_rng(seed).multinomial(S, np.full(S, 1 / S), size=draws)  # [draws, S]
    return _gain(
        clients=clients,
        resampled=finite.T @ times.T / S,
        evaluated=np.any(~np.isnan(method) | ~np.isnan(reference), axis=0),
        level=level,
        over="seeds",
    )


def _difference(method: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    if method.ndim != 1 or method.shape != reference.shape:
        raise ValueError(f"want the same test examples [n], got {method.shape} and {reference.shape}")
    with np.errstate(invalid="ignore"):  # inf - inf
        return method.astype(np.float64) - reference.astype(np.float64)


def _mean(difference: NDArray[np.float64]) -> float:
    with np.errstate(invalid="ignore"):  # inf - inf
        return float(difference.mean()) if difference.size else float("nan")


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, int.from_bytes(blake2b(name.encode(), digest_size=8).digest())])


def _resampled(
    method: NDArray[Any], reference: NDArray[Any], rng: np.random.Generator, draws: int
) -> NDArray[np.float64]:
    """Bootstrap draws of Σ d / n, [draws]."""
    difference = _difference(method, reference)
    n = len(difference)
    if n == 0 or not np.isfinite(difference).all():
        return np.full(draws, np.nan)
    if method.dtype == np.bool_ and reference.dtype == np.bool_:
        counts = np.bincount(1 + difference.astype(np.int64), minlength=len(SIGNS))
        return np.asarray(rng.multinomial(n, counts / n, size=draws) @ SIGNS / n, dtype=np.float64)
    size = max(1, BLOCK // n)  # draws at a time: n may be large
    blocks = [rng.integers(n, size=(min(size, draws - first), n)) for first in range(0, draws, size)]
    return np.concatenate([difference[block].mean(axis=1) for block in blocks])


def _gain(
    *,
    clients: NDArray[np.float64],  # [N]
    resampled: NDArray[np.float64],  # [N, draws]
    evaluated: NDArray[np.bool_],  # [N]
    level: float,
    over: str,
) -> Gain:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    tails = ((1 - level) / 2, (1 + level) / 2)
    low, high = np.quantile(resampled, tails, axis=1)
    if not evaluated.any():
        return Gain(clients, low, high, np.nan, np.nan, np.nan, np.nan, np.nan, over)
    gains = clients[evaluated]
    with np.errstate(invalid="ignore"):  # inf - inf
        mean = float(gains.mean())
    mean_low, mean_high = np.quantile(resampled[evaluated].mean(axis=0), tails)
    return Gain(
        clients=clients,
        low=low,
        high=high,
        mean=mean,
        mean_low=float(mean_low),
        mean_high=float(mean_high),
        helped=float((gains > TIE).mean()),
        harmed=float((gains < -TIE).mean()),
        over=over,
    )
