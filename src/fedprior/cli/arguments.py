"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Options = Annotated[
    list[str] | None,
    typer.Argument(help="overrides such as data.skew=label, method.sigma2=15, train.lr=0.01, model.name=mlp"),
]
Json = Annotated[bool, typer.Option("--json", help="print the summary as JSON")]
WritePage = Annotated[bool, typer.Option("--report/--no-report", help="write report.html into the output folder")]
