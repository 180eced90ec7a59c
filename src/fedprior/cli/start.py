"""Entry point of the command, which handles signals before it imports anything slow."""

from __future__ import annotations

import os
import sys

from fedprior.cli.signals import handled


def main() -> None:
    """The command."""
    standard_streams()
    with handled():
        from fedprior.cli.main import main as command

        command()


def standard_streams() -> None:
    """Open the standard streams that the process was started without (`>&-`), on nothing.

    Otherwise the first files of a run would get their numbers, and with them whatever is printed.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free one; 2 is standard error
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
