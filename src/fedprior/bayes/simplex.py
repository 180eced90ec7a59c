"""A quadratic programme over the probability simplex."""

from __future__ import annotations

import torch
from torch import Tensor


def minimise_quadratic(P: Tensor) -> Tensor:
    """argmin over the simplex of a'Pa, for a symmetric P [n, n] whose negative eigenvalues are set to zero.

    Exact, by non-negative least squares: on the ray s·a (a on the simplex, q = a'Pa) the function s² q + (s - 1)² has
    its minimum q / (1 + q), which grows with q. So the minimiser over a ≥ 0 of a'Pa + (Σa - 1)² points to the answer.
    """
    from scipy.optimize import nnls  # takes half a second to load

    values, vectors = torch.linalg.eigh((P + P.T) / 2)
    root = (vectors * values.clamp(min=0).sqrt()).T  # root' root = P
    scale = float(root.square().sum(0).min().sqrt())  # a'Pa is at most the smallest diagonal entry: scale that to one
    rows = torch.cat([root / scale if scale > 0 else root, torch.ones(1, len(P), dtype=P.dtype)])
    target = torch.zeros(len(rows), dtype=P.dtype)
    target[-1] = 1
    a = torch.from_numpy(nnls(rows.numpy(), target.numpy(), maxiter=30 * len(P))[0])
    return a / a.sum()
