"""Rows that are experts of a stack take their training from it: experts train as they would alone, bit for bit.

A stack leaves a track of its rounds (`fedprior.experiment.track`). The part of it that belongs to one expert is a track
of that expert, which rows on the same trajectory can follow: FedAvg-FT's for FedAvg too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedprior.experiment.config import Setup
from fedprior.experiment.loop import execute
from fedprior.experiment.result import Result
from fedprior.experiment.track import Track

MOST = 2**33
"""Bytes of a track: 207 writers with a network each, at ten evaluations."""
EXPERTS = {
    "Local": ("stack", "local"),
    "FedAvg": ("stack", "fedavg_ft"),
    "FedAvg-FT": ("stack", "fedavg_ft"),
    "pFedVEM": ("stack + pFedVEM", "pfedvem"),
    "pFedFDA": ("stack + pFedVEM + pFedFDA", "pfedfda"),
}
"""Row -> the row that trains for it, and under which expert's name."""
LEADERS = tuple(dict.fromkeys(leader for leader, _ in EXPERTS.values()))


class Shared:
    """The tracks of one federation and seed."""

    def __init__(self) -> None:
        self.cell: tuple[str, int] | None = None
        self.tracks: dict[str, Track] = {}

    def run(self, cell: tuple[str, int], row: str, setup: Setup) -> tuple[Result, bool]:
        """A row's result, and whether another row trained for it."""
        if cell != self.cell:
            self.cell, self.tracks = cell, {}
        leader, expert = EXPERTS.get(row, ("", ""))
        found = part(self.tracks[leader], expert) if leader in self.tracks else None
        track = found
        if row in LEADERS:
            track = self.tracks[row] = Track(MOST)
        result = execute(setup.method, setup.federation, setup.settings, model=setup.model, track=track)
        return result, found is not None


def part(whole: Track, expert: str) -> Track | None:
    """What a stack's track says of one expert; None if it is not complete, or if a client was left out of a round.

    A client is left out of a stack because of any expert, so that the others would miss it too.
    """
    if not whole.complete or any(event["left_out"] for event in whole.events):
        return None
    own = Track(MOST)
    own.begin(expert, whole.first)
    own.events = [{**event, "logs": {}, "server": {}} for event in whole.events]
    own.states = {done: _of(expert, state) for done, state in whole.states.items()}
    own.end()
    return own


def _of(expert: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """`states/experts/local/w/head.bias` is `states/w/head.bias` of Local alone."""
    found: dict[str, Any] = {path: leaf for path, leaf in state.items() if path in ("joined", "counted", "updated")}
    for kind in ("server", "states"):
        prefix = f"{kind}/experts/{expert}/"
        found |= {
            f"{kind}/{path.removeprefix(prefix)}": leaf for path, leaf in state.items() if path.startswith(prefix)
        }
    found |= {
        f"logs/{path.removeprefix(f'logs/{expert}.')}": leaf
        for path, leaf in state.items()
        if path.startswith(f"logs/{expert}.") and not path.endswith(".weight")
    }
    return found
