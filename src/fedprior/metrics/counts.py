"""Metrics of predicted counts, from means and log-variances [n, 2] and counts [n]: those that need a distribution.

It is the negative binomial one with these moments, or Poisson's where they are equal (`models.likelihood.Counts`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaln, pdtr

from fedprior.metrics.metric import Labels, Metric, Predictive, counts

POISSON = 1e-4
"""Excess of a variance over its mean, relative to it, below which a count is taken as Poisson's."""
Floats = NDArray[np.float64]


def _parts(predictive: Predictive) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """The mean m, r = m² / (v - m), and which are Poisson's, [n] each."""
    m = np.maximum(predictive[:, 0], np.finfo(np.float64).tiny)
    excess = np.maximum(np.expm1(predictive[:, 1] - np.log(m)), 0.0)
    return m, m / np.maximum(excess, POISSON), excess < POISSON


def _surprises(predictive: Predictive, labels: Labels) -> Floats:
    """-log p(y)."""
    m, r, plain = _parts(predictive)
    poisson = labels * np.log(m) - m
    binomial = gammaln(labels + r) - gammaln(r) - r * np.log1p(m / r) + labels * (np.log(m) - np.log(m + r))
    return np.asarray(gammaln(labels + 1) - np.where(plain, poisson, binomial))


def _up_to(predictive: Predictive, labels: Labels) -> Floats:
    """The probability of at most so many; 0 for -1."""
    m, r, plain = _parts(predictive)
    k = np.maximum(labels, 0)
    found = np.where(plain, pdtr(k, m), betainc(r, k + 1.0, r / (r + m)))
    return np.where(labels < 0, 0.0, found)


def inside(level: float, predictive: Predictive, labels: Labels) -> Floats:
    """The share of each count's own probability that lies inside the central interval of a level, [n].

    A count fills the stretch from P(fewer) to P(at most as many). On average, a calibrated model's counts are inside by
    as much as the level says (Czado, Gneiting & Held, Biometrics 65, 2009); whole counts would be inside more often.
    """
    low, high = _up_to(predictive, labels - 1), _up_to(predictive, labels)
    edges = (1 - level) / 2, (1 + level) / 2
    overlap = np.clip(high, *edges) - np.clip(low, *edges)
    width = high - low
    return np.where(width > 0, overlap / np.where(width > 0, width, 1.0), 0.0)


def quantiles(mean: Floats, deviation: Floats, share: float) -> Floats:
    """The smallest counts that are not exceeded with a probability of at least `share`, [n]."""
    from scipy.stats import nbinom, poisson  # takes half a second to load

    m, r, plain = _parts(np.stack([mean, 2 * np.log(deviation)], 1).astype(np.float64))
    return np.asarray(np.where(plain, poisson.ppf(share, m), nbinom.ppf(share, r, r / (r + m))))


def nll(predictive: Predictive, labels: Labels) -> float:
    """Negative log-probability in nats."""
    return float(_surprises(predictive, labels).mean())


def coverage50(predictive: Predictive, labels: Labels) -> float:
    """Share of the counts' probability inside their central 50 % interval."""
    return float(inside(0.5, predictive, labels).mean())


def coverage90(predictive: Predictive, labels: Labels) -> float:
    """Share of the counts' probability inside their central 90 % interval."""
    return float(inside(0.9, predictive, labels).mean())


METRICS = (
    Metric("nll", "NLL", "nats", "lower", counts, nll, _surprises),
    Metric("coverage50", "50 % coverage", "%", 0.5, counts, coverage50),
    Metric("coverage90", "90 % coverage", "%", 0.9, counts, coverage90),
)
