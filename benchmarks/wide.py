"""What `mixed` costs on a wide table: 20 sites of 60 rows, two classes, 30 rounds.

python benchmarks/wide.py [--columns 300,500]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from fedprior.data.federation import Federation, from_arrays
from fedprior.experiment import Settings
from fedprior.experiment.config import Setup
from fedprior.experiment.loop import execute
from fedprior.methods import build

SITES, ROWS, ROUNDS = 20, 60, 30


def table(columns: int) -> Federation:
    """A logistic model with an intercept per site."""
    rng = np.random.default_rng(0)
    gamma, sites = 2 * rng.normal(size=columns) / np.sqrt(columns), {}
    for k in range(SITES):
        x = rng.normal(size=(ROWS, columns))
        logits = rng.normal() + x @ gamma
        sites[f"site-{k:02d}"] = (x, (rng.random(ROWS) < 1 / (1 + np.exp(-logits))).astype(int))
    return from_arrays(sites, classes=2, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", default="300,500")
    torch.set_num_threads(1)
    for columns in map(int, parser.parse_args().columns.split(",")):
        settings = Settings(rounds=ROUNDS, seed=0, workers=1)
        setup = Setup.of(build("mixed", {}), table(columns), {"name": "softmax"}, settings)
        began = time.process_time()
        execute(setup.method, setup.federation, setup.settings, model=setup.model)
        print(f"{columns} columns: {time.process_time() - began:.1f} s of processor time")


if __name__ == "__main__":
    main()
