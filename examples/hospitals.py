"""Write a table of eight hospitals, the table of `make demo`: python examples/hospitals.py hospitals.csv

The risk of an event depends on eight columns, a little differently at each hospital. Some values are missing. The table
is generated, so that the truth is known.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

SIZES = {"Basel": 140, "Genoa": 120, "Lyon": 100, "Turin": 90, "Nice": 80, "Trento": 70, "Chur": 60, "Aosta": 50}
COMMON = {"age": 0.9, "pressure": 0.5, "crp": 0.7, "glucose": 0.4, "creatinine": 0.6, "bmi": 0.3, "pulse": 0.2}
"""Log-odds per standard deviation, in the mean over hospitals."""


def hospital(name: str, size: int, rng: np.random.Generator) -> pd.DataFrame:
    """Patients of one hospital: its own intercept, and slopes near the common ones."""
    table = pd.DataFrame({column: rng.normal(size=size) for column in COMMON})
    smoker = rng.random(size) < 0.3
    slopes = np.array(list(COMMON.values())) + 0.15 * rng.normal(size=len(COMMON))
    logit = table.to_numpy() @ slopes + 0.8 * smoker + 0.5 * rng.normal() - 0.3
    table = (table * 10 + 100).round(1)
    table.insert(0, "hospital", name)
    table["smoker"] = np.where(smoker, "yes", "no")
    table["outcome"] = np.where(rng.random(size) < 1 / (1 + np.exp(-logit)), "event", "none")
    table.loc[rng.random(size) < 0.06, "glucose"] = np.nan  # not measured
    return table


def hospitals(seed: int = 0) -> pd.DataFrame:
    """All of them."""
    rng = np.random.default_rng(seed)
    return pd.concat([hospital(name, size, rng) for name, size in SIZES.items()], ignore_index=True)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals.csv")
    path.parent.mkdir(parents=True, exist_ok=True)
    hospitals().to_csv(path, index=False)
    print(f"{path}: {sum(SIZES.values())} patients of {len(SIZES)} hospitals")
