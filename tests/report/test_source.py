"""Tables and pages say which round the models are of."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprior.cli.main import app

SMALL = ["--rounds", "3", "data.clients=3", "data.samples=40", "eval_every=1", "--workers", "1"]


@pytest.mark.parametrize("select", ["validation", "last"])
def test_the_models_shown_are_those_that_were_asked_for(select: str, tmp_path: Path) -> None:
    words = {"validation": "the round with the lowest validation NLL", "last": "the last round"}
    out = tmp_path / "run"
    found = CliRunner().invoke(
        app, ["run", "--method", "fedmap", "--data", "synthetic", *SMALL, f"select={select}", "--out", str(out)]
    )
    assert found.exit_code == 0, found.output
    page = (out / "report.html").read_text()
    for told in (" ".join(found.stdout.split()), page):
        for name, sentence in words.items():
            assert (sentence in told) == (name == select), (name, told[-600:])
