"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Options = Annotated[
    list[str] | None,
    typer.Argument(help="overrides such as data.skew=label, method.sigma2=15, train.lr=0.01, model.name=mlp"),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
WritePage = Annotated[bool, typer.Option("--report/--no-report", help="write report.html into the output folder")]
Data = Annotated[str | None, typer.Option("--data", help="data set, see `fedprior data list`")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="communication rounds")]
Seed = Annotated[int | None, typer.Option("--seed", help="seed of the partition, the weights and every draw")]
Workers = Annotated[
    str | None, typer.Option("--workers", help="worker processes, or auto; results do not depend on it")
]
Out = Annotated[Path | None, typer.Option("--out", help="new folder for the results")]
File = Annotated[Path | None, typer.Option("--config", help="a TOML file with the same keys as the overrides")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print only errors")]


def sections(
    method: str | None, data: str | None, rounds: int | None, seed: int | None, workers: str | None
) -> dict[str, Any]:
    """What is given by name, as sections of a configuration."""
    return {
        "method": {"name": method} if method else None,
        "data": {"name": data} if data else None,
        "rounds": rounds,
        "seed": seed,
        "workers": count(workers),
    }


def count(workers: str | None) -> int | str | None:
    """A number of workers as such; anything else is checked, or refused, with the configuration."""
    if workers is not None and workers.isascii() and workers.isdecimal() and len(workers) < 10:
        return int(workers)
    return workers
