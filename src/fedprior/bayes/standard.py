"""Standardisation by sums: what each site says of its inputs, and what all of them say together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CONSTANT = 1e-20
"""Variance, relative to the squared mean, up to which an input is a constant: far less than single precision holds."""


class Standard(NamedTuple):
    """How inputs are standardised, and where their variance lies."""

    mean: Tensor  # [i]
    scale: Tensor  # [i]  1 / deviation; 0 for a constant
    within: Tensor  # [i]  share of the variance that lies within sites; 0 for a constant


def site_sums(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Each site's means and Σ (x - mean)², [C, i] both, of rows [C, N, i]; they and `real` [C, N] are 0 on padding."""
    mean = x.sum(1) / real.sum(1, keepdim=True).clamp(min=1)
    return mean, ((x - mean.unsqueeze(1)).square() * real.unsqueeze(-1)).sum(1)


def pooled(n: Tensor, mean: Tensor, square: Tensor) -> Standard:
    """Of the rows of all sites together, from their sums (Chan, Golub & LeVeque, 1979)."""
    rows, weights = n.sum().clamp(min=1), n.unsqueeze(1)
    centre = (weights * mean).sum(0) / rows
    within = square.sum(0)
    total = within + (weights * (mean - centre).square()).sum(0)
    constant = total <= CONSTANT * rows * centre.square()
    divisor = torch.where(constant, 1.0, total)
    scale = torch.where(constant, 0.0, (rows / divisor).sqrt())
    return Standard(centre, scale, torch.where(constant, 0.0, within / divisor))
