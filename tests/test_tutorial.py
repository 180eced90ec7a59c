"""The tutorial's commands and its last lines of Python run as they are written, on a table like the tutorial's.

The real one need not be here: the table is generated, and the comparison has two splits and few rounds.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedprior.cli.main import app
from fedprior.data.sets.heart_disease import CATEGORIES, FEATURES

PAGE = Path(__file__).parent.parent / "docs" / "tutorial-hospitals.md"
SHORTER = ["--splits", "2", "--rounds", "4"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def hospitals(n: int = 160) -> pd.DataFrame:
    """The tutorial's columns, with gaps and codes."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(n, len(FEATURES))), columns=list(FEATURES))
    for name, codes in CATEGORIES.items():
        table[name] = rng.choice(codes, n)
    for name in ("sex", "fbs", "exang"):
        table[name] = rng.integers(0, 2, n)
    table["disease"] = np.where(table["age"] + (table["cp"] == 4) + rng.normal(size=n) > 0, "yes", "no")
    table.loc[rng.random(n) < 0.3, "chol"] = np.nan
    table["hospital"] = np.array(["cleveland", "hungarian", "switzerland", "va"])[np.arange(n) % 4]
    return table


@pytest.mark.filterwarnings("ignore")
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    table = hospitals()
    table[table["hospital"] != "va"].to_csv("hospitals.csv", index=False)
    table[table["hospital"] == "va"].to_csv("va.csv", index=False)
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    assert len(commands) == 8
    for command in commands:
        program, name, *words = shlex.split(command)
        assert program == "fedprior"
        more = SHORTER if name == "compare" else ["--draws", "2"] if name == "join" else []
        found = CliRunner().invoke(app, [name, *words, *more], catch_exceptions=False)
        assert found.exit_code == 0, command
    for path in ("runs/heart/report.html", "runs/heart/verdict.json", "cleveland.onnx", "predictions.csv"):
        assert Path(path).stat().st_size > 0
    assert len(pd.read_csv("predictions.csv")) == 40
    exec(compile(blocks("python")[-1], str(PAGE), "exec"), {})
    assert "accuracy" in capsys.readouterr().out


def test_the_first_lines_of_python_name_what_there_is() -> None:
    """They need the stored data, which a test must not; their names are looked up."""
    from fedprior.data import store

    first = blocks("python")[0]
    compile(first, str(PAGE), "exec")
    assert "store.load(" in first
    assert callable(store.load)
