"""The documentation agrees with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedprior import methods
from fedprior.bayes.mixing import Family
from fedprior.methods._averaging import Averaged, Averaging
from fedprior.methods._envelope import Envelope
from fedprior.methods._split import Split
from fedprior.papers.definition import read
from fedprior.protocol import METHODS, Method

ROOT = Path(__file__).parent.parent


def test_generated_tables_are_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, f"run `make docs`: {check.stdout}{check.stderr}"


def test_every_method_has_a_page_with_its_options() -> None:
    assert methods.METHODS is METHODS
    for name in METHODS:
        page = ROOT / "docs" / "methods" / f"{name}.md"
        assert f"<!-- options:{name} -->" in page.read_text(), name


def named(function: str) -> bool:
    """Whether there is such a function: `Class.function` of a method, or `module.function` of a room of equations."""
    owner, _, name = function.rpartition(".")
    classes = {method.__name__: method for method in METHODS.values()} | {"Family": Family}
    if owner in classes:
        return hasattr(classes[owner], name)
    places = [package for package in ("bayes", "methods") if (ROOT / f"src/fedprior/{package}/{owner}.py").exists()]
    return any(hasattr(import_module(f"fedprior.{package}.{owner}"), name) for package in places)


@pytest.mark.parametrize("page", ["fedmap", "pfedvem", "pfedfda", "fedbps", "pfedbred", "pfedme", "mixed", "stack"])
def test_equations_stand_beside_functions_that_exist(page: str) -> None:
    text = (ROOT / "docs" / "methods" / f"{page}.md").read_text()
    rows = re.findall(r"^\|.*\$.*\| (`[^|]*) \|$", text, re.MULTILINE)
    functions = [function for row in rows for function in re.findall(r"`([^`]+)`", row)]
    assert len(rows) >= 3
    assert [function for function in functions if not named(function)] == []


@pytest.mark.parametrize("skeleton", [Averaging, Averaged, Split, Envelope, Method])
def test_the_page_on_methods_names_the_functions_that_one_must_write(skeleton: Any) -> None:
    page = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    (told,) = re.findall(rf"^\|[^|]*\| `{skeleton.__name__}` [^|]*\| (.*) \|$", page, re.MULTILINE)
    assert set(re.findall("`(.*?)`", told)) == skeleton.__abstractmethods__


def test_every_experiment_is_listed_with_its_question() -> None:
    page = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    paths = sorted((ROOT / "experiments").rglob("*.py"))
    assert [path.name for path in paths if f"`{path.relative_to(ROOT / 'experiments').as_posix()}`" not in page] == []
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| \[.*\]\((.*?)\) \|$", page, re.MULTILINE)
    assert len(rows) >= 8
    assert [goal for _, _, goal in rows if not (ROOT / "experiments" / goal).exists()] == []


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of all tables under a heading, by their first cell; the cells of two tables with the same row follow."""
    found: dict[str, list[str]] = {}
    section = (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| (.*) \|$", section, re.MULTILINE):
        name, *cells = line.replace("**", "").split(" | ")
        found.setdefault(name, []).extend(cells)
    return found


def test_the_readme_shows_the_results_of_own_tables() -> None:
    """Local, FedAvg-FT, the recommended method and the better mixed model, rounded, of five tables, random splits."""
    shown, measured = rows_of("README.md", "Does it help?"), rows_of("docs/results.md", "Own tables")
    names = [name for name in shown if name != "table"]
    assert len(names) == 5
    for name in names:
        recommended, intercepts, slopes, _, local, _, _, fine_tuned, *_ = measured[f"{name.split()[0]}, random"]
        truth = [local, fine_tuned, recommended, min(intercepts, slopes)]
        for told, found in zip(shown[name][1:], truth, strict=True):
            assert float(told) == pytest.approx(float(found), abs=5.01e-4), name


def test_the_example_of_a_table_is_one(tmp_path: Path) -> None:
    """With its search: two columns that share their runs, and a quick version of one of them."""
    example, figure, search = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "papers.md").read_text(), re.DOTALL)
    path = tmp_path / "somebody" / "table1.toml"
    path.parent.mkdir()
    path.write_text(example + "\n" + figure + "\n" + search)
    table = read(path)
    cells = list(table.cells("paper", *table.limited("paper", None, None), table.seeds))
    assert (len(cells), len({cell.folder for cell in cells})) == (12, 6)
    assert {cell.config.rounds for cell in table.cells("quick", *table.limited("quick", None, None), 1)} == {20}
    assert table.needs == ["fashion_mnist"]
    assert table.figure is not None
    assert len(table.tries("pFedMe")) == 3
