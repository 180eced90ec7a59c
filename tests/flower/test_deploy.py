"""The files in `deploy/` name commands, paths and users that exist. No container is built here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprior.cli.main import app

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = sorted(DEPLOY.glob("*.compose.yaml"))


def commands() -> list[list[str]]:
    """Every call of `fedprior federation` that a file in `deploy/` makes."""
    found = []
    for path in COMPOSE:
        for line in re.findall(r"command: \[(.*)\]", path.read_text()):
            found.append(shlex.split(line.replace(",", " ")))
    for path in DEPLOY.glob("systemd/*.service"):
        for line in re.findall(r"^Exec(?:Start|Stop)=\S*/fedprior federation (.*)$", path.read_text(), re.MULTILINE):
            found.append(shlex.split(line))
    return found


def test_there_are_commands() -> None:
    assert {command[0] for command in commands()} == {"run", "site", "stop", "try"}


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_the_options_that_it_is_given(command: list[str]) -> None:
    told = CliRunner().invoke(app, ["federation", command[0], "--help"])
    assert told.exit_code == 0
    for option in (part for part in command if part.startswith("--")):
        assert option in told.output


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_no_service_of_ours_has_more_rights_than_it_needs(path: Path) -> None:
    ours = path.read_text().split("proxy:")[0]
    for needed in ('user: "10001:10001"', "read_only: true", 'cap_drop: ["ALL"]', "no-new-privileges:true"):
        assert needed in ours


def test_what_the_image_copies_is_there() -> None:
    for line in re.findall(r"^COPY (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        for name in line.split()[:-1]:
            assert (DEPLOY.parent / name).exists(), name


def test_the_proxy_passes_the_fleet_interface_alone() -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    assert re.findall(r"location (\S+) \{\s+(\w+)", text) == [("/v1/fleet/", "proxy_pass"), ("/", "return")]
    assert "return 403" in text
