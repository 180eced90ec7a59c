"""One training for all methods of a comparison that differ only in how a personal model is made (`trajectory`).

The first of them trains and leaves a track: what each round reported, and the engine's state after the rounds that are
evaluated or saved. The others follow it: they take these states instead of training, and evaluate, select and save as
always. Since equal trajectories have equal states, the results are those of separate runs, bit for bit.

A track is kept in memory, up to `MOST` bytes, and only while a comparison runs. A run that is continued after an
interruption follows if the track has all rounds that it lacks; otherwise it trains by itself, with the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedprior.experiment.config import Setup
from fedprior.experiment.records import Event

MOST = 2**28
"""Bytes of all states of a track, by default."""


class Track:
    """The rounds of one training."""

    def __init__(self, most: int | None = None) -> None:
        self.most = MOST if most is None else most
        self.begin("", 0)

    def begin(self, leader: str, first: int) -> None:
        """Forget everything; a method trains from here on, when so many rounds are done."""
        self.leader, self.first = leader, first
        self.events: list[Event] = []
        self.states: dict[int, dict[str, Tensor]] = {}  # rounds done -> the engine's state
        self.size, self.complete = 0, False

    def covers(self, first: int) -> bool:
        """Whether a run with so many rounds done can follow."""
        return self.complete and self.first <= first

    def add(self, event: Event, snapshot: Mapping[str, Tensor] | None) -> None:
        """A round, and the engine's snapshot after it if others will need it; not the models that one method kept."""
        if self.size > self.most:
            return
        self.events.append(event)
        if snapshot is not None:
            common = {path: leaf for path, leaf in snapshot.items() if path.split("/")[0] not in ("kept", "prior")}
            self.states[self.first + len(self.events)] = {path: leaf.clone() for path, leaf in common.items()}
            self.size += sum(leaf.nbytes for leaf in common.values())

    def end(self) -> None:
        """All rounds are done: others may follow, unless there was too much to remember."""
        self.complete = self.size <= self.most
        if not self.complete:
            self.events, self.states = [], {}

    def event(self, number: int) -> Event:
        """What was reported of a round, and whose training it was."""
        return {**self.events[number - self.first], "trained_by": self.leader}

    def shared(self, first: int) -> dict[str, Any]:
        """What a summary says of the rounds that it takes from here: whose training it was, and how long it took."""
        seconds = sum(event["seconds"] for event in self.events[first - self.first :])
        return {"trained_by": self.leader, "trained_seconds": seconds}


def tracks(setups: Mapping[str, Setup]) -> dict[str, Track]:
    """A common track for each group of methods with equal training, by method; none for a method on its own."""
    keys = {name: _training(setup) for name, setup in setups.items()}
    together = {key: Track() for key, count in Counter(keys.values()).items() if count > 1}
    return {name: together[key] for name, key in keys.items() if key in together}


def _training(setup: Setup) -> str:
    """All that training depends on, besides what a comparison has in common."""
    method = setup.method
    return repr((method.trajectory, method.train, method.hints, method.memoryless))
