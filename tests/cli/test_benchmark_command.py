"""`fedprior benchmark` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fedprior.benchmark import FILE
from fedprior.cli.main import app
from fedprior.errors import FedpriorError
from fedprior.methods import METHODS

ROOT = Path(__file__).parents[2]
SMALL = ["benchmark", "--suite", "quick", "--seeds", "1", "--tries", "1", "--rounds", "1"]


def test_a_benchmark_then_ones_own_method_beside_it(tmp_path: Path) -> None:
    """Two methods on three federations, then a third one from a file: only its own three cells are added."""
    out = tmp_path / "bench"
    first = CliRunner().invoke(app, [*SMALL, "--methods", "local,fedavg", "--out", str(out)])
    assert first.exit_code == 0, first.output
    assert "Ranks over 3 federations, 1 seed" in first.stdout
    assert "(0 left)" in first.stderr
    own = ROOT / "docs" / "examples" / "my_method.py"
    try:
        more = [*SMALL, "--methods", "mine", "--own", str(own), "--out", str(out), "--json"]
        second = CliRunner().invoke(app, more)
    finally:
        METHODS.pop("my_method", None)
    assert second.exit_code == 0, second.output
    ranks = {row["method"]: row["federations"] for row in json.loads(second.stdout)["ranks"]}
    assert ranks == {"local": 3, "fedavg": 3, "my_method": 3}
    assert len((out / FILE).read_text().splitlines()) == 9
    assert len(pd.read_csv(out / "figures.csv")) == 9
    assert list(pd.read_csv(out / "ranks.csv")["rank"]) == sorted(pd.read_csv(out / "ranks.csv")["rank"])
    shown = CliRunner().invoke(app, [*SMALL, "--so-far", "--out", str(out)])
    assert "MyMethod" in shown.stdout or "my_method" in shown.stdout


def test_unknown_methods_and_empty_folders_get_one_sentence(tmp_path: Path) -> None:
    wrong = CliRunner().invoke(app, [*SMALL, "--methods", "fedmop", "--out", str(tmp_path)])
    assert isinstance(wrong.exception, FedpriorError)
    assert "did you mean 'fedmap'?" in str(wrong.exception)
    with pytest.raises(FedpriorError, match="--methods mine needs the file that registers"):
        CliRunner().invoke(app, [*SMALL, "--methods", "mine", "--out", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(FedpriorError, match="has no finished cell yet"):
        CliRunner().invoke(app, [*SMALL, "--so-far", "--out", str(tmp_path)], catch_exceptions=False)


def test_some_federations_of_a_suite(tmp_path: Path) -> None:
    """One of the three; one that the suite lacks is nothing to run, and a name that nothing has gets a suggestion."""
    out = ["--methods", "local", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*SMALL, *out, "--federations", "breast cancer Dirichlet 0.5", "--json"])
    assert done.exit_code == 0, done.output
    assert [row["federations"] for row in json.loads(done.stdout)["ranks"]] == [1]
    with pytest.raises(FedpriorError, match=r"nothing to run: .* none is in the suite 'quick'"):
        CliRunner().invoke(app, [*SMALL, *out, "--federations", "digits iid"], catch_exceptions=False)
    with pytest.raises(FedpriorError, match="did you mean 'digits 3 labels'"):
        CliRunner().invoke(app, [*SMALL, *out, "--federations", "digits 3 label"], catch_exceptions=False)
