"""Several processes at once, and one that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data.store.miniature import FILES, FIRST, Server, use, whole
from fedprior.data import store
from fedprior.data.store import layout

SCRIPT = """
import sys
sys.path[:0] = {path!r}
from data.store.miniature import tiny_mnist
from fedprior.data.store import RECORDS, download, fetch
from fedprior.data.store.record import Remote, Url
download.TIMEOUT = 60  # a busy machine may take long to start the other process
files = tuple(Remote(name, checksum) for name, checksum in {files!r})
RECORDS["mnist"] = tiny_mnist(Url({base!r}, files))
print("started", flush=True)
print(fetch("mnist", progress=lambda *step: print(*step, flush=True)).source, flush=True)
"""


def another(server: Server) -> subprocess.Popen[str]:
    """A process that fetches."""
    files = [(file.name, file.checksum) for file in server.source().files]
    code = SCRIPT.format(path=sys.path, files=files, base=server.base)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def half() -> int:
    """Bytes of the first file that a pausing server sends before it waits."""
    return len(FILES[FIRST]) // 2


def _until(process: subprocess.Popen[str], words: tuple[str, ...]) -> str:
    """The first line of a process with one of the words."""
    assert process.stdout is not None
    for line in process.stdout:
        if any(word in line for word in words):
            return line
    raise AssertionError(f"the process ended before it said any of {words}")


def test_kill_and_go_on(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is killed in the middle of the first file; the next one asks for the rest."""
    with Server(dict(FILES), pause=threading.Event()) as server:
        use(monkeypatch, server.source())
        part = data / ".part" / "mnist" / f"{FIRST}.part"
        process = another(server)
        _until(process, (f"{half()} ",))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert server.pause is not None
        server.pause.set()
        kept = part.stat().st_size  # what was not yet flushed is lost, no more
        assert store.status("mnist").state == "absent"
        store.fetch("mnist")
        assert server.ranges_asked(FIRST) == [None, f"bytes={kept}-" if kept else None]
    whole()


def test_two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, finds the data set stored and asks for nothing."""
    with Server(dict(FILES), pause=threading.Event()) as server:
        use(monkeypatch, server.source())
        processes = [another(server), another(server)]
        with ThreadPoolExecutor(2) as readers:  # whichever is second says that it waits; then the server goes on
            said = list(readers.map(lambda process: _until(process, ("waiting", f"{half()} ")), processes))
        assert sum("waiting for another process to get mnist" in line for line in said) == 1
        assert server.pause is not None
        server.pause.set()
        rest = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        assert all(text.endswith(f"{server.base}\n") for text in rest)
        assert [name for name, _ in server.asked] == list(FILES)
    whole()


def test_waiting_is_told(imported: list[Path]) -> None:
    """A second holder of the lock in this process: told at once, let in when the first leaves."""
    steps: list[str] = []
    entered = threading.Event()

    def wait() -> None:
        with layout.locked("mnist", lambda done, total, label: steps.append(label)):
            entered.set()

    with layout.locked("mnist", lambda *_: None):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.2)
        assert steps == ["waiting for another process to get mnist"]
    thread.join()
    assert entered.is_set()
