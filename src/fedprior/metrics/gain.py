"""What each client gained over a reference (usually Local), and how sure that is.

Two sources of doubt, two functions, one answer type; `Gain.over` says which doubt an interval speaks of.
Both are paired percentile bootstraps: the method and the reference are resampled together.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import unknown
from fedprior.metrics.client import HIGHER_IS_BETTER, METRICS

TIE = 1e-12  # a mean of differences this small is rounding
SIGNS = np.array([-1, 0, 1])


class Gain(NamedTuple):
    """Gain over the reference: positive is better. A client without test examples is nan and in no mean."""

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
    method_correct: Sequence[NDArray[np.bool_]],
    reference_correct: Sequence[NDArray[np.bool_]],
    *,
    names: Sequence[str] | None = None,
    seed: int = 0,
    draws: int = 2000,
    level: float = 0.95,
) -> Gain:
    """Gain in accuracy of N clients on the same test examples, resampled over those examples.

    Client i has d_j = method_correct[i][j] - reference_correct[i][j] ∈ {-1, 0, 1} for each of its n examples,
    and the gain Σ_j d_j / n. Resampling n examples with replacement changes only how often -1, 0 and 1 come
    up, and those counts are multinomial(n, (n₋, n₀, n₊)/n): drawing them is the exact bootstrap, and cheap.
    The mean's interval resamples inside every client and averages the client gains.

    The intervals say how sure we are *given these clients and this training run*; they hold no doubt about
    other seeds (see `seed_gain`) or other clients. Zero width means that method and reference never disagreed
    on this test set, not that they never would.

    Draws are keyed by seed and client name (the index, if no names are given), so a client's interval does
    not depend on who else is in the cohort.
    """
    names = [str(i) for i in range(len(method_correct))] if names is None else names
    if len(set(names)) != len(names):
        raise ValueError("client names must differ: equal names would share their random draws")
    counts = [_counts(m, r) for m, r in zip(method_correct, reference_correct, strict=True)]
    resampled = [_resample(c, _generator(seed, name), draws) for c, name in zip(counts, names, strict=True)]
    return _gain(
        clients=np.array([c @ SIGNS / c.sum() if c.any() else np.nan for c in counts], dtype=np.float64),
        resampled=np.array(resampled, dtype=np.float64).reshape(len(counts), draws),
        evaluated=np.array([c.any() for c in counts], dtype=np.bool_),
        level=level,
        over="test examples",
    )


def seed_gain(
    method: NDArray[np.float64],
    reference: NDArray[np.float64],
    *,
    metric: str = "accuracy",
    seed: int = 0,
    draws: int = 2000,
    level: float = 0.95,
) -> Gain:
    """Gain in any metric, values [S, N] of S ≥ 2 training seeds, resampled over the seeds.

    The gain is the mean over seeds of method - reference, negated where lower is better. A drawn seed brings
    all its clients along, because one run trained them together.

    With few seeds the intervals are too narrow, whatever the level, for they never leave the range of the S
    differences: that range covers the median difference with probability 1 - 2^(1-S), so 50 % for two seeds,
    75 % for three, 94 % for five.

    A client that is nan in both for every seed has no test set and is left out; any other nan is passed on to
    the mean. An infinite value leaves its client, and the mean, without an interval.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    if method.ndim != 2 or method.shape != reference.shape or len(method) < 2:
        raise ValueError(f"want two arrays [S, N] with S >= 2, got {method.shape} and {reference.shape}")
    S = len(method)
    with np.errstate(invalid="ignore"):  # inf - inf
        difference = method - reference if metric in HIGHER_IS_BETTER else reference - method  # [S, N]
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


def _counts(method: NDArray[np.bool_], reference: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How often d = -1, 0, 1, [3]."""
    if method.ndim != 1 or method.shape != reference.shape:
        raise ValueError(f"want the same test examples [n], got {method.shape} and {reference.shape}")
    return np.bincount(1 + method.astype(np.int64) - reference.astype(np.int64), minlength=3).astype(np.int64)


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, int.from_bytes(blake2b(name.encode(), digest_size=8).digest())])


def _resample(counts: NDArray[np.int64], rng: np.random.Generator, draws: int) -> NDArray[np.float64]:
    """Bootstrap draws of Σ d / n, [draws]."""
    n = counts.sum()
    if n == 0:
        return np.full(draws, np.nan)
    return np.asarray(rng.multinomial(n, counts / n, size=draws) @ SIGNS / n, dtype=np.float64)


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
