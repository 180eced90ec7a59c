"""Printing to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text

from fedprior.names import visible


def screen(width: int = 130) -> Console:
    """Standard output, as wide as the terminal, or `width` without one, so that files have whole lines."""
    return Console() if sys.stdout.isatty() else Console(width=width)


def say(console: Console, told: str) -> None:
    """Print a line that may quote names, without interpreting markup."""
    console.print(Text(visible(told)))


def replace_unknown() -> None:
    """Replace characters that the output's encoding does not have, instead of failing."""
    for stream, how in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=how)


@contextmanager
def loading(what: str, *, quiet: bool) -> Iterator[None]:
    """Show on a terminal that something is loading: PyTorch and data take seconds."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
    else:
        with console.status(Text(visible(f"loading {what}")), spinner="dots"):
            yield
