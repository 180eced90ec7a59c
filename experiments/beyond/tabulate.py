"""The tables of PROTOCOL.md from the cells of `run.py`, with the controls that are computed from predictions.

FEDPRIOR_DATA=STORE python experiments/beyond/tabulate.py FOLDER [--groups kept,added] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from references import REFERENCES
from run import PLACES, ROWS, federation, finished, prediction_file

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


def gathered(folder: Path) -> dict[str, dict[int, dict[str, dict[str, float]]]]:
    """Federation -> seed -> row -> figures, with cost and bytes of the rows that were run."""
    cells: dict[tuple[str, int], set[str]] = defaultdict(set)
    for name, seed, row in finished(folder):
        cells[name, seed].add(row)
    found: dict[str, dict[int, dict[str, dict[str, float]]]] = defaultdict(dict)
    for name, seed in sorted(cells, key=lambda c: (list(PLACES).index(c[0]), c[1])):
        found[name][seed] = judged(Cell(folder, name, seed, cells[name, seed]))
    for path in folder.glob("cells-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            figures = found[said["federation"]].get(said["seed"], {}).get(said["row"])
            if figures is None:
                continue  # written since
            figures["cpu"] = said["cpu_seconds"]
            if "bytes" in said:
                figures["bytes"] = sum(said["bytes"].values())
    return found


def over(found: dict[str, Any], names: list[str], row: str, metric: str) -> dict[str, float]:
    """Federation -> a row's mean over seeds; those in which it has none are left out."""
    means = {}
    for name in names:
        values = [figures[row][metric] for figures in found[name].values() if metric in figures.get(row, {})]
        if values:
            means[name] = float(np.mean(values))
    return means


def difference(found: dict[str, Any], names: list[str], a: str, b: str, metric: str) -> tuple[float, float, int]:
    """a - b, paired by seed, then averaged over federations: mean, standard error and number of federations."""
    gaps = []
    for name in names:
        own = [
            f[a][metric] - f[b][metric]
            for f in found[name].values()
            if metric in f.get(a, {}) and metric in f.get(b, {})
        ]
        if own:
            gaps.append(np.mean(own))
    error = float(np.std(gaps, ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else float("nan")
    return (float(np.mean(gaps)) if gaps else float("nan")), error, len(gaps)


def table(found: dict[str, Any], names: list[str]) -> list[str]:
    """One line per row: means over federations that have it."""
    lines = ["| row | federations | accuracy % | NLL | ECE % | worst tenth % | below % | cost |", "|" + "---|" * 8]
    for row in [*ROWS, *CONTROLS, *REFERENCES, "noise floor"]:
        means = {m: list(over(found, names, row, m).values()) for m in (*METRICS, "worst", "below")}
        if not any(means.values()):
            continue
        cost = [
            float(
                np.mean(
                    [
                        f[row]["cpu"] / f["FedAvg"]["cpu"]
                        for f in found[n].values()
                        if "cpu" in f.get(row, {}) and "FedAvg" in f
                    ]
                    or [np.nan]
                )
            )
            for n in names
        ]
        shown = [
            f"{scale * np.mean(means[m]):.{digits}f}" if means[m] else ""
            for m, scale, digits in (
                ("accuracy", 100, 2),
                ("nll", 1, 3),
                ("ece", 100, 1),
                ("worst", 100, 1),
                ("below", 100, 0),
            )
        ]
        ratio = "" if np.isnan(cost).all() else f"{np.nanmean(cost):.1f}"
        lines.append(f"| {row} | {len(means['below'])} | {' | '.join(shown)} | {ratio} |")
    return lines


Claim = tuple[
    str, str, tuple[str, ...], tuple[str, ...], str
]  # its title, a row, what it is compared with, metrics, where
TABLES = [name for name, place in PLACES.items() if place.table]
CLAIMS: tuple[Claim, ...] = (
    (
        "1: `stack`, over the federations that were kept aside",
        "stack",
        ("Local", "FedAvg-FT", "Local+CAL", "FedAvg-FT+CAL", *CONTROLS),
        ("accuracy", "nll", "below"),
        "kept",
    ),
    ("2: a third expert", "stack + pFedVEM", ("stack", "pFedVEM"), ("accuracy", "nll"), "kept"),
    ("2: a fourth expert", "stack + pFedVEM + pFedFDA", ("stack + pFedVEM",), ("accuracy", "nll"), "kept"),
    (
        "3: `mixed`, over five tables",
        "mixed",
        ("Local", "FedAvg-FT", "FedMAP", "pFedFDA", "stack", "stack + mixed", *REFERENCES),
        ("accuracy", "nll"),
        "tables",
    ),
    ("4: blind twins", "stack, blind twins", ("stack",), ("accuracy", "nll"), "kept"),
    (
        "4: blind twins, with pFedVEM",
        "stack + pFedVEM, blind twins",
        ("stack + pFedVEM",),
        ("accuracy", "nll"),
        "kept",
    ),
)
LOWER = ("nll", "below")
"""Metrics of which less is better."""


def outcome(gap: float, error: float, metric: str) -> str:
    """A win is a difference of more than two standard errors."""
    if not abs(gap) > 2 * error:
        return "level"
    return "win" if (gap < 0) == (metric in LOWER) else "loss"


def claims(found: dict[str, Any]) -> list[str]:
    """Every comparison that the protocol names."""
    lines = []
    for title, row, others, metrics, where in CLAIMS:
        names = [n for n in found if (n in TABLES if where == "tables" else PLACES[n].group == where)]
        lines += [f"\n**Claim {title}**\n", f"| {row} minus | {' | '.join(metrics)} | federations |"]
        lines.append("|" + "---|" * (len(metrics) + 2))
        for other in others:
            gaps = {metric: difference(found, names, row, other, metric) for metric in metrics}
            told = [f"{g:+.4f} ± {e:.4f} {outcome(g, e, m)}" for m, (g, e, _) in gaps.items()]
            lines.append(f"| {other} | {' | '.join(told)} | {next(iter(gaps.values()))[2]} |")
    return lines


def by_federation(found: dict[str, Any], rows: list[str], metric: str) -> list[str]:
    """One line per federation."""
    lines = [f"| {metric} | {' | '.join(rows)} |", "|" + "---|" * (len(rows) + 1)]
    for name, seeds in found.items():
        means = [over(found, [name], row, metric).get(name) for row in rows]
        told = ["" if mean is None else f"{mean:.3f}" for mean in means]
        lines.append(f"| {name} ({len(seeds)}) | {' | '.join(told)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", default="kept")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = gathered(options.folder)
    names = [name for name in found if PLACES[name].group in options.groups.split(",")]
    print(f"{', '.join(f'{name} ({len(found[name])} seeds)' for name in names)}\n")
    print("\n".join(table(found, names)))
    print("\n".join(claims(found)), "\n")
    rows = ["Local", "FedAvg-FT", "pFedVEM", "pFedFDA", "FedMAP", "mixed", "stack", "stack + pFedVEM", "hindsight"]
    for metric in ("nll", "accuracy"):
        print("\n".join(by_federation(found, rows, metric)), "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
