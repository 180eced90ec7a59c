"""Running one competitor and watching it from outside: its CPU time and the memory of its whole process tree."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from .competitors.session import STARTED

INTERVAL = 0.15  # seconds between samples
SHARE = 0.05  # of a core that sampling may take; the interval grows where processes are many

QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "disabled",
}


def run(command: list[str], answer: Path, timeout: float) -> dict[str, Any]:
    """Start a competitor in an empty folder and return what it answered and what it cost, or `error`."""
    answer.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        # Ray's sockets need a short path, so this folder is the system's and not ours.
        folder = Path(tempfile.mkdtemp(prefix="peers-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        log = stack.enter_context((folder / "log").open("w+"))
        paths = {"PYTHONPATH": str(Path(__file__).resolve().parents[1]), "RAY_TMPDIR": str(folder)}
        environment = {**os.environ, **QUIET, **paths, "FLWR_HOME": str(folder), STARTED: str(time.monotonic())}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        watcher = Watcher(process)
        usage = watcher.watch(timeout)
        log.seek(0)
        lines = [line.strip() for line in log.read().splitlines() if line.strip()]
        if watcher.late:
            return {"error": f"not done after {timeout:g} s", **usage}
        if process.returncode or not answer.exists():
            return {"error": f"exit code {process.returncode}: {(lines or ['no output'])[-1][-300:]}", **usage}
        return {**json.loads(answer.read_text()), **usage}


class Watcher:
    """Samples a process tree until it ends, and ends what is left of it."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self.process = process
        self.root = psutil.Process(process.pid)
        self.cpu: dict[Any, float] = {}
        self.peak = 0
        self.late = False

    def watch(self, timeout: float) -> dict[str, float]:
        """CPU seconds, peak memory in bytes, and how many cores other processes took meanwhile.

        CPU is the larger of two counts, each of which may miss processes.
        """
        reaped, busy, began = _reaped(), _busy(), time.monotonic()
        try:
            self._sample_until(time.monotonic() + timeout)
        finally:
            self.process.kill()  # does nothing to a process that has ended
            self.process.wait()
            self._end_the_rest()
        seconds = time.monotonic() - began
        cpu = max(_reaped() - reaped, sum(self.cpu.values()))
        return {"cpu": cpu, "peak": self.peak, "others": max(0.0, _busy() - busy - cpu) / seconds}

    def _sample_until(self, deadline: float) -> None:
        """Sample until the process ends or its time is up."""
        pause = INTERVAL
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(pause)
                return
            began = time.monotonic()
            self._sample()
            pause = max(INTERVAL, (time.monotonic() - began) / SHARE)
        self.late = True

    def _sample(self) -> None:
        memory = 0
        with contextlib.suppress(psutil.Error):
            for process in [self.root, *self.root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    self.cpu[process] = times.user + times.system
                    memory += process.memory_full_info().pss
        self.peak = max(self.peak, memory)

    def _end_the_rest(self) -> None:
        """Nothing of one competitor may run beside the next."""
        _, alive = psutil.wait_procs(list(self.cpu), timeout=5)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=5)


def _busy() -> float:
    """CPU seconds that the machine has worked, for whomever."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _reaped() -> float:
    """CPU seconds of our children that have ended, and of theirs that they waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
