"""Where tables are printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text

from fedprior.names import visible


def screen(width: int = 130) -> Console:
    """Standard output, as wide as the terminal; `width` where there is none, so that a file holds whole lines."""
    return Console() if sys.stdout.isatty() else Console(width=width)


def say(console: Console, told: str) -> None:
    """Print a line that quotes names: nothing in it is markup."""
    console.print(Text(visible(told)))


def replace_unknown() -> None:
    """What a terminal or a file has no character for is replaced, instead of ending the command."""
    for stream, how in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=how)


@contextmanager
def loading(what: str, *, quiet: bool) -> Iterator[None]:
    """Say at once, on a terminal, that something is going on: PyTorch and data take seconds to load."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
    else:
        with console.status(Text(visible(f"loading {what}")), spinner="dots"):
            yield
