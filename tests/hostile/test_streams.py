"""Standard streams that are closed, full or cut off: no traceback, and a run's files are whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hostile.cases import BASE, overrides
from hostile.kills import timeless

RUN = ["run", "--no-local", "--no-report", *overrides(BASE)]


def shell(redirected: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The command with its streams redirected by a shell."""
    given = ["bash", "-c", f'"$@" {redirected}', "bash", sys.executable, "-m", "fedprior", *arguments]
    return subprocess.run(given, capture_output=True, check=False)


@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_run_without_standard_streams(redirected: str, tmp_path: Path) -> None:
    """Its first files would otherwise get the numbers of the streams, and what is printed would land in them."""
    for name, how in (("usual", ""), ("closed", redirected)):
        done = shell(how, *RUN, "--out", str(tmp_path / name))
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert timeless(tmp_path / "closed") == timeless(tmp_path / "usual")


def test_lists_without_standard_output() -> None:
    done = shell(">&-", "methods")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_pipe_that_ends_early() -> None:
    """Nothing is said: that is how `head` works."""
    done = shell("| true", "methods")
    assert done.stderr == b""


def test_an_output_that_is_full() -> None:
    done = shell("> /dev/full", "methods")
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "error: the disk is full: make room and run it again; what was written before is unharmed."
    ]
