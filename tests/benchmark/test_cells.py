"""Cells: equal tries for all, the best on validation, lines that survive a crash, own methods."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprior.benchmark import FILE, PLACES, SUITES, Cell, Line, Place, Plan, places, read_lines, run_cells
from fedprior.benchmark.lines import add_line
from fedprior.benchmark.own import load_own
from fedprior.benchmark.search import RATES, drawn
from fedprior.benchmark.suite import generated
from fedprior.errors import FedpriorError
from fedprior.methods import METHODS, build

ROOT = Path(__file__).parents[2]
SMALL = "generated, slopes 0.8"


def plan(*methods: str, tries: int = 2, rounds: int = 2, **more: Any) -> Plan:
    return Plan([Cell(SMALL, 0, name) for name in methods], tries, rounds, **more)


def test_the_suites() -> None:
    """Three synthetic skews, seven partitions of digits, two of breast cancer and two generated tables are embedded."""
    assert len(SUITES["embedded"]) == 14
    assert set(SUITES["quick"]) < set(SUITES["embedded"]) < set(SUITES["all"])
    there, missing = places("embedded")
    assert (there, missing) == (SUITES["embedded"], [])


def test_generated_tables_by_hand() -> None:
    """With slopes of deviation 0 all sites share γ: pooled rows, centred by site intercepts, have one direction."""
    data = generated(0, 0.0)
    assert len(data) == 30
    assert data.shape == (8,)
    assert set(np.unique(np.concatenate(data.labels("train")))) == {0, 1}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_the_same_number_of_tries(name: str) -> None:
    """The first has its defaults; draws lie in the declared space; a method that searches nothing has one."""
    found = list(drawn(name, "digits iid", 0, 4))
    alone = not METHODS[name].space and build(name).hints.own_training
    assert len(found) == (1 if alone else 4)
    assert (found[0].options, found[0].rate) == ({}, 1.0)
    assert found == list(drawn(name, "digits iid", 0, 4))
    for one in found[1:]:
        assert RATES[0] - 0.01 <= one.rate <= RATES[1]
        for option, value in one.options.items():
            space = METHODS[name].space[option]
            assert space[0] <= value <= space[1] if isinstance(space, tuple) else value in space


def test_the_best_try_on_validation_is_kept(tmp_path: Path) -> None:
    """With more tries the validation NLL can only fall; figures are those of a run with the same settings."""
    import fedprior

    one, many = (run_cells(plan("fedmap", tries=t), tmp_path / str(t))[0] for t in (1, 3))
    assert one.validation is not None
    assert many.validation is not None
    assert many.validation <= one.validation
    assert (one.options, one.rate) == ({}, 1.0)
    result = fedprior.run(build("fedmap"), PLACES[SMALL].load(0), model={"name": "softmax"}, rounds=2, seed=0)
    assert one.nll == pytest.approx(result.mean("nll"), abs=1e-5)
    assert one.worst == pytest.approx(result.scores["accuracy"]["worst_decile"], abs=1e-5)
    assert len(one.sites) == 30


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    first = run_cells(plan("local"), tmp_path)
    both = run_cells(plan("local", "fedavg"), tmp_path, tell=lambda line, left: told.append((line.method, left)))
    assert told == [("fedavg", 0)]
    assert both[0] == first[0]
    with pytest.raises(FedpriorError, match="use the same --tries"):
        run_cells(plan("ditto", tries=3), tmp_path)


def test_two_processes_give_the_same_figures(tmp_path: Path) -> None:
    cells = ("local", "fedavg", "fedmap")
    alone, two = (run_cells(plan(*cells), tmp_path / str(w), workers=w) for w in (1, 2))
    plain = [{k: v for k, v in asdict(line).items() if k != "cpu_seconds"} for line in alone]
    assert sorted(plain, key=lambda v: str(v["method"])) == sorted(
        ({k: v for k, v in asdict(line).items() if k != "cpu_seconds"} for line in two), key=lambda v: str(v["method"])
    )


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        add_line(tmp_path, Line("digits iid", 0, name, 1, 1))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-10])
    assert [line.method for line in read_lines(tmp_path)] == ["a"]
    add_line(tmp_path, Line("digits iid", 0, "c", 1, 1))
    assert [line.method for line in read_lines(tmp_path)] == ["a", "c"]
    (tmp_path / FILE).write_text("nonsense\n")
    with pytest.raises(FedpriorError, match="line 1 of"):
        read_lines(tmp_path)


def test_a_method_that_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mixed model on 4,000 inputs is refused in one sentence, which the line keeps."""
    wide = {f"c{k}": (np.zeros((20, 4000)), np.arange(20) % 2) for k in range(3)}

    class Wide(Place):
        def load(self, seed: int) -> Any:
            from fedprior.data import from_arrays

            return from_arrays(wide, classes=2, seed=seed)

    monkeypatch.setitem(PLACES, "wide", Wide("tables", {"name": "generated"}, {"name": "softmax"}))
    found = run_cells(Plan([Cell("wide", 0, "mixed")], 1, 1), tmp_path)
    assert "coefficients" in str(found[0].refused)
    assert json.loads((tmp_path / FILE).read_text())["nll"] is None


def test_a_method_of_ones_own(tmp_path: Path) -> None:
    """The template of docs/add-a-method.md, beside the others."""
    own = ROOT / "docs" / "examples" / "my_method.py"
    try:
        assert load_own(own) == ["my_method"]
        assert load_own(own) == ["my_method"]
        found = run_cells(plan("my_method", tries=1, own=(own,)), tmp_path)
        assert found[0].method == "my_method"
        assert found[0].nll is not None
    finally:
        METHODS.pop("my_method", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not a Python file"),
        ("x = 1", "registers no method"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        (
            "from fedprior.methods.local import Local\nfrom fedprior.protocol import METHODS\n"
            "class Other(Local): pass\nMETHODS['local'] = Other",
            "registers 'local', a name that is already taken",
        ),
    ],
)
def test_files_that_are_no_method(tmp_path: Path, text: str | None, said: str) -> None:
    before = dict(METHODS)
    path = tmp_path / f"own_{abs(hash(text))}.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FedpriorError, match=said):
        load_own(path)
    assert before == METHODS
