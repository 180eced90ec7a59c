"""Can somebody who has a site's personal model tell which rows it was trained on? A loss-threshold attack.

    .venv/bin/python experiments/membership.py --out docs/results/membership.md

The attacker knows a row with its label and guesses "in the training rows" if the model's loss on it is small. AUROC of
-loss for a client's training rows (members) against its test rows (non-members), which come from the same distribution:
0.5 is a guess, 1 is certainty. One value per client and seed; mean with Student's 95 % interval over all of them, which
treats clients of one seed as independent. Beside it the mean accuracy on training and test rows: an attack of this kind
lives on their difference. It is the simplest attack there is: a low value is no proof of privacy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit
from sklearn.metrics import roc_auc_score

import fedprior
from fedprior.data.federation import Federation
from fedprior.engine.memory import single_thread
from fedprior.files import write_text
from fedprior.methods import build

ROUNDS, SEEDS = 20, (0, 1, 2)
METHODS = (
    *("local", "fedavg", "fedavg_ft", "ditto", "fedmap", "pfedvem", "pfedfda", "fedbps", "pfedbred"),
    *("fedavg+dp", "fedavg+ft+dp"),
)
DATA: dict[str, dict[str, Any]] = {
    "digits": {"partition": "labels", "labels": 3, "clients": 20},
    "breast_cancer": {"partition": "iid", "clients": 8},
}


class Attack(NamedTuple):
    """On one client."""

    auroc: float
    train: float  # accuracy
    test: float


def attacked(result: Any, data: Federation) -> Iterator[Attack]:
    """Every client's personal model."""
    for row, client in enumerate(data.clients):
        model, scores, correct = result.model(client), [], []
        for split in (data.train, data.test):
            own = slice(split.start[row], split.start[row] + split.size[row])
            x, y = split.x[own].unsqueeze(0), split.y[own]
            with single_thread(), torch.no_grad():
                found = model.method.predict(model.tree, x.to(model.method.task.dtype), model.keys).squeeze(0)
            scores.append(found.gather(1, y[:, None]).squeeze(1).double().numpy())
            correct.append(float((found.argmax(1) == y).double().mean()))
        member = np.repeat([1, 0], [len(part) for part in scores])
        yield Attack(float(roc_auc_score(member, np.nan_to_num(np.concatenate(scores)))), *correct)


def row(method: str, name: str) -> str:
    found = []
    for seed in SEEDS:
        data = fedprior.data.load(name, **DATA[name], seed=seed)
        result = fedprior.run(build(method), data, rounds=ROUNDS, seed=seed, workers=1, select="last")
        found += list(attacked(result, data))
    values = np.array([attack.auroc for attack in found])
    half = float(stdtrit(len(values) - 1, 0.975)) * values.std(ddof=1) / np.sqrt(len(values))
    train, test = (100 * np.mean([getattr(attack, split) for attack in found]) for split in ("train", "test"))
    interval = f"{values.mean() - half:.3f} to {values.mean() + half:.3f}"
    return f"| {method} | {values.mean():.3f} | {interval} | {train:.1f} | {test:.1f} |"


def lines() -> Iterator[str]:
    yield "# Membership inference on personal models"
    yield ""
    yield (
        "An attacker who has a site's personal model and a labelled row guesses from the loss whether the row was in "
        f"training. AUROC: 0.5 is a guess. {ROUNDS} rounds, default settings, last round, {len(SEEDS)} seeds, all "
        "clients; 95 % interval over clients and seeds. `+dp`: z = 1, C = 1. `experiments/membership.py` makes this "
        "page and says what it does."
    )
    for name, options in DATA.items():
        yield ""
        yield f"## {name} ({', '.join(f'{key} = {value}' for key, value in options.items())})"
        yield ""
        yield "| method | AUROC | 95 % interval | accuracy, training rows | test rows |"
        yield "| --- | --- | --- | --- | --- |"
        for method in METHODS:
            yield row(method, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    write_text(parser.parse_args().out, "\n".join(lines()) + "\n")


if __name__ == "__main__":
    main()
