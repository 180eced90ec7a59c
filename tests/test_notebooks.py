"""Every tutorial in docs/tutorials runs from top to bottom as a notebook."""

from __future__ import annotations

import os
from pathlib import Path

import jupytext
import pytest
from nbclient.exceptions import CellExecutionError

from website.tutorials import executed, run

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


@pytest.fixture(autouse=True)
def _same_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel imports the package that is tested, and leaves nothing in the user's home."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")


def test_there_are_tutorials() -> None:
    assert "hospitals.py" in {path.name for path in TUTORIALS}


@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_as_a_notebook(path: Path) -> None:
    """What was executed is kept for the site, until the tutorial or the library changes."""
    found = jupytext.read(executed(path) / f"{path.stem}.ipynb")
    assert found.cells[0].cell_type == "markdown"
    cells = [cell for cell in found.cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.execution_count is not None for cell in cells)


@pytest.mark.filterwarnings("ignore")
def test_a_cell_that_fails_is_seen(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run(jupytext.reads("# %%\n1 / 0\n", fmt="py:percent"), tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_cell_shows_how_far_its_runs_are(tmp_path: Path) -> None:
    """In a real kernel, the line is an output of the cell, with its last text."""
    cells = """# %%
import fedprior
data = fedprior.data.load("synthetic", clients=3, samples=60)
# %%
run = fedprior.run(fedprior.methods.build("fedmap"), data, rounds=2, workers=1)
"""
    done = run(jupytext.reads(cells, fmt="py:percent"), tmp_path)
    [line] = done.cells[1].outputs
    assert line["data"]["text/plain"].startswith("fedmap: round 2 of 2, validation NLL ")
