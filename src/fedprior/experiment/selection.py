"""Which round's personal models are kept: the one with the lowest mean validation NLL, or the last on request.

This holds for every method, including Local. Without validation examples it is the last round. A method that has
converged is kept as it is then: rounds before it were steps of a fit, not models to choose from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior.engine import Predictions
from fedprior.metrics import SELECTS

BY = {
    "validation": "lowest mean validation NLL of the personal models; the first such round",
    "last": "the last round, as requested",
    "converged": "the round in which the method converged, which was the last",
}


def source(summaries: Iterable[Mapping[str, Any]]) -> str:
    """Which round the models of these runs are of, in words."""
    last = any(summary["selected"].get("by") == BY["last"] for summary in summaries)
    return "the last round" if last else "the round with the lowest validation NLL"


@dataclass
class Selection:
    """The best evaluation so far."""

    round: int = 0
    score: float = math.inf
    predictions: Predictions | None = None

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


def validation_score(scores: dict[str, Any]) -> float | None:
    """The score of an evaluation; None if no client has validation examples."""
    found = scores["personal"]["validation"]
    return float(found[SELECTS]["mean"]) if found["evaluated"] else None


def _apart(together: Tensor, sizes: Tensor) -> list[NDArray[np.float32]]:
    return np.split(together.numpy(), np.cumsum(sizes.numpy())[:-1])


def _number(score: float | None) -> float:
    return math.inf if score is None or math.isnan(score) else score
