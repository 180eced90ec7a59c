"""The figures of one federation and seed, with the controls that are computed from predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from run import federation, prediction_file

from fedprior.bayes import mixing
from fedprior.bayes.mixing import Family
from fedprior.files import read_tensors
from fedprior.metrics import evaluate, metrics_of
from fedprior.models.likelihood import Categorical

Each = list[NDArray[Any]]  # log-probabilities [n, K] of every site
TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0)
METRICS = ("accuracy", "nll", "ece")
HALVES = 20
POINT = 0.01
"""A site is below if its accuracy is by more than this under the better of Local and FedAvg-FT."""


class Cell:
    """A federation with a seed: labels, and the predictions of every row that is finished."""

    def __init__(self, folder: Path, name: str, seed: int, rows: Iterable[str]) -> None:
        self.folder, self.name, self.seed, self.rows = folder, name, seed, set(rows)
        self.data = federation(name, seed)
        self.labels = {split: self.data.labels(split) for split in ("validation", "test")}

    def predictions(self, row: str, split: str) -> Each:
        """As `run.py` wrote them."""
        tensors, _ = read_tensors(prediction_file(self.folder, self.name, self.seed, row))
        return [tensors[f"{split}/{k}"].numpy().astype(np.float64) for k in range(len(self.data))]

    def scores(self, found: Each) -> dict[str, list[float | None]]:
        """Every site's metrics on test."""
        known = metrics_of(self.data.target)
        values = [evaluate(known, p, y) for p, y in zip(found, self.labels["test"], strict=True)]
        return {metric: [v.get(metric) for v in values] for metric in METRICS}


def mean_log(*each: Each) -> Each:
    """Probabilities are averaged."""
    return [np.logaddexp.reduce(parts, 0) - np.log(len(parts)) for parts in map(list, zip(*each, strict=True))]


def pick(cell: Cell) -> Each:
    """At every site the better of Local and FedAvg-FT by validation NLL; Local where there are no rows."""
    chosen = []
    both = [(cell.predictions(row, "validation"), cell.predictions(row, "test")) for row in ("Local", "FedAvg-FT")]
    for k, y in enumerate(cell.labels["validation"]):
        losses = [-val[k][np.arange(len(y)), y].sum() for val, _ in both]
        chosen.append(both[int(np.argmin(losses))][1][k])
    return chosen


def pick_pooled(cell: Cell) -> Each:
    """Members {Local, FedAvg-FT} × T under the prior of `stack`, run to its fixed point; the most probable one."""
    family, likelihood = Family(2, 1, TEMPERATURES), Categorical(cell.predictions("Local", "test")[0].shape[1])
    val, test = ([cell.predictions(row, split) for row in ("Local", "FedAvg-FT")] for split in ("validation", "test"))
    scores = []
    for k, y in enumerate(cell.labels["validation"]):
        each = torch.from_numpy(np.stack([val[0][k], val[1][k]])).unsqueeze(1)
        scores.append(
            family.score(likelihood, each, torch.from_numpy(y)[None], torch.ones(1, len(y), dtype=torch.bool))
        )
    score, pool = torch.cat(scores), mixing.start(family.size)
    has = torch.tensor([float(len(y) > 0) for y in cell.labels["validation"]], dtype=torch.float64)
    for _ in range(50):
        rho = mixing.posterior(score, pool.pi.expand(len(score), -1))
        pool = mixing.heard(pool, score, rho, has, len(score))
    best = torch.nn.functional.one_hot(rho.argmax(1), family.size).double()
    shares = family.shares(best)
    return [
        family.predictive(likelihood, torch.from_numpy(np.stack([a, b])).unsqueeze(1), shares[k : k + 1])[0].numpy()
        for k, (a, b) in enumerate(zip(*test, strict=True))
    ]


def hindsight(cell: Cell) -> Each:
    """The better of Local+CAL and FedAvg-FT+CAL by test NLL: nobody can have it."""
    both = [cell.predictions(row, "test") for row in ("Local+CAL", "FedAvg-FT+CAL")]
    losses = [np.nanmean(np.array(cell.scores(found)["nll"], dtype=float)) for found in both]
    return both[int(np.argmin(losses))]


CONTROLS: dict[str, tuple[tuple[str, ...], Callable[[Cell], Each]]] = {
    "pick per site": (("Local", "FedAvg-FT"), pick),
    "pick pooled, with T": (("Local", "FedAvg-FT"), pick_pooled),
    "equal weights": (
        ("Local", "FedAvg-FT"),
        lambda cell: mean_log(cell.predictions("Local", "test"), cell.predictions("FedAvg-FT", "test")),
    ),
    "three FedAvg-FT": (
        ("FedAvg-FT", "FedAvg-FT, second", "FedAvg-FT, third"),
        lambda cell: mean_log(
            *(cell.predictions(r, "test") for r in ("FedAvg-FT", "FedAvg-FT, second", "FedAvg-FT, third"))
        ),
    ),
    "hindsight": (("Local+CAL", "FedAvg-FT+CAL"), hindsight),
}


def floor(cell: Cell) -> float:
    """The share of sites below for a rule that picks on half of the test rows, judged on the others."""
    rng, found = np.random.default_rng(cell.seed), []
    right = [
        [p.argmax(1) == y for p, y in zip(cell.predictions(row, "test"), cell.labels["test"], strict=True)]
        for row in ("Local", "FedAvg-FT")
    ]
    for _ in range(HALVES):
        for a, b in zip(*right, strict=True):
            order = rng.permutation(len(a))
            one, two = order[: len(a) // 2], order[len(a) // 2 :]
            if len(one) and len(two):
                chosen = a if a[one].mean() >= b[one].mean() else b
                found.append(chosen[two].mean() < max(a[two].mean(), b[two].mean()) - POINT)
    return float(np.mean(found))


def judged(cell: Cell) -> dict[str, dict[str, float]]:
    """Row -> its figures in one cell."""
    found = {row: cell.predictions(row, "test") for row in cell.rows}
    found |= {row: make(cell) for row, (needs, make) in CONTROLS.items() if set(needs) <= cell.rows}
    scores = {row: cell.scores(each) for row, each in found.items()}
    if {"Local", "FedAvg-FT"} <= scores.keys():
        both = np.array([scores[row]["accuracy"] for row in ("Local", "FedAvg-FT")], dtype=float).max(0)
    figures: dict[str, dict[str, float]] = {}
    for row, values in scores.items():
        numbers = {metric: np.array(v, dtype=float) for metric, v in values.items()}
        figures[row] = {metric: float(np.nanmean(v)) for metric, v in numbers.items()}
        worst = np.sort(numbers["accuracy"][~np.isnan(numbers["accuracy"])])
        figures[row]["worst"] = float(worst[: max(1, len(worst) // 10)].mean())
        if {"Local", "FedAvg-FT"} <= scores.keys():
            figures[row]["below"] = float((numbers["accuracy"] < both - POINT).mean())
    if {"Local", "FedAvg-FT"} <= scores.keys():
        figures["noise floor"] = {"below": floor(cell)}
    return figures
