"""Generated tables with a known mixed-model truth, in the shapes of real multi-site studies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]


def hospitals(seed: int, sites: int = 8, inputs: int = 6) -> pd.DataFrame:
    """25 to 149 rows per site; slopes γ_j + 0.4 N(0, 1), intercepts -0.3 + N(0, 1), inputs shifted by site."""
    rng = np.random.default_rng(seed)
    common, parts = 0.8 * rng.normal(size=inputs), []
    for k in range(sites):
        n = int(rng.integers(25, 150))
        slopes, intercept = common + 0.4 * rng.normal(size=inputs), rng.normal() - 0.3
        x = rng.normal(size=(n, inputs)) + 0.5 * rng.normal(size=inputs)
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(inputs)])
        parts.append(frame.assign(site=f"s{k}", outcome=_ill(rng, x @ slopes + intercept)))
    return pd.concat(parts, ignore_index=True)


def districts(seed: int) -> pd.DataFrame:
    """A survey in 60 districts of 2 to 118 rows; yes/no, a category, a number with a curved effect; 40 % yes."""
    rng = np.random.default_rng(seed)
    parts = []
    for k in range(60):
        n = int(np.clip(rng.lognormal(3.2, 0.75), 2, 118))
        urban = rng.random(n) < rng.beta(1, 2)
        children, age = rng.choice(4, n, p=[0.27, 0.18, 0.16, 0.39]), rng.normal(0, 9, n)
        effects = np.array([0.0, 1.1, 1.4, 1.35])[children] - 0.02 * age - 0.0035 * (age**2 - 81)
        own = -1.4 + 0.5 * rng.normal() + (0.7 + 0.6 * rng.normal()) * urban
        parts.append(
            pd.DataFrame(
                {
                    "site": f"district {k + 1}",
                    "age": age.round(1),
                    "children": np.array(["0", "1", "2", "3+"])[children],
                    "urban": np.where(urban, "yes", "no"),
                    "outcome": _ill(rng, effects + own),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def schools(seed: int, *, sites: int = 65, number: bool = True) -> pd.DataFrame:
    """Pupils of 65 schools of 2 to 198 rows with columns of the school; a mark, or whether it is above average."""
    rng = np.random.default_rng(seed)
    parts = []
    for k in range(sites):
        n = int(np.clip(rng.lognormal(3.9, 0.7), 2, 198))
        level, kind = 0.35 * rng.normal(), rng.choice(["boys", "girls", "mixed"], p=[0.15, 0.3, 0.55])
        before, girl = rng.normal(level, 0.95, n), {"boys": np.zeros(n), "girls": np.ones(n)}
        female = girl.get(str(kind), (rng.random(n) < 0.5).astype(float))
        own = 0.3 * rng.normal() + 0.3 * level + 0.15 * (kind == "girls")
        mark = own + (0.55 + 0.12 * rng.normal()) * before + 0.17 * female + 0.75 * rng.normal(size=n)
        parts.append(
            pd.DataFrame(
                {
                    "site": k + 1,
                    "before": before.round(3),
                    "sex": np.where(female > 0, "F", "M"),
                    "kind": kind,
                    "school_mean": round(float(before.mean()), 3),
                    "outcome": mark.round(3) if number else np.where(mark > 0, "above", "below"),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def regions(seed: int, *, number: bool = True) -> pd.DataFrame:
    """160 sites of 14 to 67 rows; three columns of the person and four of the site; R² of a quarter."""
    rng = np.random.default_rng(seed)
    parts = []
    for k in range(160):
        n, status, private = int(rng.integers(14, 68)), 0.4 * rng.normal(), rng.random() < 0.45
        ses = rng.normal(status, 0.66, n)
        minority, female = rng.random(n) < rng.beta(0.5, 1.3), rng.random(n) < 0.53
        slope = 2.4 - 1.2 * private + 0.5 * rng.normal()
        own = 12.2 + 1.5 * rng.normal() + 3.0 * status + 1.2 * private
        y = own + slope * (ses - status) - 2.9 * minority - 1.2 * female + 6 * rng.normal(size=n)
        parts.append(
            pd.DataFrame(
                {
                    "site": f"{k:04d}",
                    "minority": minority.astype(int),
                    "female": female.astype(int),
                    "ses": ses.round(3),
                    "size": int(rng.integers(100, 2700)),
                    "sector": "private" if private else "public",
                    "academic": round(float(np.clip(0.5 + 0.3 * status + 0.2 * rng.normal(), 0, 1)), 2),
                    "mean_ses": round(status, 3),
                    "outcome": np.clip(y, -2.8, 25).round(3) if number else (y > 13).astype(int),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _ill(rng: np.random.Generator, eta: Array) -> NDArray[np.str_]:
    return np.where(rng.random(len(eta)) < 1 / (1 + np.exp(-eta)), "yes", "no")


MADE: dict[str, Callable[[int], pd.DataFrame]] = {
    "hospitals": hospitals,
    "districts": districts,
    "schools": lambda seed: schools(seed, number=False),
    "regions": lambda seed: regions(seed, number=False),
    "schools, a number": schools,
    "regions, a number": regions,
}
