"""The command that lists the methods, or describes one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedprior.cli.arguments import Json
from fedprior.cli.screen import say, screen

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="a method; wrappers may follow, as in fedmap+ft")]


def methods(name: Name = None, as_json: Json = False) -> None:
    """List the methods, or describe one: its paper, its equations, and the default and meaning of every option.

    Example: fedprior methods

    Example: fedprior methods fedmap
    """
    from fedprior.report import tables

    if name is not None:
        _describe(name, as_json=as_json)
    elif as_json:
        from fedprior.experiment.catalogue import catalogue

        print(json.dumps(catalogue(), indent=2))
    else:
        screen(120).print(tables.methods())


def _describe(name: str, *, as_json: bool) -> None:
    from fedprior.methods import build
    from fedprior.report import tables
    from fedprior.report.options import equations, options_of_method

    about, found = build(name).about, options_of_method(name)
    if as_json:
        print(json.dumps({**about._asdict(), "options": [option._asdict() for option in found]}, indent=2))
        return
    console = screen(120)
    for line in (*equations(name).splitlines(), "", f"{about.paper}, {about.year}"):
        say(console, line)
    say(console, f"Personal: {about.personal}. Evaluated {about.moment}.")
    console.print()
    console.print(tables.options(found))
