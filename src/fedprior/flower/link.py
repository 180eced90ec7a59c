"""The server's SuperLink: started once for a folder, told which keys belong to which sites, and given experiments."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import tomli_w

from fedprior.errors import FedpriorError
from fedprior.files import write_text
from fedprior.flower.certificates import check_dates
from fedprior.flower.place import Place
from fedprior.flower.processes import Process, end, end_marked, environment, mark, marked, program, reachable, start
from fedprior.flower.status import read_status

STARTING = 120.0
"""Seconds that Flower has to start."""
SUBMITTED = "submitted"
CONNECTION = "federation"


def superlink(place: Place) -> list[str]:
    """The server's command."""
    server, (host, port) = place.server, place.listening
    return [
        program("flower-superlink"),
        *("--ssl-ca-certfile", str(server / "ca.crt")),
        *("--ssl-certfile", str(server / "server.crt")),
        *("--ssl-keyfile", str(server / "server.key")),
        "--enable-supernode-auth",
        *("--host", host, "--port", str(port)),
        *("--database", str(server / "link.db")),
        "--disable-runtime-dependency-installation",
    ]


def runs(place: Place) -> bool:
    """Whether the SuperLink of a folder runs."""
    return bool(marked([mark(place.folder)])) and reachable(*place.local)


def start_link(place: Place) -> None:
    """Start the SuperLink, unless it runs; it goes on when this process ends."""
    if not runs(place):
        launch_link(place, leashed=False).returncode = 0  # nobody here waits for it


def launch_link(place: Place, *, leashed: bool = True) -> Process:
    """A new SuperLink that listens; what an earlier one has left behind is ended first."""
    check_dates(place.server / "server.crt")
    stop_link(place)
    host, port = place.local
    if reachable(host, port):
        raise FedpriorError(f"port {port} is in use by another program: stop it, or change the port.")
    log, env = place.server / "superlink.log", environment(place.server / "flwr")
    process = start(superlink(place), log, env, mark=mark(place.folder), leashed=leashed)
    until = time.monotonic() + STARTING
    while not reachable(host, port):
        if process.poll() is not None or time.monotonic() > until:
            end(process)
            raise FedpriorError(f"Flower's SuperLink did not start: see '{log}'.")
        time.sleep(0.2)
    return process


def stop_link(place: Place) -> bool:
    """End the SuperLink with the experiment that it runs; whether there was one."""
    return end_marked([mark(place.folder)])


def flwr(place: Place, *arguments: str) -> dict[str, Any]:
    """One of Flower's commands at the server, and what it answers."""
    home, (host, port) = place.server / "flwr", place.local
    known = {"address": f"{host}:{port}", "root-certificates": str(place.server / "ca.crt")}
    write_text(home / "config.toml", tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: known}}))
    command = [program("flwr"), *arguments, CONNECTION, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(home), timeout=120, check=False)
    text = done.stdout[done.stdout.find("{") :]
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"success": False, "error-message": (done.stdout + done.stderr)[-800:]}
    return found


def register(place: Place) -> None:
    """Tell the SuperLink which keys belong to which sites; once is enough, since its database keeps them."""
    done = place.server / "registered.json"
    old = done.exists() and (place.server / "link.db").exists()
    known = json.loads(done.read_text(encoding="utf-8")) if old else []
    for site in place.sites:
        if site in known:
            continue
        key = place.server / "keys" / f"{site}.pub"
        found = flwr(place, "supernode", "register", str(key), "--name", site)
        if not found.get("success"):
            why = str(found.get("error-message", "no answer"))
            raise FedpriorError(f"the key of '{site}' was not registered: {why[-300:]}")
        known = [*known, site]
        write_text(done, json.dumps(known) + "\n")


def submit(place: Place) -> None:
    """Start the experiment, or go on with it."""
    write_text(place.status, json.dumps({"state": SUBMITTED, "pid": os.getpid()}) + "\n")
    found = flwr(place, "run", str(place.folder / "app"), "--run-config", f"folder={json.dumps(str(place.folder))}")
    if not found.get("success"):
        why = str(found.get("error-message", "no answer"))
        raise FedpriorError(f"Flower did not start the experiment: {why[-300:]}")


def follow(place: Place, tell: Callable[[dict[str, Any]], None], poll: float = 0.5) -> dict[str, Any]:
    """Wait until the experiment has ended, and say how it is going."""
    last: dict[str, Any] = {}
    until = time.monotonic() + STARTING
    while True:
        found = read_status(place.status)
        if found["state"] == SUBMITTED and time.monotonic() > until:
            raise FedpriorError(f"the experiment did not start: see '{place.server / 'superlink.log'}'.")
        if found != last:
            tell(found)
            last = found
        if found["state"] in ("finished", "failed"):
            return found
        time.sleep(poll)
