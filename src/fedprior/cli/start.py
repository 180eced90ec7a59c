"""Entry point of the command, which handles signals before it imports anything slow."""

from __future__ import annotations

from fedprior.cli.signals import handled


def main() -> None:
    """The command."""
    with handled():
        from fedprior.cli.main import main as command

        command()
