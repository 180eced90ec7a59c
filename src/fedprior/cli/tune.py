"""`fedprior tune`: the settings of methods, searched on validation data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedprior.cli.arguments import Data, File, Quiet, Rounds, Seed, Workers
from fedprior.cli.compare import Arguments, Column, Group, Methods, Target, Time, chosen_methods, configured
from fedprior.cli.screen import loading, say, screen
from fedprior.names import on_screen

Tries = Annotated[int, typer.Option("--tries", min=1, help="tries per method, the first with its defaults")]
Minutes = Annotated[float, typer.Option("--minutes", help="most minutes per method; a try that has begun is finished")]
Splits = Annotated[int, typer.Option("--splits", min=1, help="splits that each score is averaged over")]
Where = Annotated[Path, typer.Option("--out", help="folder for study.db and tuned.toml; the same command continues it")]


def tune(
    out: Where,
    options: Arguments = None,
    methods: Methods = None,
    site: Column = None,
    target: Target = None,
    group: Group = None,
    time: Time = None,
    tries: Tries = 20,
    minutes: Minutes = 10.0,
    splits: Splits = 2,
    data: Data = None,
    rounds: Rounds = None,
    seed: Seed = None,
    workers: Workers = None,
    config: File = None,
    quiet: Quiet = False,
) -> None:
    """Search each method's settings for the lowest validation NLL, with the same tries and time for every method.

    fedprior tune hospitals.csv --site hospital --target outcome --methods local,fedmap --out tuned

    fedprior compare hospitals.csv --site hospital --target outcome --config tuned/tuned.toml
    """
    table = {"site": site, "target": target, "group": group, "time": time}
    with loading("PyTorch and data", quiet=quiet):
        from fedprior.experiment import tuning

        document = configured(list(options or []), table, data, rounds, seed, workers, config)[0]
        chosen = chosen_methods(document.methods, methods, ()) if methods or document.methods else {}
        document = document.model_copy(update={"methods": chosen})

    def tell(name: str, number: int, score: float) -> None:
        print(f"{on_screen(name)}: try {number}, validation NLL {score:.4f}", file=sys.stderr, flush=True)

    found = tuning.tune(document, out, tries=tries, minutes=minutes, splits=splits, tell=None if quiet else tell)
    if quiet:
        return
    console = screen(120)
    for name, best in found.items():
        told = ", ".join(f"{key}={value}" for key, value in best.options.items()) or "defaults"
        say(console, f"{name}: {best.before:.4f} → {best.score:.4f} in {best.tries} tries ({told})")
    say(console, f"settings: {out / tuning.TUNED}")
