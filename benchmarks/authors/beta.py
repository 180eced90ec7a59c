"""Why the two β of pFedFDA differ from the authors': on the same features and folds, who is nearer the minimum?

    PYTHONPATH=benchmarks python benchmarks/authors/beta.py --pfedfda CLONE [--rounds 3]

Their code runs the task of `tasks.py`. What each client's search for β was given is searched again by ours, with their
folds, and by theirs with a hundredth of its tolerance. J is the cross-validated loss of Eq. 9, in double precision.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from authors.released import pfedfda
from authors.tasks import WORKS
from fedprior.bayes import adapt
from fedprior.bayes.lda import Sample, Statistics

GRID = torch.linspace(0, 1, 41, dtype=torch.float64)


class Search(NamedTuple):
    """What one search was given, and the β (means, covariance) that it found."""

    features: Tensor  # [N, d]
    labels: np.ndarray
    prior: Statistics
    log_prior: Tensor  # [1, K]
    found: Tensor  # [2]

    def loss(self) -> adapt.Loss:
        """J with their folds."""
        z, y = self.features.double()[None], torch.from_numpy(self.labels).long()[None]
        number = torch.zeros_like(y)
        for fold, (_, held_out) in enumerate(StratifiedKFold(2, shuffle=True, random_state=0).split(z[0], y[0])):
            number[0, held_out] = fold
        real = torch.ones_like(y, dtype=torch.bool)
        folds = adapt.Folds(number, real)
        return adapt.validation_loss(Sample(z, y, real), folds, 2, self.prior, self.log_prior, 1.0, 1e-4)


def watched(clone: Path) -> tuple[Any, list[Search], list[Tensor]]:
    """A round of their code; it leaves its searches and, for each, the β that a smaller tolerance leads to."""
    work = WORKS["pfedfda"][0]
    data = work.data()
    run, _ = pfedfda(clone, work.bound(data), data)
    client = sys.modules["servers.server_fedfda"].ClientFedFDA
    module = sys.modules["clients.client_fedfda"]
    theirs, minimize = client.solve_beta, module.torchmin.minimize
    searches: list[Search] = []
    patient: list[Tensor] = []

    def tightened(function: Any, x0: Tensor, **options: Any) -> Any:
        found = minimize(function, x0=x0, **{**options, "max_iter": 100, "options": {"gtol": 1e-5}})
        patient.append(found.x.detach().clip(0, 1).double())
        return minimize(function, x0=x0, **options)

    def solve_beta(self: Any, feats: Tensor, labels: np.ndarray, seed: int = 0) -> None:
        module.torchmin.minimize = tightened
        theirs(self, feats, labels, seed)
        prior = Statistics(self.global_means.double()[None].clone(), self.global_covariance.double()[None].clone())
        found = torch.tensor([float(self.means_beta[0]), float(self.cov_beta)], dtype=torch.float64)
        searches.append(Search(feats.clone(), labels.copy(), prior, self.priors.double().log()[None], found))

    client.solve_beta = solve_beta
    return run, searches, patient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfedfda", type=Path, required=True, help="clone of the authors' code")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    run, searches, patient = watched(options.pfedfda.resolve())
    for number in range(options.rounds):
        searches.clear()
        patient.clear()
        run(number)
        apart, closer, gaps, best = [], [], [], []
        for search, tight in zip(searches, patient, strict=True):
            loss = search.loss()
            ours = adapt.best_beta(loss, 1, separate=True)[0]
            at = [float(loss(beta[None])) for beta in (ours, search.found)]
            grid = min(float(loss(torch.stack([a, b])[None])) for a in GRID for b in GRID)
            apart.append((ours - search.found).abs())
            closer.append((ours - tight).abs())
            gaps.append(at[1] - at[0])
            best.append(at[0] - grid)
        print(f"round {number + 1}, {len(searches)} clients")
        for name, found in (("theirs", apart), ("theirs, tolerance 1e-5", closer)):
            mean = torch.stack(found).mean(0)
            print(f"  mean |β - {name}|: means {mean[0]:.4f}, covariance {mean[1]:.4f}")
        print(f"  J(theirs) - J(ours): {min(gaps):.1e} to {max(gaps):.1e}")
        print(f"  J(ours) - grid of 41 × 41: at most {max(best):.1e}")


if __name__ == "__main__":
    main()
