"""Flower's simulation engine (Ray) gives the same models as ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from federation.real import assert_identical, made
from fedprior.flower.processes import environment


@pytest.mark.timeout(600)
def test_flowers_simulation_engine_equals_ours(tmp_path: Path) -> None:
    place, paths = made(tmp_path)
    script = Path(__file__).with_name("virtual.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**environment(tmp_path / ".flwr"), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_identical(place, paths, tmp_path)
