"""A SuperLink and three SuperNodes with TLS and registered keys, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from fedprior.flower import processes, trial
from fedprior.flower.certificates import make_authority, make_site_key
from fedprior.flower.doctor import examine
from fedprior.flower.layout import init
from fedprior.flower.place import Place
from fedprior.flower.status import read_status

pytestmark = pytest.mark.timeout(1500)
ROUNDS = 2


def made(folder: Path, method: str = "fedmap", rounds: int = ROUNDS, **options: Any) -> tuple[Place, dict[str, Path]]:
    paths = trial.write_tables(folder / "tables")
    sections = {"method": {"name": method}, "rounds": rounds, "data": {"name": "sites", "scaling": "shared"}}
    schema = trial.schema_of(paths, "target")
    given = {"experiment": "trial", "port": processes.free_port(), "timeout": 300, "patience": 300, **options}
    return init(folder / "federation", trial.SITES, schema, sections, **given), paths


@contextlib.contextmanager
def server(place: Place) -> Iterator[int]:
    pid = processes.start_link(place)
    try:
        processes.register(place)
        yield pid
    finally:
        processes.end(processes.link_pid(place) or pid)


def finish(place: Place) -> dict[str, Any]:
    processes.submit(place)
    return processes.follow(place, lambda found: None)


def wait_for(place: Place, state: str, rounds: int = 0) -> None:
    until = time.monotonic() + 600
    while (found := read_status(place.status)).get("state") != state or found.get("round", 0) < rounds:
        assert time.monotonic() < until, found
        assert found["state"] not in ("failed", "finished"), found
        time.sleep(0.2)


def assert_identical(place: Place, paths: Mapping[str, Path], folder: Path) -> None:
    found, _ = trial.differences(place, paths, folder / "sites")
    assert found == []


@pytest.mark.parametrize(
    "method",
    ["fedmap", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pfedvem", "pfedfda", "fedbps", "pfedbred"))],
)
def test_a_real_federation_equals_the_simulator(method: str, tmp_path: Path) -> None:
    place, paths = made(tmp_path, method)
    assert all(check.fine for check in examine(place.folder, None, tmp_path))
    with server(place), trial.nodes(place, paths, tmp_path / "sites"):
        site = examine(place.site("north"), paths["north"], tmp_path / "sites")
        assert all(check.fine for check in site), site
        assert finish(place)["state"] == "finished"
    assert_identical(place, paths, tmp_path)
    assert not (place.run / "models").exists()
    assert (place.run / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["node", "app", "link"])
def test_kill_nine_and_go_on(victim: str, tmp_path: Path) -> None:
    """A SuperNode, the ServerApp or the SuperLink dies in the middle: resumed, the same models."""
    place, paths = made(tmp_path, "pfedvem", rounds=3, timeout=400)
    with server(place) as link, trial.nodes(place, paths, tmp_path / "sites") as nodes:
        processes.submit(place)
        wait_for(place, "training", 1)
        if victim == "node":
            os.killpg(nodes["south"].pid, signal.SIGKILL)
            nodes["south"].wait()
            until = time.monotonic() + 300
            nodes["south"] = trial.start_node(place, "south", paths["south"], tmp_path / "sites")
            while read_status(place.status)["state"] == "training" and time.monotonic() < until:
                if nodes["south"].poll() is not None:  # refused until Flower has noticed that it died
                    processes.end(nodes["south"].pid)
                    nodes["south"] = trial.start_node(place, "south", paths["south"], tmp_path / "sites")
                time.sleep(2)
            assert processes.follow(place, lambda found: None)["state"] == "finished"
        else:
            if victim == "app":
                os.kill(int(read_status(place.status)["pid"]), signal.SIGKILL)
            else:
                os.killpg(link, signal.SIGKILL)
            time.sleep(1)
            assert read_status(place.status)["state"] == "failed"
            processes.start_link(place)
            processes.register(place)
            assert finish(place)["state"] == "finished"
    assert_identical(place, paths, tmp_path)


def test_strangers_are_refused(tmp_path: Path) -> None:
    """A key that nobody registered, and a server of another authority: neither node gets in."""
    place, paths = made(tmp_path)
    with server(place):
        (tmp_path / "stranger").mkdir()
        make_site_key(tmp_path / "stranger")
        make_authority(tmp_path / "stranger", "127.0.0.1")
        for key, authority in ((tmp_path / "stranger", place.server), (place.site("north"), tmp_path / "stranger")):
            folder = tmp_path / f"as-{key.name}"
            folder.mkdir()
            (folder / "site.key").write_bytes((key / "site.key").read_bytes())
            (folder / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
            port = processes.free_port()
            command = processes.supernode(folder, place.address, "north", paths["north"], folder, port)
            log = folder / "log"
            node = processes.start([*command, "--max-retries", "1"], log, processes.environment(folder))
            try:
                assert node.wait(timeout=120) != 0, log.read_text()[-500:]
            finally:
                processes.end(node.pid)


@pytest.mark.slow
def test_a_site_that_never_answers_ends_the_wait(tmp_path: Path) -> None:
    place, paths = made(tmp_path, timeout=300, patience=5)
    with server(place), trial.nodes(place, {s: p for s, p in paths.items() if s != "west"}, tmp_path / "sites"):
        found = finish(place)
    assert found["state"] == "failed"
    assert "no node of west is online" in found["why"]
