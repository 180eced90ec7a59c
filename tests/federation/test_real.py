"""A SuperLink and three SuperNodes with TLS and registered keys, as real processes, behind nginx where there is one.

One server and three nodes serve all tests of this file: the experiments follow each other, as at real sites.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from federation.real import NGINX, assert_identical, finish, made, next_experiment, proxy
from fedprior.flower import trial
from fedprior.flower.certificates import make_authority, make_site_key
from fedprior.flower.doctor import examine
from fedprior.flower.place import Place
from fedprior.flower.processes import end, environment, free_port, start, supernode

pytestmark = pytest.mark.timeout(900)


class Running(NamedTuple):
    place: Place
    paths: dict[str, Path]
    folder: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("real")
    listen = None if NGINX is None else f"127.0.0.1:{free_port()}"
    place, paths = made(folder, listen=listen)
    assert all(check.fine for check in examine(place.folder, None, folder))
    with ExitStack() as stack:
        stack.enter_context(trial.server(place))
        if place.proxied:
            stack.enter_context(proxy(place, folder))
        stack.enter_context(trial.nodes(place, paths, folder / "sites"))
        yield Running(place, paths, folder)


@pytest.mark.parametrize("method", ["fedmap", "pfedvem", "pfedfda", "fedbps", "pfedbred"])
def test_a_real_federation_equals_the_simulator(method: str, running: Running) -> None:
    place = next_experiment(running.place, method, method)
    assert finish(place)["state"] == "finished"
    assert_identical(place, running.paths, running.folder)
    assert not (place.run / "models").exists()
    assert (place.run / "summary.json").exists()


def test_a_site_sees_that_all_is_well(running: Running) -> None:
    found = examine(running.place.site("north"), running.paths["north"], running.folder / "sites")
    assert all(check.fine for check in found), found
    assert {"server", "clock", "table"} <= {check.what for check in found}


def test_the_bytes_on_the_wire_are_those_that_the_method_counts(running: Running) -> None:
    """What a site wrote down as sent, against the server's journal: both count arrays, without Flower's frame."""
    place = next_experiment(running.place, "fedmap", "fedmap")
    if not place.run.exists():
        finish(place)
    events = [json.loads(line) for line in (place.run / "events.jsonl").read_text().splitlines()]
    counted = sum(event["bytes_up"] for event in events if event["kind"] == "round")
    sent = 0
    for site in running.paths:
        lines = (running.folder / "sites" / site / "fedmap" / site / "sent.jsonl").read_text().splitlines()
        rounds = [entry for entry in map(json.loads, lines) if entry["kind"] == "round"]
        sent += sum(field["bytes"] for entry in rounds for field in entry["fields"])
    assert sent == counted > 0


def attempt(folder: Path, place: Place, table: Path, *, insecure: bool = False) -> tuple[int, str]:
    """The exit code of a node that should be refused, and what it said."""
    command = [*supernode(folder, place.address, "north", table, folder, free_port()), "--max-retries", "1"]
    if insecure:
        trust, key = command.index("--root-certificates"), command.index("--auth-supernode-private-key")
        command = [part for i, part in enumerate(command) if i not in (trust, trust + 1, key, key + 1)] + ["--insecure"]
    node = start(command, folder / "log", environment(folder))
    try:
        code = node.wait(timeout=180)
    finally:
        end(node)
    return code, (folder / "log").read_text()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("key", "Failed to activate SuperNode"),
        ("authority", "CERTIFICATE_VERIFY_FAILED"),
        ("no TLS", "Failed to initialize the connection to the SuperLink"),
    ],
)
def test_strangers_are_refused(fault: str, why: str, running: Running, tmp_path: Path) -> None:
    """A key that nobody registered; a server of another authority; a connection that is not encrypted."""
    place = running.place
    (tmp_path / "stranger").mkdir()
    make_site_key(tmp_path / "stranger")
    make_authority(tmp_path / "stranger", ["127.0.0.1"])
    key = tmp_path / "stranger" if fault == "key" else place.site("north")
    authority = tmp_path / "stranger" if fault == "authority" else place.server
    (tmp_path / "site.key").write_bytes((key / "site.key").read_bytes())
    (tmp_path / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    code, said = attempt(tmp_path, place, running.paths["north"], insecure=fault == "no TLS")
    assert code != 0
    assert why in said


@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_the_proxy_passes_the_fleet_interface_alone(running: Running) -> None:
    """The server itself answers the control interface; through the proxy nobody reaches it."""
    place = running.place
    context = ssl.create_default_context(cafile=str(place.server / "ca.crt"))

    def code(port: int, path: str) -> int:
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data=b"", method="POST")
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    for path in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/pull-messages", "/health", "/"):
        assert code(place.port, path) == 403, path
    for path in ("/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "//v1/control/list-runs"):
        assert code(place.port, path) in (400, 403, 404), path
    assert code(place.local[1], "/v1/control/list-runs") != 403, "without the proxy it would have been reached"
    assert code(place.port, "/v1/fleet/pull-messages") not in (403, 404, 502), "the fleet interface answers by itself"
