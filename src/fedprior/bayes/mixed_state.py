"""What the server, the sites and their messages hold in a mixed model of D coefficients of i inputs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedprior.bayes.mixed import Message
from fedprior.bayes.scoring import Point, Trial


class Server(NamedTuple):
    """The model, and the last message of every site."""

    ready: Tensor  # [] bool: the sites' sums have been added up
    mean: Tensor  # [i]  of the inputs
    scale: Tensor  # [i]  1 / deviation; 0 for a constant
    random: Tensor  # [D]  1 where a coefficient may differ by site
    point: Point
    trial: Trial
    uncertainty: Tensor  # [D(D+1)/2]  C
    variances: Tensor  # [p]  of the entries of S: how well Σ is known
    sway: Tensor  # [D]  the standard deviation of C's diagonal
    notes: Message  # [N, ...]  as `scoring.anchored` has them
    n: Tensor  # [N]  rows
    log_z: Tensor  # []  Σ log Z, the log-likelihood
    age: Tensor  # [N] int64: rounds since the last message; -1: none yet
    calm: Tensor  # [] int64: rounds in a row whose steps were too small to matter


class Down(NamedTuple):
    """The scaling and the prior."""

    ready: Tensor
    mean: Tensor
    scale: Tensor
    random: Tensor
    gamma: Tensor
    covariance: Tensor
    log_noise: Tensor
    uncertainty: Tensor
    variances: Tensor
    sway: Tensor


class Up(NamedTuple):
    """Sums over a site's rows: of its inputs in the first round, of the model's derivatives in all others."""

    n: Tensor  # [C]
    mean: Tensor  # [C, i]
    square: Tensor  # [C, i]  Σ (x - mean)²
    message: Message


class Personal(NamedTuple):
    """A linear model with its uncertainty: a formula that needs nothing else."""

    mean: Tensor  # [C, i]
    scale: Tensor  # [C, i]
    theta: Tensor  # [C, D]
    covariance: Tensor  # [C, D(D+1)/2]  of θ, to predict with: Σ is taken as known
    error: Tensor  # [C, D]  the standard error of θ
    deviation: Tensor  # [C, D]  θ - γ
    deviation_error: Tensor  # [C, D]
    freedom: Tensor  # [C, D]  degrees of freedom of θ's
    deviation_freedom: Tensor  # [C, D]  and of θ - γ's
    log_noise: Tensor  # [C]
