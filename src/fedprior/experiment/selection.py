"""Which round's personal models are kept: the one with the lowest mean validation NLL, or the last on request.

This holds for every method, including Local. Without validation examples it is the last round. A method that has
converged is kept as it is then: rounds before it were steps of a fit, not models to choose from.

The lowest of many means flatters a method: the rows that chose the round also score it. Methods are therefore compared
by a cross-fitted score, in which no client's rows choose the round that they are scored in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior.engine import Predictions
from fedprior.metrics import SELECTS, Value

BY = {
    "validation": "lowest mean validation NLL of the personal models; the first such round",
    "last": "the last round, as requested",
    "converged": "the round in which the method converged, which was the last",
}
MANY = 10.0
"""Validation examples with which a client counts half as much as with any number."""
FITTED = "validation NLL: each site's in the round that the other sites choose"
"""What the validation NLL of a table is, to be added to its caption."""


def source(summaries: Iterable[Mapping[str, Any]]) -> str:
    """Which round the models of these runs are of, in words."""
    last = any(summary["selected"].get("by") == BY["last"] for summary in summaries)
    return "the last round" if last else "the round with the lowest validation NLL"


@dataclass
class CrossFit:
    """Each client's validation score in the round that the others choose: their lowest mean, the first such round.

    A client that is alone chooses for itself.
    """

    lowest: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # mean over the others so far, [N]
    scores: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # the client's own in that round, [N]

    def take(self, scores: Sequence[Value], *, chosen: bool = True) -> None:
        """One more evaluation: every client's score, None where it has no validation examples.

        Unless rounds are `chosen`, it replaces those before.
        """
        known = np.array([value is not None for value in scores])
        values = np.array([0.0 if value is None else value for value in scores], dtype=np.float64)
        if not chosen or not len(self.lowest):
            self.lowest, self.scores = np.full(len(values), np.inf), values.copy()
        broken = known & ~np.isfinite(values)
        sane, others = np.where(broken, 0.0, values), int(known.sum()) - 1
        rest = (sane.sum() - sane) / others if others > 0 else values
        rest = np.where(broken.sum() > broken, np.inf, rest)  # another client's model is not finite
        better = known & (rest < self.lowest)
        self.lowest[better], self.scores[better] = rest[better], values[better]

    def mean(self, sizes: Sequence[int]) -> float | None:
        """Over clients, by n / (n + 10) with n validation examples; nan if a model diverged, None without any.

        These are the weights of a mean of effects that differ between clients, each measured with n examples: few
        examples count one by one, and a client with many counts as one client.
        """
        n = np.array(sizes, dtype=np.float64)
        if not n.any() or not len(self.scores):
            return None
        there = n > 0
        return float(np.average(self.scores[there], weights=(n / (n + MANY))[there]))


@dataclass
class Selection:
    """The best evaluation so far."""

    round: int = 0
    score: float = math.inf
    predictions: Predictions | None = None
    cross_fit: CrossFit = field(default_factory=CrossFit)

    def better(self, score: float | None) -> bool:
        """Whether a round replaces the one that is kept: it is strictly better, or there is no score."""
        return self.predictions is None or score is None or _number(score) < self.score

    def take(self, round: int, score: float | None, predictions: Predictions) -> None:
        """Keep a round."""
        self.round, self.score, self.predictions = round, _number(score), predictions

    def snapshot(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        if self.predictions is None:
            return {}
        found = {"selection": torch.tensor([self.round, self.score], dtype=torch.float64)}
        found["selection/cross_fit"] = torch.from_numpy(np.stack([self.cross_fit.lowest, self.cross_fit.scores]))
        for split, clients in self.predictions.items():  # in one piece: ten thousand tensors take seconds to write
            found[f"selection/{split}"] = torch.from_numpy(
                np.concatenate([p for p in clients if len(p)] or clients[:1])
            )
            found[f"selection/{split}/sizes"] = torch.tensor([len(p) for p in clients])
        return found

    def restore(self, flat: dict[str, Tensor], splits: tuple[str, ...]) -> None:
        """Continue from a snapshot."""
        if "selection" in flat:
            number, score = flat["selection"].tolist()
            found = {split: _apart(flat[f"selection/{split}"], flat[f"selection/{split}/sizes"]) for split in splits}
            self.round, self.score, self.predictions = int(number), score, found
            self.cross_fit = CrossFit(*flat["selection/cross_fit"].numpy().copy())


def validation_score(scores: dict[str, Any]) -> float | None:
    """The score of an evaluation; None if no client has validation examples."""
    found = scores["personal"]["validation"]
    return float(found[SELECTS]["mean"]) if found["evaluated"] else None


def compared_by(summary: Mapping[str, Any]) -> float:
    """The validation NLL by which a run is compared with others; nan where there is none."""
    selected = summary["selected"]
    found = selected.get("cross_fitted", selected["personal"]["validation"][SELECTS]["mean"])  # older runs lack it
    return math.nan if found is None else float(found)


def _apart(together: Tensor, sizes: Tensor) -> list[NDArray[np.float32]]:
    return np.split(together.numpy(), np.cumsum(sizes.numpy())[:-1])


def _number(score: float | None) -> float:
    return math.inf if score is None or math.isnan(score) else score
