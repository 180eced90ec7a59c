"""Small convex programmes over the probability simplex."""

from __future__ import annotations

import torch
from torch import Tensor


def project(v: Tensor) -> Tensor:
    """The point of the simplex nearest to v [n] (Held, Wolfe & Crowder 1974): max(v - τ, 0) with sum one."""
    ordered = v.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    count = torch.arange(1, len(v) + 1, dtype=v.dtype)
    support = int((ordered - excess / count > 0).sum())
    return (v - excess[support - 1] / support).clamp(min=0)


def minimise_quadratic(P: Tensor, steps: int = 2000, tolerance: float = 1e-10) -> Tensor:
    """argmin over the simplex of a'Pa, for a symmetric P [n, n] made positive semi-definite; accelerated projection."""
    values, vectors = torch.linalg.eigh((P + P.T) / 2)
    values = values.clamp(min=0)
    P = vectors * values @ vectors.T
    lipschitz = 2 * float(values[-1])
    a = torch.full((len(P),), 1 / len(P), dtype=P.dtype)
    if lipschitz == 0:
        return a
    y, t = a, 1.0
    for _ in range(steps):
        new = project(y - 2 * P @ y / lipschitz)
        t_new = (1 + (1 + 4 * t * t) ** 0.5) / 2
        y = new + (t - 1) / t_new * (new - a)
        if float((new - y).dot(new - a)) > 0:  # restart where momentum points uphill
            y, t_new = new, 1.0
        moved = float((new - a).abs().max())
        a, t = new, t_new
        if moved < tolerance:
            break
    return a
