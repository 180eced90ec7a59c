"""The walk-through of docs/deploy.md as its readers do it: a server and three sites, each with a folder of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from federation.real import assert_identical, offspring, wait_for
from fedprior.flower import trial
from fedprior.flower.place import Place
from fedprior.flower.processes import free_port, reachable

pytestmark = pytest.mark.timeout(900)
GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"
SITES = ("aachen", "bonn", "cologne")
CHANGED = {"federation.example.org": "127.0.0.1", "--rounds 20": "--rounds 3", "--target outcome": "--target target"}
"""What differs from the guide: one machine, fewer rounds, another table."""


def commands() -> dict[str, list[str]]:
    """The guide's commands by name, in the part that the test follows; `NAME .` is at a site, in its folder."""
    part = GUIDE.read_text().split("## From a table to a model")[1].split("\n## ")[0]
    found: dict[str, list[str]] = {}
    for block in re.findall(r"```sh\n(.*?)```", part, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("fedprior federation "):
                words = shlex.split(
                    reduce(lambda text, pair: text.replace(*pair), CHANGED.items(), line), comments=True
                )
                found.setdefault(" ".join(words[2 : 3 if words[3] != "." else 4]), words[1:])
    return found


GUIDED = commands()


def called(name: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "fedprior", *GUIDED[name], *more]


def done(folder: Path, name: str, *more: str, code: int = 0) -> str:
    """What a command of the guide prints, as one line."""
    found = subprocess.run(
        called(name, *more),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert found.returncode == code, found.stdout + found.stderr
    return " ".join((found.stdout + found.stderr).split())


@contextmanager
def running(folder: Path, name: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a terminal of its own; SIGTERM must end all that it started."""
    with (folder / f"{name.partition(' ')[0]}.log").open("a") as log:
        process = subprocess.Popen(
            called(name, *more), cwd=folder, stdout=log, stderr=log, text=True, stdin=subprocess.DEVNULL
        )
    try:
        yield process
    finally:
        started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        process.wait(timeout=60)
        _, left = psutil.wait_procs(started, timeout=20)
        for child in left:
            child.kill()
        assert not left or name == "run", left


def test_the_guide_names_every_command() -> None:
    assert GUIDED.keys() == {
        "schema",
        "init",
        "doctor",
        "doctor .",
        "run",
        "status",
        "stop",
        "resume",
        "site .",
        "audit",
    }


def test_the_walk_through(tmp_path: Path) -> None:
    trial_tables = trial.write_tables(tmp_path / "tables")
    homes, server = {site: tmp_path / site for site in SITES}, tmp_path / "server"
    server.mkdir()
    for home, table in zip(homes.values(), trial_tables.values(), strict=True):
        home.mkdir()
        shutil.copy(table, home / "patients.csv")
    said = done(homes["aachen"], "schema")
    assert "Read 'schema.toml' before you send it" in said
    shutil.copy(homes["aachen"] / "schema.toml", server)

    port = str(free_port())
    said = done(server, "init", "--port", port)
    assert all(f"to {site}, by a private channel" in said for site in SITES)
    for site, home in homes.items():
        shutil.copytree(server / "study" / "sites" / site, home / "federation")
        shutil.copy(home / "patients.csv", home / "federation")
    shutil.rmtree(server / "study" / "sites")  # the server does not need the sites' keys
    assert "port" in done(server, "doctor")
    said = done(homes["bonn"] / "federation", "doctor .", code=2)
    assert "FAIL server" in said, "nobody listens yet"

    place = Place.read(server / "study")
    with running(server, "run") as run:
        while not reachable("127.0.0.1", int(port)):
            assert run.poll() is None, (server / "run.log").read_text()
            time.sleep(0.2)
        assert json.loads(done(server, "status", "--json"))["server"] is True
        done(server, "status", "--check")
        with running_sites(homes):
            wait_for(place, "training", 1)
            assert "stopped" in done(server, "stop")
            assert run.wait(timeout=60) == 2
            assert "resume the experiment" in (server / "run.log").read_text()
            assert "the server does not run" in done(server, "status")
            done(server, "status", "--check", code=1)
            assert "results: " in done(server, "resume")
            for home in homes.values():
                said = done(home / "federation", "doctor .")
                assert "FAIL" not in said
                assert "clock" in said
    assert "stopped" in done(server, "stop")
    assert "nothing was running" in done(server, "stop")
    for site, home in homes.items():
        said = done(home / "federation", "audit")
        assert f"{site}, experiment first" in said
        assert "log_omega: logarithm of the evidence weight" in said
        assert (home / "federation" / "state" / "first" / site / "model-card.md").exists()
    tables = {site: home / "patients.csv" for site, home in homes.items()}
    (tmp_path / "sites").mkdir()
    for site, home in homes.items():
        (tmp_path / "sites" / site).symlink_to(home / "federation" / "state")
    assert_identical(place, tables, tmp_path)
    assert not list(server.rglob("model.safetensors"))


@contextmanager
def running_sites(homes: dict[str, Path]) -> Iterator[None]:
    with ExitStack() as stack:
        for home in homes.values():
            stack.enter_context(running(home / "federation", "site .", "--port", str(free_port())))
        yield


@pytest.mark.skipif(sys.platform != "linux", reason="process groups and /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_trial_that_is_ended_leaves_nothing_behind(how: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fedprior", "federation", "try", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while sum("flower-supernode" in " ".join(words) for _, words in offspring(process.pid)) < 3:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
        started = [child for child, _ in offspring(process.pid)]
    finally:
        os.kill(process.pid, how)
        process.wait(timeout=60)
    _, left = psutil.wait_procs(started, timeout=30)
    left = [child for child in left if child.status() != psutil.STATUS_ZOMBIE]
    for child in left:
        child.kill()
    assert not left
