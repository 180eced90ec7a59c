"""Every command's help has an example, and every example is a command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedprior.cli.main import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
    for name, child in (children or {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(get_command(app)))


def examples(command: Any) -> list[list[str]]:
    lines = [line.strip().removeprefix("Example: ").strip() for line in (command.help or "").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("fedprior ")]


@pytest.mark.parametrize("path", list(ALL), ids=" ".join)
def test_the_examples_of_a_command_can_be_parsed(path: tuple[str, ...]) -> None:
    found = examples(ALL[path])
    assert any(words[1 : 1 + len(path)] == list(path) for words in found)
    for words in found:
        named = next(name for name in ALL if tuple(words[1 : 1 + len(name)]) == name)
        ALL[named].make_context(" ".join(named), words[1 + len(named) :])  # parses, and runs nothing


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedprior", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_a_shell_can_complete() -> None:
    found = run(_FEDPRIOR_COMPLETE="complete_bash", COMP_WORDS="fedprior com", COMP_CWORD="1")
    assert (found.returncode, found.stdout.split()) == (0, ["compare"])
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # tests may run without a shell above them
    assert "_fedprior_completion" in run("--show-completion", "bash", **named).stdout


def test_there_are_no_colours_and_no_bars_without_a_terminal(tmp_path: Path) -> None:
    words = ["compare", "--data", "synthetic", "--methods", "local", "--no-baselines", "--rounds", "1", "--no-report"]
    found = run(*words, "--out", str(tmp_path / "out"), NO_COLOR="1")
    assert found.returncode == 0, found.stderr
    assert "\x1b" not in found.stdout + found.stderr
    assert "\r" not in found.stderr
    assert "━" not in found.stderr


def test_exit_codes_are_in_the_help() -> None:
    assert "Exit codes: 0 done; 2 refused" in " ".join(run("--help", COLUMNS="200").stdout.split())
