"""Progress of runs: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedprior.cli.signals import SAME, interruptible
from fedprior.experiment.folder import COMPARISON, RUN
from fedprior.experiment.journal import Event, Observer
from fedprior.metrics import SELECTS
from fedprior.names import on_screen

FINISHED = 6  # bars of finished runs that stay visible


class RunProgress:
    """Gives every run an observer. Use it as a context manager. `runs`, if given, is their number.

    After an interruption it says how to continue: with `again`, or by resuming `folder`.
    """

    def __init__(
        self, *, quiet: bool, folder: Path | None = None, again: str | None = None, runs: int | None = None
    ) -> None:
        self.quiet, self.folder, self.again, self.runs, self.begun = quiet, folder, again, runs, 0
        self.open = ExitStack()
        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description:<10}", style="bold", markup=False),
            BarColumn(bar_width=30),
            TextColumn("round"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self.lines = not quiet and not console.is_terminal

    def __enter__(self) -> Self:
        self.open.enter_context(interruptible(self._hint))
        self.open.enter_context(self.bar)
        return self

    def __exit__(self, *error: Any) -> None:
        self.open.__exit__(*error)

    def _hint(self) -> str:
        """How to continue."""
        if self.again is not None:
            return f"continue with {self.again}"
        begun = self.folder is not None and any((self.folder / name).exists() for name in (RUN, COMPARISON))
        return f"continue with `fedprior resume {shlex.quote(str(self.folder))}`" if begun else SAME

    def __call__(self, name: str, rounds: int) -> Observer | None:
        """The observer of one run."""
        if self.quiet:
            return None
        self.begun += 1
        if self.runs is not None:
            name = f"{self.begun}/{self.runs} {name}"
        for old in [task.id for task in self.bar.tasks if task.finished][:-FINISHED]:
            self.bar.remove_task(old)
        name = on_screen(name)
        task = self.bar.add_task(name, total=rounds, state="")
        said = time.monotonic()
        state = {"loss": "", "score": ""}

        def observe(event: Event) -> None:
            nonlocal said, rounds
            if event.get("converged"):  # it ends here
                rounds = event["round"]
            if event["kind"] == "round":
                state["loss"] = f"loss {event['logs'].get('loss', float('nan')):.4f}"
            elif event["kind"] == "evaluation":
                state["score"] = _validation(event)
            saved = f"  saved {event['models']:,} of {event['of']:,} models" if event["kind"] == "saving" else ""
            text = state["loss"] + state["score"] + saved
            self.bar.update(task, total=rounds, completed=event["round"], state=text)
            finished = event["kind"] == "evaluation" and event["round"] == rounds
            if self.lines and (finished or time.monotonic() - said > 5):
                said = time.monotonic()
                print(f"{name}: round {event['round']}/{rounds}  {text}", file=sys.stderr, flush=True)

        return observe


def _validation(event: Event) -> str:
    """The personal models' validation NLL; a progress bar shows no test results."""
    found = event["personal"]["validation"]
    value = found[SELECTS]["mean"] if found["evaluated"] else None
    return f"  validation NLL {value:.3f}" if value is not None else ""
