"""Progress in a notebook: one line below the cell, which changes as methods train."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from fedprior.experiment.journal import Event, Observer
from fedprior.metrics import SELECTS
from fedprior.names import on_screen

Observers = Callable[[str, int], Observer | None]
"""Called with a method's name and number of rounds for each run that has rounds left; returns its observer."""
PAUSE = 0.2
"""Seconds between two changes of the line."""


def observers(observe: Observer | None = None) -> Observers:
    """What runs are observed with if nothing else is given: `observe`, or in a notebook a line."""
    kernel = _kernel()
    return (lambda name, rounds: observe) if observe is not None or kernel is None else _Line(kernel)


def _kernel() -> Any:
    """The notebook's; None elsewhere, also in IPython on a terminal."""
    ipython = sys.modules.get("IPython")  # where there is a kernel, it has been imported
    shell = None if ipython is None else ipython.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


class _Line:
    """Gives every run an observer that writes into the line of the cell that is executed."""

    cell: tuple[Any, Any] = (None, None)  # number of the cell that had the last line, and that line

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.said = kernel, 0.0

    def __call__(self, name: str, rounds: int) -> Observer:
        """The observer of one run."""
        score = ""

        def observe(event: Event) -> None:
            nonlocal score
            last = rounds if not event.get("converged") else event["round"]
            if event["kind"] == "evaluation" and event["personal"]["validation"]["evaluated"]:
                score = f", validation NLL {event['personal']['validation'][SELECTS]['mean']:.3f}"
            if event["round"] == last or time.monotonic() - self.said > PAUSE:
                self.say(f"{on_screen(name)}: round {event['round']} of {rounds}{score}")

        return observe

    def say(self, told: str) -> None:
        """Show the line, or change it."""
        from IPython.display import display

        number, line = _Line.cell
        bundle, self.said = {"text/plain": told}, time.monotonic()
        if number == self.kernel.execution_count:
            line.update(bundle, raw=True)
        else:
            line = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
            _Line.cell = self.kernel.execution_count, line
