"""A federation of real processes for the tests: tables, folder, server, proxy and nodes."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from fedprior.flower import trial
from fedprior.flower.layout import init
from fedprior.flower.link import follow, submit
from fedprior.flower.place import Place
from fedprior.flower.processes import end, environment, free_port, reachable, start
from fedprior.flower.status import read_status

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
ROUNDS = 2


def sections(method: str, rounds: int = ROUNDS) -> dict[str, Any]:
    return {"method": {"name": method}, "rounds": rounds, "data": {"name": "sites", "scaling": "shared"}}


def made(
    folder: Path, method: str = "fedmap", rounds: int = ROUNDS, more: Any = None, **options: Any
) -> tuple[Place, dict[str, Path]]:
    paths = trial.write_tables(folder / "tables")
    schema = trial.schema_of(paths, "target")
    plan = {**sections(method, rounds), **(more or {})}
    given = {"experiment": "trial", "port": free_port(), "timeout": 300, "patience": 300, **options}
    return init(folder / "federation", trial.SITES, schema, plan, **given), paths


def next_experiment(place: Place, name: str, method: str, **changes: Any) -> Place:
    """The same sites and the same server, as a person would edit federation.toml."""
    changed = replace(place, experiment=name, sections=sections(method), **changes)
    changed.write()
    return changed


@contextlib.contextmanager
def proxy(place: Place, folder: Path) -> Iterator[None]:
    """The very configuration that `init` wrote."""
    assert NGINX is not None
    command = [NGINX, "-c", str(place.server / "nginx.conf"), "-p", str(folder), "-g", "daemon off;"]
    process = start(command, folder / "nginx.log", environment(folder))
    try:
        until = time.monotonic() + 30
        while not reachable("127.0.0.1", place.port):
            assert process.poll() is None, (folder / "nginx.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        yield
    finally:
        end(process)


def finish(place: Place) -> dict[str, Any]:
    submit(place)
    return follow(place, lambda found: None)


def wait_for(place: Place, state: str, rounds: int = 0, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while (found := read_status(place.status)).get("state") != state or found.get("round", 0) < rounds:
        assert time.monotonic() < until, found
        assert found["state"] not in ("failed", "finished"), found
        time.sleep(0.2)


def assert_identical(place: Place, paths: Mapping[str, Path], folder: Path) -> None:
    found, _ = trial.differences(place, paths, folder / "sites")
    assert found == []


def offspring(pid: int) -> list[tuple[psutil.Process, list[str]]]:
    """All that a process has started and that still runs, with the words of its command."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found.append((child, child.cmdline()))
    return found
