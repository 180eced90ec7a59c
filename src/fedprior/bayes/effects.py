"""What a mixed model says, as tables: fixed effects, deviations between sites, and each site's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.95
"""Of the intervals."""
INTERCEPT = "intercept"
UNFINISHED = (
    "The fit has not converged: these are the figures of a step on its way there. Allow more rounds before they are "
    "interpreted."
)


class Labels(NamedTuple):
    """What rows are called, and in which unit."""

    inputs: Sequence[str]  # [i]
    outputs: Sequence[str]  # [m]; a single one has no name
    unit: float  # of the target, per unit of the model; 1 for log-odds
    origin: float  # of the target; 0 for log-odds
    per_unit: Floats  # [i]  from an effect per deviation to one per unit of the input; nan: sites have their own units

    @property
    def several(self) -> bool:
        """Whether there is a block of coefficients per class."""
        return len(self.outputs) > 1

    def rows(self) -> pd.DataFrame:
        """A row per coefficient [D], output by output."""
        names = [INTERCEPT, *self.inputs]
        frame = pd.DataFrame({"input": names * len(self.outputs)})
        if self.several:
            frame.insert(0, "class", np.repeat(list(self.outputs), len(names)))
        return frame


def _judged(frame: pd.DataFrame, estimate: Floats, error: Floats, freedom: Floats) -> pd.DataFrame:
    """With standard errors, t and Student's intervals; none for a coefficient that the data say nothing about."""
    from scipy import stats  # takes half a second to load

    error = np.where(error > 0, error, np.nan)
    half = stats.t.ppf((1 + LEVEL) / 2, freedom) * error
    columns = {"std_error": error, "df": freedom, "t": estimate / error}
    return frame.assign(estimate=estimate, **columns, low=estimate - half, high=estimate + half)


def fixed(labels: Labels, gamma: Floats, error: Floats, freedom: Floats) -> pd.DataFrame:
    """γ [D] with its standard errors: per deviation of an input, and per unit; the intercept at the inputs' means."""
    found = _judged(labels.rows(), gamma * labels.unit, error * labels.unit, freedom)
    first = np.tile([1.0] + [0.0] * len(labels.inputs), len(labels.outputs)) * labels.origin
    for column in ("estimate", "low", "high"):
        found[column] += first
    return found.assign(per_unit=found["estimate"] * np.tile([np.nan, *labels.per_unit], len(labels.outputs)))


def between(labels: Labels, sigma: Floats, noise: float | None) -> pd.DataFrame:
    """The deviations σ [D] of coefficients between sites; 0: it is the same everywhere. `noise` is that of a row."""
    found = labels.rows().assign(deviation=sigma * labels.unit, variance=(sigma * labels.unit) ** 2)
    if noise is None:
        return found
    own = {"input": "residual", "deviation": noise * labels.unit, "variance": (noise * labels.unit) ** 2}
    return pd.concat([found, pd.DataFrame([own])], ignore_index=True)


def sites(
    labels: Labels,
    names: Sequence[str],
    theta: Floats,
    error: Floats,
    deviation: Floats,
    deviation_error: Floats,
    freedom: Floats,
) -> pd.DataFrame:
    """Each site's deviations [N, D] from the fixed effects, and its own coefficients, both with standard errors."""
    parts = []
    for k, name in enumerate(names):
        own, spread = deviation[k] * labels.unit, deviation_error[k] * labels.unit
        frame = _judged(labels.rows(), own, spread, freedom[k])
        frame = frame.assign(coefficient=theta[k] * labels.unit, coefficient_error=error[k] * labels.unit)
        frame.insert(0, "site", name)
        parts.append(frame)
    found = pd.concat(parts, ignore_index=True)
    return found[np.tile((deviation_error > 0).any(0), len(names))].reset_index(drop=True)
