"""The files in `deploy/` name commands, paths and users that exist. No container is built here."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprior.cli.main import app
from fedprior.flower.proxy import CONTAINER, nginx

DEPLOY = Path(__file__).parents[2] / "deploy"
ANALYZE = shutil.which("systemd-analyze")
COMPOSE = sorted(DEPLOY.glob("*.compose.yaml"))


def commands() -> list[list[str]]:
    """Every call of `fedprior federation` that a file in `deploy/` makes."""
    found = []
    for path in COMPOSE:
        for line in re.findall(r"(?:command|test): \[(.*)\]", path.read_text()):
            words = shlex.split(line.replace(",", " "))
            if words[0] != "nginx":
                found.append(words[3:] if words[0] == "CMD" else words)
    for path in DEPLOY.glob("systemd/*.service"):
        for line in re.findall(r"^Exec(?:Start|Stop)=\S*/fedprior federation (.*)$", path.read_text(), re.MULTILINE):
            found.append(shlex.split(line))
    return found


def test_there_are_commands() -> None:
    assert {command[0] for command in commands()} == {"run", "site", "status", "stop", "try"}


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_the_options_that_it_is_given(command: list[str]) -> None:
    told = CliRunner().invoke(app, ["federation", command[0], "--help"])
    assert told.exit_code == 0
    for option in (part for part in command if part.startswith("--")):
        assert option in told.output


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_no_service_of_ours_has_more_rights_than_it_needs(path: Path) -> None:
    services = re.split(
        r"^  \w+:$", path.read_text().split("\nnetworks:")[0].split("\nvolumes:")[0], flags=re.MULTILINE
    )
    for service in services[1:]:
        for needed in ('user: "10001:10001"', "read_only: true", 'cap_drop: ["ALL"]', "no-new-privileges:true"):
            assert needed in service


def test_what_the_image_copies_is_there() -> None:
    for line in re.findall(r"^COPY (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        for name in line.split()[:-1]:
            assert (DEPLOY.parent / name).exists(), name


def test_the_proxy_is_the_one_that_is_tested() -> None:
    """tests/federation runs nginx with this text and other paths; here nothing but those may differ."""
    assert (DEPLOY / "nginx.conf").read_text() == nginx(**CONTAINER)
    text = (DEPLOY / "server.compose.yaml").read_text()
    assert f':{CONTAINER["listen"]}"]' in text
    assert f"./federation/server:{CONTAINER['certificates']}:ro" in text


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """All but the program, which is not installed here."""
    assert ANALYZE is not None
    units = []
    for path in sorted(DEPLOY.glob("systemd/*.service")):
        units.append(tmp_path / path.name)
        units[-1].write_text(path.read_text().replace("/opt/fedprior/bin/fedprior", "/bin/true"))
    found = subprocess.run([ANALYZE, "verify", *units], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
