"""Digits, 20 clients: the five methods beside Local, FedAvg, FedAvg-FT, pFedMe and FedBPS's random mask.

    python experiments/digits.py --seeds 5 --workers 2 --out docs/results

About three quarters of an hour on two cores. For each partition, every method gets the same small search: six settings,
trained on one tuning seed that is not used again, chosen by mean validation accuracy of the personal models (then by
validation NLL). The chosen setting is then trained on `--seeds` other seeds, each with its own partition, weights and
batches. Reported: personal models on the clients' test splits after the last round, mean ± standard error over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import fedprior
from fedprior.files import write_text
from fedprior.methods import build

PARTITIONS: dict[str, dict[str, Any]] = {
    "Dirichlet 0.3": {"partition": "dirichlet", "alpha": 0.3, "clients": 20},
    "3 labels each": {"partition": "labels", "labels": 3, "clients": 20},
}
LRS = (0.02, 0.05, 0.1)
ENVELOPE = {"prox_lr": 0.05}
GRIDS: dict[str, tuple[str, dict[str, Any], str, tuple[Any, ...]]] = {  # method, fixed options, second option, values
    "Local": ("local", {}, "train.weight_decay", (0.0, 1e-3)),
    "FedAvg": ("fedavg", {}, "train.weight_decay", (0.0, 1e-3)),
    "FedAvg-FT": ("fedavg_ft", {}, "ft_epochs", (5, 15)),
    "pFedMe": ("pfedme", ENVELOPE, "strength", (5.0, 15.0)),
    "FedMAP": ("fedmap", {}, "sigma2", (15.0, 150.0)),
    "FedMAP, learned variance": ("fedmap", {"prior": "diagonal"}, "sigma2", (15.0, 150.0)),
    "pFedVEM": ("pfedvem", {}, "head_lr", (1e-3, 3e-3)),
    "pFedVEM, model averaging": ("pfedvem", {"prediction": "bma"}, "head_lr", (1e-3, 3e-3)),
    "pFedFDA": ("pfedfda", {}, "ridge", (0.01, 1.0)),
    "FedBPS": ("fedbps", {}, "p", (0.5, 0.7)),
    "FedBPS, random mask": ("fedbps", {"score": "random"}, "p", (0.5, 0.7)),
    "pFedBreD mh (Eq. 14)": ("pfedbred", ENVELOPE, "strength", (5.0, 15.0)),
    "pFedBreD mh_code": ("pfedbred", {**ENVELOPE, "variant": "mh_code"}, "strength", (5.0, 15.0)),
}
METRICS = ("accuracy", "nll", "ece")
TUNING_SEED = 1000


def settings(name: str) -> Iterator[dict[str, Any]]:
    _, _, second, values = GRIDS[name]
    for lr, value in itertools.product(LRS, values):
        yield {"train.lr": lr, second: value}


def measure(partition: str, name: str, setting: dict[str, Any], seed: int, rounds: int) -> dict[str, Any]:
    began = time.perf_counter()
    federation = fedprior.data.load("digits", seed=seed, **PARTITIONS[partition])
    method, fixed, _, _ = GRIDS[name]
    own = {k: v for k, v in setting.items() if not k.startswith("train.")}
    local = {k.removeprefix("train."): v for k, v in setting.items() if k.startswith("train.")}
    train = fedprior.Train(**{**federation.recipe["train"], **local})
    result = fedprior.run(
        build(method, {**fixed, **own}, train), federation, rounds=rounds, seed=seed, eval_every=rounds
    )
    last = result.summary["last"]["personal"]
    return {
        "partition": partition,
        "method": name,
        "setting": setting,
        "seed": seed,
        "validation": [last["validation"]["accuracy"]["mean"], -last["validation"]["nll"]["mean"]],
        "test": {m: last["test"][m]["mean"] for m in METRICS},
        "worst_decile": last["test"]["accuracy"]["worst_decile"],
        "clients": result.clients["accuracy"].tolist(),
        "seconds": time.perf_counter() - began,
    }


def table(rows: list[dict[str, Any]], partition: str) -> list[str]:
    lines = [
        "| method | accuracy % | Δ to Local | NLL | ECE % | worst tenth % | chosen on validation |",
        "|---|---|---|---|---|---|---|",
    ]
    local = {r["seed"]: r["test"]["accuracy"] for r in rows if (r["partition"], r["method"]) == (partition, "Local")}
    for name in GRIDS:
        mine = [r for r in rows if (r["partition"], r["method"]) == (partition, name)]
        gaps = [100 * (r["test"]["accuracy"] - local[r["seed"]]) for r in mine]
        cells = [
            _sem([100 * r["test"]["accuracy"] for r in mine], 1),
            "" if name == "Local" else _sem(gaps, 1, signed=True),
            _sem([r["test"]["nll"] for r in mine], 3),
            _sem([100 * r["test"]["ece"] for r in mine], 1),
            _sem([100 * r["worst_decile"] for r in mine], 1),
            ", ".join(f"{k.removeprefix('train.')} = {v}" for k, v in mine[0]["setting"].items()),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _sem(values: list[float], digits: int, *, signed: bool = False) -> str:
    mean, error = np.mean(values), np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{mean:{'+' if signed else ''}.{digits}f} ± {error:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    cells = list(itertools.product(PARTITIONS, GRIDS))
    with ProcessPoolExecutor(options.workers) as pool:
        trials = [pool.submit(measure, p, m, s, TUNING_SEED, options.rounds) for p, m in cells for s in settings(m)]
        best: dict[tuple[str, str], dict[str, Any]] = {}
        for done, trial in enumerate(trials, 1):
            row = trial.result()
            cell = (row["partition"], row["method"])
            if cell not in best or row["validation"] > best[cell]["validation"]:
                best[cell] = row
            print(
                f"tuning {done}/{len(trials)}  {cell[0]}  {cell[1]}  {row['setting']}  {row['validation'][0]:.3f}",
                flush=True,
            )
        jobs = [
            pool.submit(measure, p, m, best[p, m]["setting"], seed, options.rounds)
            for p, m in cells
            for seed in range(options.seeds)
        ]
        rows = []
        for done, job in enumerate(jobs, 1):
            rows.append(job.result())
            print(f"final {done}/{len(jobs)}  {rows[-1]['method']}  {rows[-1]['test']['accuracy']:.3f}", flush=True)
            write_text(options.out / "digits.json", json.dumps(rows, indent=1) + "\n")
    lines = [f"{options.seeds} seeds, {options.rounds} rounds of 5 local epochs, mean ± standard error over seeds.", ""]
    for partition in PARTITIONS:
        lines += [f"**{partition}**", "", *table(rows, partition), ""]
    write_text(options.out / "digits.md", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
