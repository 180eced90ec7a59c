"""How much weight a client gives its own statistics: β by cross-validation, for a stack of clients at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedprior.bayes import lda
from fedprior.bayes.lda import Sample, Statistics
from fedprior.rng import Keys

Loss = Callable[[Tensor], Tensor]
"""β [C, 2] -> validation loss [C]."""


class Folds(NamedTuple):
    """Which fold every row belongs to, and which rows take part."""

    number: Tensor  # [C, N]
    usable: Tensor  # [C, N] bool


def deal(sample: Sample, group: Tensor, classes: int, folds: int, keys: Keys) -> Folds:
    """Folds by class, with all copies of an example (rows of one `group` [C, N]) in the same fold.

    Within a class the examples are assigned in a random order; classes with fewer examples than folds are left out.
    """
    number, usable = torch.zeros_like(sample.y), torch.zeros_like(sample.real)
    for c, key in enumerate(keys):
        gen = key.generator()
        for label in range(classes):
            rows = (sample.real[c] & (sample.y[c] == label)).nonzero().squeeze(1)
            examples, place = torch.unique(group[c, rows], return_inverse=True)
            if len(examples) >= folds:
                dealt = torch.randperm(len(examples), generator=gen) % folds
                number[c, rows], usable[c, rows] = dealt[place], True
    return Folds(number, usable)


class Split(NamedTuple):
    """The held-out rows of one fold and the statistics of the others, in the basis where both covariances are diagonal.

    S(β) = (1-β) S_prior + β S_own is then 1 - β + β λ, so that a head for another β needs no factorisation.
    """

    held_out: Sample
    own: Tensor  # [C, K, d]  means
    prior: Tensor  # [C, K, d]
    eigenvalues: Tensor  # [C, d]  λ

    def loss(self, beta: Tensor, log_prior: Tensor) -> Tensor:
        """Mean loss on the held-out rows, [C]."""
        mean = torch.lerp(self.prior, self.own, beta[:, 0, None, None])
        weight = mean / torch.lerp(torch.ones_like(self.eigenvalues), self.eigenvalues, beta[:, 1, None]).unsqueeze(1)
        return lda.linear_loss(weight, log_prior - 0.5 * (mean * weight).sum(2), self.held_out)


def validation_loss(
    sample: Sample, folds: Folds, count: int, prior: Statistics, log_prior: Tensor, ridge: float, shrinkage: float
) -> Loss:
    """J(β) = Σ_f mean loss on fold f of the head made from the other folds' statistics and the prior's."""
    splits = []
    for k in range(count):
        own = lda.statistics(sample._replace(real=folds.usable & (folds.number != k)), prior, ridge)
        held_out = lda.compact(sample._replace(real=folds.usable & (folds.number == k)))
        ends = lda.shrunk(prior.covariance, shrinkage), lda.shrunk(own.covariance, shrinkage)
        basis, eigenvalues = lda.common_basis(*ends)
        moved = held_out._replace(z=held_out.z @ basis)
        splits.append(Split(moved, own.mean @ basis, prior.mean @ basis, eigenvalues))

    def loss(beta: Tensor) -> Tensor:
        return torch.stack([split.loss(beta, log_prior) for split in splits]).sum(0)

    return loss


def best_beta(loss: Loss, clients: int, *, separate: bool) -> Tensor:
    """The minimiser over [0, 1], one β for means and covariance or one for each, [C, 2].

    Separate ones are found one after the other, twice, starting from the best common value.
    """
    common = lda.minimise(lambda b: loss(torch.stack([b, b], 1)), clients)
    beta = torch.stack([common, common], 1)
    for column in (0, 1, 0, 1) if separate else ():
        beta = _improve(loss, beta, column)
    return beta


def _improve(loss: Loss, beta: Tensor, column: int) -> Tensor:
    def changed(values: Tensor) -> Tensor:
        other = beta.clone()
        other[:, column] = values
        return other

    candidate = changed(lda.minimise(lambda b: loss(changed(b)), len(beta)))
    return torch.where((loss(candidate) < loss(beta))[:, None], candidate, beta)
