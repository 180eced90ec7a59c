"""`fedprior doctor`."""

from __future__ import annotations

import json
import os
from importlib.metadata import requires
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprior import __version__
from fedprior.cli import doctor
from fedprior.cli.main import app


def told(*args: str) -> str:
    found = CliRunner().invoke(app, ["doctor", *args], catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


def test_it_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path))
    found = json.loads(told("--json"))
    assert found["fedprior"] == __version__
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["data"].startswith(f"{tmp_path}, 0 of ")
    assert found["problems"] == []
    assert f"fedprior     {__version__}" in told()


def test_it_knows_every_extra_of_the_package() -> None:
    """All that users may want: not those for work on the package itself."""
    named = {line.rpartition("extra == ")[2].strip("'\" )") for line in requires("fedprior") or [] if "extra" in line}
    assert set(doctor.EXTRAS) == named - {"dev", "docs"}


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "openpyxl" else "1.0")
    assert "missing: pip install 'fedprior[excel]'" in told()
    assert json.loads(told("--json"))["extras"]["excel"]["missing"] == ["openpyxl"]
    assert json.loads(told("--json"))["extras"]["parquet"]["missing"] == []


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "set FEDPRIOR_DATA" in told()
