"""FedMAP's synthetic scenarios (Tables 1, 3 and 4 of arXiv 2405.19000), beside Individual at the same budget.

    python papers/fedmap/synthetic.py --seeds 3 --rounds 100 --workers 2 --out papers/fedmap/results

About half an hour on two cores; cells that the JSON file in `--out` has already are not run again. Balanced test
accuracy after the last round; nothing is selected on test data. Every
method of a seed sees the same data, the same initial weights and the same number of local epochs. The paper's columns
are averages of its rows; it reports validation accuracy, its budget and its prior variance are not stated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedprior
from fedprior.data.sets.synthetic import RECIPE
from fedprior.engine import AnyMethod
from fedprior.files import write_text
from fedprior.methods import build

TRAIN = fedprior.Train(**RECIPE["train"])
METHODS: dict[str, AnyMethod] = {
    "Individual": build("local"),
    "Individual, weight decay 1/150": build("local", train=replace(TRAIN, weight_decay=1 / 150)),
    "FedMAP": build("fedmap"),
    "FedMAP, ω = sum (Eq. 8)": build("fedmap", {"omega": "sum"}),
    "FedMAP, ω = example counts (released code)": build("fedmap", {"omega": "num_examples"}),
    "FedMAP, learned variance": build("fedmap", {"prior": "diagonal"}),
    "FedAvg": build("fedavg"),
    "FedAvg-FT": build("fedavg_ft", {"ft_epochs": 5}),
    "FedProx, μ = 0.01": build("fedprox"),
}
PAPER = {  # mean of rows 1-5, 6-10, all
    "label": {"Individual": (86.76, 61.01, 73.89), "FedMAP": (88.02, 72.78, 80.40), "FedAvg": (54.54, 51.31, 52.92)},
    "feature": {"Individual": (None, None, 83.80), "FedMAP": (None, None, 86.27), "FedAvg": (None, None, 63.18)},
    "quantity": {"Individual": (84.36, 64.18, 74.27), "FedMAP": (86.03, 70.44, 78.24), "FedAvg": (67.87, 55.21, 61.54)},
}


def measure(skew: str, seed: int, name: str, rounds: int) -> dict[str, Any]:
    began = time.perf_counter()
    federation = fedprior.data.load("synthetic", skew=skew, seed=seed)
    result = fedprior.run(METHODS[name], federation, rounds=rounds, seed=seed)
    balanced = 100 * result.clients["balanced_accuracy"].to_numpy()
    curve = [e["personal"]["test"]["balanced_accuracy"]["mean"] for e in result.journal.events if e["kind"] != "round"]
    return {
        "skew": skew,
        "seed": seed,
        "method": name,
        "balanced": balanced.tolist(),
        "groups": [float(balanced[:5].mean()), float(balanced[5:].mean()), float(balanced.mean())],
        "curve": curve,
        "seconds": time.perf_counter() - began,
    }


def table(rows: list[dict[str, Any]], skew: str) -> list[str]:
    lines = [
        "| method | clients 1-5 | clients 6-10 | all (± std over seeds) | paper, mean of its rows |",
        "|---|---|---|---|---|",
    ]
    for name in METHODS:
        groups = np.array([r["groups"] for r in rows if r["skew"] == skew and r["method"] == name])
        if not len(groups):
            continue
        spread = f" ± {groups[:, 2].std(ddof=1):.1f}" if len(groups) > 1 else ""
        paper = PAPER[skew].get(name, (None, None, None))[2]
        first, second, every = groups.mean(0)
        printed = "–" if paper is None else f"{paper:.1f}"
        lines.append(f"| {name} | {first:.1f} | {second:.1f} | {every:.1f}{spread} | {printed} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("papers/fedmap/results"))
    options = parser.parse_args()
    grid = list(itertools.product(PAPER, range(options.seeds), METHODS))
    done_before = options.out / "synthetic.json"
    rows: list[dict[str, Any]] = json.loads(done_before.read_text()) if done_before.exists() else []
    known = {(r["skew"], r["seed"], r["method"]) for r in rows}
    grid = [cell for cell in grid if cell not in known]
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = [pool.submit(measure, *cell, options.rounds) for cell in grid]
        for done, job in enumerate(jobs, 1):
            row = job.result()
            rows.append(row)
            print(
                f"{done}/{len(jobs)}  {row['skew']:<8} seed {row['seed']}  {row['method']:<44} {row['groups'][2]:.1f}",
                flush=True,
            )
            write_text(options.out / "synthetic.json", json.dumps(rows, indent=1) + "\n")
    lines = [f"{options.seeds} seeds, {options.rounds} rounds of 10 local epochs, balanced test accuracy in %.", ""]
    for skew in PAPER:
        lines += [f"**{skew} skew**", "", *table(rows, skew), ""]
    write_text(options.out / "synthetic.md", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
