"""How many rows a new site needs: the loss of its personal model by the number of its rows, beside the shared model's.

Each draw holds a third of the site's rows out and trains on the first k of the others in random order, for several k.
Both models predict the rows held out. What is reported is the mean over draws and the range of the middle 90 % of them:
how much depends on which patients one happens to have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior.experiment.admission import Rows, admit, encoded_inputs
from fedprior.experiment.prior import Prior
from fedprior.metrics import SELECTS, evaluate, main_metric, metrics_of
from fedprior.rng import Key, Keys

SMALLEST = 9
"""Rows from which on there is a curve."""
RANGE = (5, 95)
"""Percentiles over draws."""


class Range(NamedTuple):
    """The mean over draws, and the range of the middle 90 % of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Range:
        """Of one value per draw; nan where one of them is not finite."""
        if not np.isfinite(values).all():
            return cls(math.nan, math.nan, math.nan)
        low, high = np.percentile(values, RANGE)
        return cls(float(values.mean()), float(low), float(high))


class Point(NamedTuple):
    """Models on `rows` rows; a gain is the shared model's NLL minus the personal one's, so positive is better."""

    rows: int
    nll: Range
    metric: float  # the main metric's mean over draws
    gain: Range | None  # None: the method has no shared model
    better: float | None  # the share of draws in which the personal model's NLL is lower


@dataclass(frozen=True)
class Curve:
    """The points, and the shared model on the same rows held out."""

    points: tuple[Point, ...]
    shared: Range | None  # NLL
    shared_metric: float | None
    metric: str  # the main metric's name
    draws: int
    held_out: int  # rows in each draw

    def document(self) -> dict[str, Any]:
        """As JSON."""
        points = [
            {
                "rows": p.rows,
                "nll": p.nll._asdict(),
                self.metric: p.metric,
                "gain_nll": None if p.gain is None else p.gain._asdict(),
                "better": p.better,
            }
            for p in self.points
        ]
        shared = None if self.shared is None else {"nll": self.shared._asdict(), self.metric: self.shared_metric}
        return {"draws": self.draws, "held_out": self.held_out, "points": points, "shared": shared, "text": self.text}

    def since(self, *, clearly: bool) -> int | None:
        """The rows from which on, for all larger numbers too, the personal model is better on average, or `clearly`.

        Clearly means in 95 % of draws.
        """
        found = None
        for point in reversed(self.points):
            worst = None if point.gain is None else point.gain.low if clearly else point.gain.mean
            if worst is None or not worst > 0:
                break
            found = point.rows
        return found

    @property
    def text(self) -> str:
        """How many rows it takes, in a sentence."""
        most = self.points[-1].rows
        if self.shared is None:
            return "The method has no shared model to compare the site's own with."
        mean, clear = self.since(clearly=False), self.since(clearly=True)
        if mean is None:
            return f"With up to {most} rows the site's own model is not better than the shared model on average."
        clearly = f"from {clear} rows on in at least 95 % of draws" if clear else "but not in 95 % of draws"
        both = mean == clear
        return (
            f"From {mean} rows on, the site's own model is better than the shared model"
            f"{' in at least 95 % of draws' if both else f' on average, {clearly}'} ({self.draws} draws, NLL)."
        )


def learning_curve(prior: Prior, rows: Rows, site: str, updates: int, draws: int) -> Curve | None:
    """The curve of a site; None where it has too few rows."""
    x, y = rows
    if len(y) < SMALLEST:
        return None
    held = len(y) // 3
    key = Key.from_seed(prior.seed).fold("joining", site)
    orders = [key.fold("draw", draw).numpy().permutation(len(y)) for draw in range(draws)]
    tests = [(x[order[:held]], y[order[:held]]) for order in orders]
    shared = [_shared(prior, test, x[order[held:]]) for test, order in zip(tests, orders, strict=True)]
    known = np.array([found for found in shared if found is not None])
    points = []
    for size in sizes(len(y) - held):
        parts = [(x[order[held : held + size]], y[order[held : held + size]]) for order in orders]
        names = [f"{site}\0{size}\0{draw}" for draw in range(draws)]
        points.append(_point(size, _personal(prior, parts, tests, names, updates), known))
    metric = main_metric(prior.target).name
    nll, main = (Range.of(known[:, 0]), float(known[:, 1].mean())) if len(known) else (None, None)
    return Curve(tuple(points), nll, main, metric, draws, held)


def sizes(most: int) -> list[int]:
    """5, 10, 20, 50, 100, … and the most there are."""
    steps = [a * 10**b for b in range(9) for a in (1, 2, 5)]
    return [*(step for step in steps if 5 <= step < most), most]


def _point(size: int, own: NDArray[np.float64], shared: NDArray[np.float64]) -> Point:
    """From NLL and main metric of each draw [D, 2], and those of the shared model."""
    if not len(shared):
        return Point(size, Range.of(own[:, 0]), float(own[:, 1].mean()), None, None)
    gain = shared[:, 0] - own[:, 0]
    return Point(size, Range.of(own[:, 0]), float(own[:, 1].mean()), Range.of(gain), float((gain > 0).mean()))


def _personal(
    prior: Prior, parts: Sequence[Rows], tests: Sequence[Rows], names: Sequence[str], updates: int
) -> NDArray[np.float64]:
    """NLL and main metric of each draw's personal model on its rows held out [D, 2]."""
    method = prior.method
    personal = admit(prior, parts, names, updates)
    inputs = [encoded_inputs(prior, test[0], part[0]) for test, part in zip(tests, parts, strict=True)]
    x = torch.as_tensor(np.stack(inputs), dtype=method.task.dtype)
    found = method.predict(personal, x, Keys.of(Key.from_seed(prior.seed), names).fold("predict"))
    return np.array([_scores(prior, own, test[1]) for own, test in zip(found, tests, strict=True)])


def _shared(prior: Prior, test: Rows, training: NDArray[Any]) -> tuple[float, float] | None:
    """NLL and main metric of the shared model, whose inputs are prepared by all rows that a draw may train on."""
    x = torch.as_tensor(encoded_inputs(prior, test[0], training), dtype=prior.method.task.dtype)
    found = prior.method.predict_global(prior.server, x)
    return None if found is None else _scores(prior, found, test[1])


def _scores(prior: Prior, found: Tensor, y: NDArray[Any]) -> tuple[float, float]:
    values = evaluate(metrics_of(prior.target), found.float().numpy(), y)
    nll, main = values[SELECTS], values[main_metric(prior.target).name]
    assert nll is not None, "there are rows, so every target has an NLL"
    return nll, math.nan if main is None else main
