"""FedMAP's σ² for tables, chosen by validation NLL on tables that no reported number comes from.

    python experiments/tables/choose.py --out choice.jsonl
    python experiments/tables/choose.py --out choice.jsonl --show

Generated tables of several sizes with seeds that run.py never uses, and scikit-learn's breast cancer table, dealt to
sites by slices of one column or by a Dirichlet draw for each class. Test rows are never looked at. One line of JSON per
table, seed and σ²; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from made import districts, hospitals, regions, schools
from sklearn.datasets import load_breast_cancer

import fedprior

VARIANCES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS = (101, 102, 103)
SITES = 6


def sliced(seed: int) -> pd.DataFrame:
    """Breast cancer by slices of a column, another one for each seed."""
    frame, rng = _breast_cancer(), np.random.default_rng(seed)
    along = frame[frame.columns[rng.integers(30)]]
    return frame.assign(site=along.rank(method="first").sub(1).mul(SITES).floordiv(len(frame)).astype(int))


def drawn(seed: int) -> pd.DataFrame:
    """Breast cancer with every class dealt to sites by Dirichlet(0.5)."""
    frame, rng = _breast_cancer(), np.random.default_rng(seed)
    site = np.zeros(len(frame), dtype=int)
    for level in ("no", "yes"):
        rows = np.flatnonzero(frame["outcome"] == level)
        site[rows] = rng.choice(SITES, len(rows), p=rng.dirichlet(np.full(SITES, 0.5)))
    return frame.assign(site=site)


def _breast_cancer() -> pd.DataFrame:
    given = load_breast_cancer(as_frame=True)
    return given.data.assign(outcome=np.where(given.target == 0, "yes", "no"))


TABLES: dict[str, Callable[[int], pd.DataFrame]] = {
    "hospitals, 8 sites": hospitals,
    "hospitals, 5 sites, 3 inputs": lambda seed: hospitals(seed, sites=5, inputs=3),
    "hospitals, 20 sites, 12 inputs": lambda seed: hospitals(seed, sites=20, inputs=12),
    "districts": districts,
    "schools, 20 sites": lambda seed: schools(seed, sites=20, number=False),
    "regions": lambda seed: regions(seed, number=False),
    "breast cancer, slices": sliced,
    "breast cancer, Dirichlet": drawn,
}


def score(frame: pd.DataFrame, variance: float, seed: int) -> float:
    """FedMAP's validation NLL, a mean over sites and splits."""
    methods = {"fedmap": {"sigma2": variance}}
    found = fedprior.assess(frame, site="site", target="outcome", methods=methods, workers=1, seed=seed)
    return float(found.validation["fedmap"])


def show(lines: pd.DataFrame) -> None:
    """Means over seeds, and each σ²'s paired difference to the best in the mean over tables."""
    table = lines.pivot_table(index=["table", "seed"], columns="sigma2", values="nll")
    means = table.groupby("table", sort=False).mean()
    means.loc["mean"] = means.mean()
    print(means.round(4).to_string())
    best = means.loc["mean"].idxmin()
    for variance in table:
        gap = table[variance] - table[best]
        print(f"{variance:g} - {best:g}: {gap.mean():+.4f}, standard error {gap.std() / len(gap) ** 0.5:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--show", action="store_true", help="show what is there, and run nothing")
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.show:
        show(pd.DataFrame(lines))
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done = {(line["table"], line["seed"], line["sigma2"]) for line in lines}
    wanted = [(name, seed, variance) for seed in SEEDS for name in TABLES for variance in VARIANCES]
    for name, seed, variance in wanted:
        if (name, seed, variance) not in done:
            nll = score(TABLES[name](seed), variance, seed)
            with given.out.open("a") as file:
                file.write(json.dumps({"table": name, "seed": seed, "sigma2": variance, "nll": nll}) + "\n")


if __name__ == "__main__":
    main()
