"""How sure predictions are, whatever is true: entropy and confidence."""

from __future__ import annotations

import math

import numpy as np

from fedprior.data.target import Classes, Count, Target
from fedprior.metrics.metric import Predictive


def certainty(target: Target, predictive: Predictive) -> dict[str, float]:
    """Means over examples [n, P]; nan without examples.

    The entropy is that of the predictive distribution in nats: of classes -Σ p log p, of a normal ½ log(2πe σ²);
    that of a count has no closed form and is left out.
    """
    exact = predictive.astype(np.float64)
    if isinstance(target, Classes):
        p = np.exp(exact)
        entropy = -np.where(p > 0, p * np.where(p > 0, exact, 0.0), 0.0).sum(1)
        return {"confidence": _mean(p.max(1, initial=0.0)), "entropy": _mean(entropy)}
    if isinstance(target, Count):
        return {}
    return {"entropy": _mean(0.5 * (math.log(2 * math.pi * math.e) + exact[:, 1]))}


def _mean(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(values.mean()) if len(values) else math.nan
