"""Flower's processes: started, tied to whoever started them, and ended with all that they started themselves.

Flower gives its helpers sessions of their own, and they outlive the death of what started them. So every process is
marked in its environment, which its descendants inherit, and all that have the mark are ended. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError

Process = subprocess.Popen[bytes]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}
"""No telemetry, nothing that is installed at run time, one thread: parallelism comes from sites."""
PORT = 9094
"""Of a site's machine, where Flower's own processes talk to each other."""
GRACE = 4
"""Seconds that processes have to end by themselves."""
MARK = "FEDPRIOR_PROCESSES"
LEASH = f"""
cat
marked() {{ grep -lzxF "{MARK}=$0" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }}
kill -TERM $(marked); sleep {GRACE}; kill -KILL $(marked)
"""
"""Ends all marked processes once its own standard input is closed, by whatever death of the other end."""
_STARTED: dict[int, tuple[str, Process | None]] = {}
"""The mark and the leash of what was started here."""


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


def supernode(
    folder: Path, address: str, site: str, table: Path, state: Path, port: int, min_class_rows: int = 0
) -> list[str]:
    """A site's command."""
    own: dict[str, str | int] = {"site": site, "table": str(table.absolute()), "state": str(state.absolute())}
    own["min-class-rows"] = min_class_rows
    return [
        program("flower-supernode"),
        *("--root-certificates", str(folder / "ca.crt")),
        *("--superlink", address),
        *("--auth-supernode-private-key", str(folder / "site.key")),
        *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in own.items())),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def start(
    command: Sequence[str], log: Path | None, env: Mapping[str, str], *, mark: str | None = None, leashed: bool = True
) -> Process:
    """A process whose output goes to `log`, or to ours if that is None.

    `leashed`: it ends when this process does, even by kill -9. `mark`: by what others can end it.
    """
    mark = mark or secrets.token_hex(16)
    quiet: dict[str, Any] = {"start_new_session": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with contextlib.ExitStack() as stack:
        file = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(log.open("ab"))
        streams: Any = {**quiet, "stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        process = subprocess.Popen(command, env={**env, MARK: mark}, **streams)
    leash = subprocess.Popen(["sh", "-c", LEASH, mark], stdin=subprocess.PIPE, **quiet) if leashed else None
    _STARTED[process.pid] = mark, leash
    return process


def end(*processes: Process) -> None:
    """End processes with all that they started: politely, then not."""
    known = [_STARTED.pop(process.pid) for process in processes if process.pid in _STARTED]
    end_marked([mark for mark, _ in known], processes)
    for _, leash in known:
        if leash is not None and leash.stdin is not None:
            leash.kill()
            leash.wait()
            leash.stdin.close()


def end_marked(marks: Collection[str], processes: Sequence[Process] = ()) -> bool:
    """End all processes with one of these marks, and our own even without; whether there were any."""

    def left() -> set[int]:
        return {*marked(marks), *(process.pid for process in processes if process.poll() is None)}

    found = left()
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        until = time.monotonic() + GRACE
        while left() and time.monotonic() < until:
            time.sleep(0.1)
    return bool(found)


def mark(folder: Path) -> str:
    """The mark of what runs for a server's or a site's folder, wherever it is mounted: other commands find it so."""
    found = folder.stat()
    return f"folder-{found.st_dev}-{found.st_ino}"


def marked(marks: Collection[str]) -> list[int]:
    """All processes with one of these marks."""
    wanted, found = {f"{MARK}={mark}".encode() for mark in marks}, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone, or somebody else's; what has died has an empty environment
                if wanted & set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def reachable(host: str, port: int) -> bool:
    """Whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
