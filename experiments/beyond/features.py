"""Mixed as the head of a network: are a learned prior and a posterior per site worth more than fine-tuning?

    python experiments/beyond/features.py [--seeds 3] [--rounds 30] [--data digits]

FedAvg trains a perceptron with 16 hidden units; the features of every example under the base of its selected round, or
of the last one, are a new federation, on which `mixed` is fitted. Beside it: FedAvg, FedAvg-FT and Local with the same
network, and `mixed` on the inputs. All are selected on validation, or where `mixed` has converged; test NLL and
accuracy are means over clients. `mixed` on the 64 inputs and 10 classes of digits has 650 coefficients, and takes most
of the time.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import fedprior
from fedprior.data import load
from fedprior.data.federation import SPLITS, Federation
from fedprior.experiment import Result
from fedprior.methods import build
from fedprior.tree import expand

NETWORK: dict[str, Any] = {"name": "mlp", "hidden": [16]}
FEDERATIONS: dict[str, dict[str, Any]] = {
    "breast cancer, Dirichlet 0.5": {"name": "breast_cancer", "partition": "dirichlet", "alpha": 0.5, "clients": 10},
    "digits, Dirichlet 0.3": {"name": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 20},
    "digits, 3 labels": {"name": "digits", "partition": "labels", "labels": 3, "clients": 20},
}


def embedded(result: Result) -> Federation:
    """The federation of features under the base of a FedAvg run."""
    task, data = result.method.task, result.federation
    base, _ = task.split(result.server.w)
    parts = {s: task.embedded(expand(base, len(data)), data.split(s)) for s in SPLITS}
    return replace(data, **parts, encoders=(), recipe={}, name=f"{data.name}, features")  # type: ignore[arg-type]


def scores(data: Federation, rounds: int, seed: int) -> dict[str, tuple[float, float]]:
    """Test NLL and accuracy by method."""
    options: dict[str, Any] = {"rounds": rounds, "seed": seed, "workers": 1}
    found = {
        name: fedprior.run(build(name), data, model=NETWORK, **options) for name in ("local", "fedavg", "fedavg_ft")
    }
    found["mixed on inputs"] = fedprior.run(build("mixed"), data, model="softmax", **options)
    last = fedprior.run(build("fedavg"), data, model=NETWORK, select="last", **options)
    for which, trained in (("features", found["fedavg"]), ("last features", last)):
        features = embedded(trained)
        for effects in ("intercept", "diagonal"):
            method = build("mixed", {"effects": effects})
            found[f"mixed on {which}, {effects}"] = fedprior.run(method, features, model="softmax", **options)
    return {name: (result.mean("nll"), result.mean("accuracy")) for name, result in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Mixed on learned features.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--data", default="", help="only federations whose title contains this")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for title, section in FEDERATIONS.items():
        if given.data not in title:
            continue
        runs = [scores(load(seed=seed, **section), given.rounds, seed) for seed in range(given.seeds)]
        print(f"{title}: {given.seeds} seeds, {given.rounds} rounds; test NLL, accuracy in %", flush=True)
        for name in runs[0]:
            values = np.array([run[name] for run in runs])
            error = values.std(0, ddof=1) / len(runs) ** 0.5 if len(runs) > 1 else np.zeros(2)
            (nll, accuracy), (noise, spread) = values.mean(0), error
            print(f"  {name:34} {nll:.3f} ± {noise:.3f}   {100 * accuracy:.1f} ± {100 * spread:.1f}", flush=True)


if __name__ == "__main__":
    main()
