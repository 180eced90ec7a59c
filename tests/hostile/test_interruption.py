"""Ctrl-C, SIGTERM and SIGKILL at any moment: one line, the right exit code, no process left, and a run to resume."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedprior.files import folder_lock
from hostile.kills import COMMAND, DATA, miniature, trial

LONG = ["--quiet", "--rounds", "100000", "eval_every=1", "checkpoint_every=1", "train.epochs=1", "chunk=1"]
CODES = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}


STARTED: list[subprocess.Popen[str]] = []


def start(*args: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([*COMMAND, *args], start_new_session=True, stderr=subprocess.PIPE, text=True)
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Where a script starts the tests in the background, they and all that they start would ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """A test that fails leaves no process behind either."""
    yield
    for process in STARTED:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    STARTED.clear()


def run(out: Path, workers: int) -> list[str]:
    return ["run", "--method", "fedmap", *DATA, *LONG, "--no-local", "--workers", str(workers), "--out", str(out)]


def until(path: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("all_of_them", [False, True], ids=["the process", "the group"])
def test_a_signal_says_how_to_go_on(number: signal.Signals, all_of_them: bool, tmp_path: Path) -> None:
    """With workers, as a terminal does it, to all of them, or to the process alone; the folder needs quotes."""
    out, (code, said) = tmp_path / "my run", CODES[number]
    process = start(*run(out, 2))
    until(out / "checkpoint" / "manifest.json")
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    (os.killpg if all_of_them else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=40)
    assert (process.returncode, err) == (code, f"{said}: continue with `fedprior resume '{out}'`\n")
    assert psutil.wait_procs(workers, timeout=5)[1] == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my run"]


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("after", [0.5, 1.2])
def test_a_signal_during_imports(number: signal.Signals, after: float, tmp_path: Path) -> None:
    """Nothing is begun, or it can be resumed. The first hundredths of a second belong to the interpreter."""
    out, (code, said) = tmp_path / "out", CODES[number]
    process = start(*run(out, 1))
    time.sleep(after)
    process.send_signal(number)
    _, err = process.communicate(timeout=40)
    how = f"continue with `fedprior resume {out}`" if out.exists() else "run the same command again"
    assert (process.returncode, err) == (code, f"{said}: {how}\n")


BUSY = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from fedprior.engine import lifeline, pool
from fedprior.engine import Engine
from fedprior.files import folder_lock
from support import bound, federation
if {without}:
    lifeline.killed_with_parent = lambda: False
pool.do = lambda *_: time.sleep(60)
data = federation()
with folder_lock(Path({out!r})), Engine(bound("fedavg", data), data, 0, workers=2, chunk=2) as engine:
    print(*(process.pid for process in engine.runner.processes), flush=True)
    engine.round(0, engine.everyone, engine.everyone)
"""


@pytest.mark.parametrize("without", [False, True], ids=["prctl", "a watching thread"])
def test_workers_end_in_the_middle_of_a_job_and_the_lock_is_free(without: bool, tmp_path: Path) -> None:
    """Each has a job of a minute when their parent is killed."""
    code = BUSY.format(tests=str(Path(__file__).parents[1]), without=without, out=str(tmp_path / "out"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        time.sleep(0.5)
        assert [psutil.pid_exists(worker.pid) for worker in workers] == [True, True]
        parent.kill()
        parent.wait()
        with folder_lock(tmp_path / "out"):
            pass
    began = time.monotonic()
    while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
        assert time.monotonic() - began < 2
        time.sleep(0.02)


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    process = start(*run(tmp_path / "out", 1))
    try:
        until(tmp_path / "out" / "checkpoint" / "manifest.json")
        second = subprocess.run(
            [*COMMAND, "resume", str(tmp_path / "out")], capture_output=True, text=True, check=False
        )
        told = f"error: another process is at work in '{tmp_path / 'out'}': wait for it, or choose another folder.\n"
        assert (second.returncode, second.stderr) == (2, told)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "args", [["run", "--method", "fedmap+ft"], ["compare", "--methods", "ditto"]], ids=lambda a: a[0]
)
def test_killed_four_times_equals_left_alone(args: list[str], tmp_path: Path) -> None:
    """At random moments from the first instant on; `python tests/hostile/kills.py 200` does more."""
    short = ["--rounds", "6", "--quiet", "train.epochs=1", "checkpoint_every=1", "eval_every=2", "--workers", "1"]
    trial([*args, *DATA, *short], tmp_path, 4, random.Random(0))


def test_a_table_killed_twice_equals_one_left_alone(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    trial(miniature(tmp_path), tmp_path / "place", 2, random.Random(1))
