"""Where the command starts: signals are dealt with before anything that takes time is imported."""

from __future__ import annotations

from fedprior.cli.signals import handled


def main() -> None:
    """The command."""
    with handled():
        from fedprior.cli.main import main as command

        command()
