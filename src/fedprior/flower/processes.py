"""Flower's processes, started, watched and stopped: the SuperLink at the server, a SuperNode at each site."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.files import write_text
from fedprior.flower.place import Place

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}
"""No telemetry, nothing that is installed at run time, one thread: parallelism comes from sites."""
STARTING = 120.0
"""Seconds that Flower has to start."""
SUBMITTED = "submitted"


def program(name: str) -> str:
    """One of Flower's commands, from the environment that runs this."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FedpriorError("a real federation needs Flower: install fedprior[flower].")
    return found


def environment(home: Path) -> dict[str, str]:
    """For Flower's processes."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}


def superlink(place: Place) -> list[str]:
    """The server's command."""
    server = place.server
    listen = "127.0.0.1" if place.host in ("127.0.0.1", "localhost") else "0.0.0.0"
    return [
        program("flower-superlink"),
        *("--ssl-ca-certfile", str(server / "ca.crt")),
        *("--ssl-certfile", str(server / "server.crt")),
        *("--ssl-keyfile", str(server / "server.key")),
        "--enable-supernode-auth",
        *("--host", listen, "--port", str(place.port)),
        *("--database", str(server / "link.db")),
        "--disable-runtime-dependency-installation",
    ]


def supernode(folder: Path, address: str, site: str, table: Path, state: Path, port: int) -> list[str]:
    """A site's command."""
    own = {"site": site, "table": str(table.absolute()), "state": str(state.absolute())}
    return [
        program("flower-supernode"),
        *("--root-certificates", str(folder / "ca.crt")),
        *("--superlink", address),
        *("--auth-supernode-private-key", str(folder / "site.key")),
        *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in own.items())),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def start(command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process with a group of its own, so that all that it starts can be ended with it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        streams: dict[str, Any] = {"stdout": file, "stderr": file, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(command, env=dict(env), start_new_session=True, **streams)


def end(*pids: int, seconds: float = 10.0) -> None:
    """End processes with all of their groups: politely, then not."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, how)
        until = time.monotonic() + seconds
        while any(_group(pid) for pid in pids) and time.monotonic() < until:
            for pid in pids:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(-pid, os.WNOHANG)
            time.sleep(0.1)


def _group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def reachable(port: int) -> bool:
    """Whether something listens on this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def link_pid(place: Place) -> int | None:
    """The SuperLink that was started for a folder, if it still runs."""
    try:
        pid = int((place.server / "superlink.pid").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return pid if _group(pid) and reachable(place.port) else None


def start_link(place: Place) -> int:
    """Start the SuperLink, unless it runs."""
    if (pid := link_pid(place)) is not None:
        return pid
    if reachable(place.port):
        raise FedpriorError(f"port {place.port} is in use by another program: stop it, or change the port.")
    process = start(superlink(place), place.server / "superlink.log", environment(place.server / "flwr"))
    until = time.monotonic() + STARTING
    while not reachable(place.port):
        if process.poll() is not None or time.monotonic() > until:
            end(process.pid)
            raise FedpriorError(f"Flower's SuperLink did not start: see '{place.server / 'superlink.log'}'.")
        time.sleep(0.2)
    write_text(place.server / "superlink.pid", f"{process.pid}\n")
    return process.pid


def flwr(place: Place, *arguments: str) -> dict[str, Any]:
    """One of Flower's commands at the server, and what it answers."""
    command = [program("flwr"), *arguments, "federation", "--format", "json"]
    env = environment(place.server / "flwr")
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    text = done.stdout[done.stdout.find("{") :]
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"success": False, "error-message": (done.stdout + done.stderr)[-800:]}
    return found


def register(place: Place) -> None:
    """Tell the SuperLink which keys belong to which sites; once is enough, since its database keeps them."""
    done = place.server / "registered.json"
    known = (
        json.loads(done.read_text(encoding="utf-8")) if done.exists() and (place.server / "link.db").exists() else []
    )
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
    found = flwr(place, "run", str(place.folder / "app"))
    if not found.get("success"):
        raise FedpriorError(
            f"Flower did not start the experiment: {str(found.get('error-message', 'no answer'))[-300:]}"
        )


def follow(place: Place, tell: Callable[[dict[str, Any]], None], poll: float = 0.5) -> dict[str, Any]:
    """Wait until the experiment has ended, and say how it is going."""
    from fedprior.flower.status import read_status

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
