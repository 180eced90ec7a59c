"""Own tables: our Local against scikit-learn's regression per site, and the methods against references on pooled rows.

    python experiments/tables/run.py --heart heart.csv --splits 5 >> table.jsonl

`heart.csv` is UCI's heart disease table with columns `site` and `outcome` (`num > 0`), a cholesterol of 0 left empty.
Generated tables follow a logistic mixed model: every site has an intercept and slopes of its own around common ones.
One line of JSON per table and kind of split: the mean NLL on the test rows, over sites and splits.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import fedprior
from fedprior.data.federation import SPLITS, Federation
from fedprior.experiment.assessment import Assessment

PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)


def generated(seed: int, sites: int = 8, inputs: int = 6) -> pd.DataFrame:
    """25 to 149 rows per site; slopes γ_j + 0.4 N(0, 1), intercepts -0.3 + N(0, 1), inputs shifted by site."""
    rng = np.random.default_rng(seed)
    common, parts = 0.8 * rng.normal(size=inputs), []
    for k in range(sites):
        n = int(rng.integers(25, 150))
        slopes, intercept = common + 0.4 * rng.normal(size=inputs), rng.normal() - 0.3
        x = rng.normal(size=(n, inputs)) + 0.5 * rng.normal(size=inputs)
        ill = rng.random(n) < 1 / (1 + np.exp(-(x @ slopes + intercept)))
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(inputs)])
        parts.append(frame.assign(site=f"s{k}", outcome=np.where(ill, "yes", "no")))
    return pd.concat(parts, ignore_index=True)


def per_site(data: Federation) -> float:
    """The mean over sites of the test NLL of scikit-learn's regression, its C chosen on the site's validation rows."""
    found = []
    for c in range(len(data)):
        (x, y), (xv, yv), (xt, yt) = (
            tuple(part.double().numpy() for part in data.split(split).client(c)) for split in SPLITS
        )
        tries = [LogisticRegression(C=C, max_iter=2000).fit(x, y) for C in PENALTIES]
        best = min(tries, key=lambda model: nll(model, xv, yv))
        found.append(nll(best, xt, yt))
    return float(np.mean(found))


def nll(model: LogisticRegression, x: np.ndarray, y: np.ndarray) -> float:
    return float(-model.predict_log_proba(x)[np.arange(len(y)), y.astype(int)].mean())


def judged(name: str, frame: pd.DataFrame, split: str, splits: int) -> dict[str, object]:
    found: Assessment = fedprior.assess(
        frame, site="site", target="outcome", splits=splits, options={"split": split}, workers=1
    )
    alone = [per_site(next(iter(part.values())).federation) for part in found.values()]
    scores = {method: round(means["nll"], 4) for method, means in found.methods.items()}
    return {
        "table": name,
        "split": split,
        "splits": splits,
        "recommended": found.best,
        "validation": {method: round(score, 4) for method, score in found.validation.items()},
        "nll": {"scikit-learn per site": round(float(np.mean(alone)), 4), **scores},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heart", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--generated", type=int, default=2, help="number of generated tables")
    given = parser.parse_args()
    tables = {} if given.heart is None else {"heart": pd.read_csv(given.heart)}
    tables |= {f"generated {k}": generated(k) for k in range(given.generated)}
    warnings.simplefilter("ignore")
    for split in ("random", "stratified"):
        for name, frame in tables.items():
            print(json.dumps(judged(name, frame, split, given.splits)), flush=True)
            print(f"{name} {split}: done", file=sys.stderr)


if __name__ == "__main__":
    main()
