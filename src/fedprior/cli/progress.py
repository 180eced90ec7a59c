"""Progress of runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedprior.experiment.config import Config
from fedprior.experiment.journal import Event, Observer

FINISHED = 6  # bars of finished runs that stay in sight


class Show:
    """Gives every run an observer. A context manager: the bars end with it. `runs`, if told, numbers them."""

    def __init__(self, *, quiet: bool, again: str = "`fedprior resume DIR`", runs: int | None = None) -> None:
        self.quiet, self.again, self.runs, self.begun = quiet, again, runs, 0
        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("[bold]{task.description:<10}"),
            BarColumn(bar_width=30),
            TextColumn("round"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self.lines = not quiet and not console.is_terminal

    def __enter__(self) -> Self:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)
        if error[0] is KeyboardInterrupt:  # typer would end without a word
            print(f"interrupted: continue with {self.again}", file=sys.stderr)
            sys.exit(130)

    def __call__(self, config: Config) -> Observer | None:
        """The observer of one run."""
        if self.quiet:
            return None
        name, rounds = config.method["name"], config.rounds
        self.begun += 1
        if self.runs is not None:
            name = f"{self.begun}/{self.runs} {name}"
        for old in [task.id for task in self.bar.tasks if task.finished][:-FINISHED]:
            self.bar.remove_task(old)
        task = self.bar.add_task(name, total=rounds, state="")
        said = time.monotonic()
        state = {"loss": "", "accuracy": ""}

        def observe(event: Event) -> None:
            nonlocal said
            if event["kind"] == "round":
                state["loss"] = f"loss {event['logs'].get('loss', float('nan')):.4f}"
            else:
                state["accuracy"] = f"  test {100 * event['personal']['test']['accuracy']['mean']:.1f} %"
            text = state["loss"] + state["accuracy"]
            self.bar.update(task, completed=event["round"], state=text)
            finished = event["kind"] == "evaluation" and event["round"] == rounds
            if self.lines and (finished or time.monotonic() - said > 5):
                said = time.monotonic()
                print(f"{name}: round {event['round']}/{rounds}  {text}", file=sys.stderr, flush=True)

        return observe
