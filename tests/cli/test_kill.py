"""A run that is killed, twice, at any moment, and resumed equals one that was left alone, byte for byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

BINARY = str(Path(sys.executable).parent / "fedprior")
ROUNDS = 45
ARGS = [
    *("run", "--method", "fedmap", "--data", "digits", "data.clients=5", "--rounds", str(ROUNDS), "--seed", "2"),
    *("--workers", "2", "--no-local", "--quiet", "checkpoint_every=1", "eval_every=3", "chunk=2", "train.epochs=1"),
    *("participation.rule=bernoulli", "participation.rate=0.6"),
]


def kill_after(args: list[str], events: Path, lines: int) -> int:
    """Start the command, kill all its processes once so many events are written; returns how many there are then."""
    process = subprocess.Popen([BINARY, *args], start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and _lines(events) < lines:
            time.sleep(0.005)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, f"it ended before it was killed: {err}"
    return _lines(events)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def artefacts(folder: Path) -> dict[str, bytes]:
    """Every model and every client's metrics."""
    kept = [*(folder / "models").glob("*.safetensors"), folder / "clients.csv", folder / "predictions.safetensors"]
    return {p.name: p.read_bytes() for p in kept}


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """Killed early, resumed, killed again further on, resumed to the end."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([BINARY, *ARGS, "--out", str(whole)], check=True)
    total = _lines(whole / "events.jsonl")
    assert total == ROUNDS + ROUNDS // 3
    first = kill_after([*ARGS, "--out", str(cut)], cut / "events.jsonl", 5)
    second = kill_after(["resume", str(cut), "--quiet"], cut / "events.jsonl", first + 12)
    assert 5 <= first < second < total
    assert not (cut / "summary.json").exists()
    subprocess.run([BINARY, "resume", str(cut), "--quiet"], check=True)
    assert (cut / "summary.json").exists()
    assert len(artefacts(whole)) == 5 + 2
    assert artefacts(cut) == artefacts(whole)
