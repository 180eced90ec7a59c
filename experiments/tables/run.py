"""Own tables: the methods that `fedprior compare` runs by default, beside what a statistician would fit.

    python experiments/tables/run.py --heart heart.csv --out table.jsonl
    python experiments/tables/run.py --out table.jsonl --show

`heart.csv` is UCI's heart disease table with a column `site` and a column `num`; what is predicted is `num > 0`, and a
cholesterol of 0 counts as missing. The other tables are generated (made.py), with a mixed model as the known truth; the
independent fits are in independent.py. One line of JSON per table, kind of split and seed, as soon as it is known: the
mean NLL over sites on the test rows of five splits, which test on every row once. A seed is another generated table, or
another order of the rows of heart disease, and other initial weights. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import independent
import numpy as np
import pandas as pd
import torch
from made import MADE
from public import PUBLIC

import fedprior
from fedprior.data.federation import Federation

SPLITS = ("random", "stratified")


def heart(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path)
    frame["chol"] = frame["chol"].replace(0, np.nan)
    return frame.assign(outcome=np.where(frame["num"] > 0, "yes", "no")).drop(columns="num")


def table(name: str, seed: int, path: Path) -> pd.DataFrame:
    if name in PUBLIC:
        return PUBLIC[name]().reset_index(drop=True)
    return heart(path) if name == "heart" else MADE[name](seed)


def judged(name: str, frame: pd.DataFrame, split: str, seed: int) -> dict[str, Any]:
    began, options = time.process_time(), {"split": split}
    found = fedprior.assess(frame, site="site", target="outcome", options=options, workers=1, seed=seed)
    spent = time.process_time() - began
    each = [fitted(next(iter(part.values())).federation) for part in found.values()]
    theirs = {what: float(np.mean([own[what] for own in each])) for what in each[0]}
    ours = {method: means["nll"] for method, means in found.methods.items()}
    return {
        "table": name,
        "split": split,
        "seed": seed,
        "recommended": found.best,
        "validation": found.validation,
        "curves": {name: [curve(split[name]) for split in found.values()] for name in found.first},
        "nll": {**ours, **{f"independent: {what}": score for what, score in theirs.items()}},
        "cpu": spent,
    }


def curve(result: fedprior.Result) -> dict[int, float]:
    """The mean validation NLL by round."""
    events = [event for event in result.journal.events if event["kind"] == "evaluation"]
    return {event["round"]: event["personal"]["validation"]["nll"]["mean"] for event in events}


def fitted(data: Federation) -> dict[str, float]:
    """What a statistician would fit to one split."""
    found = independent.per_site(data)
    return found | {
        f"mixed, {what}": independent.mixed(data, slopes=what == "slopes") for what in ("intercept", "slopes")
    }


def show(lines: list[dict[str, Any]]) -> None:
    """Means over seeds; `recommended` is each seed's own."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        line["nll"]["recommended"] = line["nll"][line["recommended"]]
        groups[line["table"], line["split"]].append(line)
    rows = list(dict.fromkeys(name for line in lines for name in line["nll"]))
    print("| NLL | " + " | ".join(f"{table}, {split} ({len(own)})" for (table, split), own in groups.items()) + " |")
    print("|---|" + "---|" * len(groups))
    for row in rows:
        cells = [[line["nll"][row] for line in own if row in line["nll"]] for own in groups.values()]
        print(f"| {row} | " + " | ".join(f"{np.mean(cell):.4f}" if cell else "" for cell in cells) + " |")
    for title, ours, theirs in (("recommended", "recommended", "mixed"), ("Local", "local", "per site")):
        cells = [[line["nll"][ours] - _best(line, theirs) for line in own] for own in groups.values()]
        print(f"| {title} minus the best {theirs} | " + " | ".join(f"{np.mean(cell):+.4f}" for cell in cells) + " |")


def _best(line: dict[str, Any], kind: str) -> float:
    """The lowest test NLL of the independent fits of a kind: chosen with hindsight, in their favour."""
    return min(score for name, score in line["nll"].items() if name.startswith(f"independent: {kind}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heart", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", default=",".join(["heart", *MADE]).replace(", a", "; a"), help="comma-separated")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--show", action="store_true", help="show what is there, and run nothing")
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.show:
        show(lines)
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done = {(line["table"], line["split"], line["seed"]) for line in lines}
    wanted = [name.replace("; a", ", a") for name in given.tables.split(",")]
    for seed in range(given.seeds):
        for name in wanted:
            for split in SPLITS:
                if (name, split, seed) in done or (name == "heart" and given.heart is None):
                    continue
                frame = table(name, seed, given.heart)
                with given.out.open("a") as file:
                    file.write(json.dumps(judged(name, frame, split, seed)) + "\n")
                print(f"{name}, {split}, {seed}", file=sys.stderr)


if __name__ == "__main__":
    main()
