"""Every command block of README and docs is run as it is written, or is marked as an illustration.

Blocks are fences of `sh`. A block after the comment `<!-- illustration -->` needs something that a test does not
have: a network, real sites, hours. All others are run here, page by page in one folder, on a generated table, with
fewer rounds, splits and tries than they say.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedprior
from fedprior.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for folder in ("docs", "benchmarks", "experiments") for page in sorted((ROOT / folder).rglob("*.md"))),
]
RUN = (
    "docs/index.md",
    "docs/tables.md",
    "docs/after-training.md",
    "docs/report.md",
    "docs/methods/stack.md",
    "README.md",
)
"""In this order: pages use what those before them have left."""
ELSEWHERE = ("docs/tutorial-hospitals.md", "docs/deploy.md")
"""Run by test_tutorial.py and by federation/test_walkthrough.py."""
BLOCK = re.compile(r"^(<!-- illustration -->\n)?```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORTER = {
    "compare": ["--rounds", "2"],
    "run": ["--rounds", "2", "--workers", "1"],
    "tune": ["--tries", "1", "--minutes", "1"],
    "join": ["--draws", "2"],
}


def blocks(page: Path, language: str = "sh") -> list[str]:
    """Those that are not marked as illustrations."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for marked, kind, text in found if kind == language and not marked]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_every_block_is_run_or_marked() -> None:
    found = [name(page) for page in PAGES if blocks(page) and name(page) not in (*RUN, *ELSEWHERE)]
    assert found == [], "run these blocks in this test, or mark them with <!-- illustration -->"


def test_commands_are_in_blocks_of_sh() -> None:
    """A fence of another language, such as a command among what it prints, would not be looked at."""
    command = re.compile(r"^\$? ?([A-Z_]+=\S+ )?(\S*/)?(fedprior|make|pip|python3?|git|docker|pytest) ", re.MULTILINE)
    for page in PAGES:
        for _, kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            assert kind in ("sh", "python", "toml") or not command.search(text), f"{name(page)}: {text[:60]}"


def test_every_fence_is_seen() -> None:
    """Each has its begin and end at the start of a line, as `BLOCK` expects."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("```") == 2 * len(BLOCK.findall(text)), name(page)


def test_make_knows_the_targets_that_pages_name() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    told = {
        t for page in PAGES for t in re.findall(r"(?:`|^)make ([\w-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert told - targets == set()


def patients(n: int = 150) -> pd.DataFrame:
    """Three hospitals, one of them the `va` and one `basel`."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(60, 9, n).round(), "dose": rng.normal(size=n).round(2)})
    table["smoker"] = rng.choice(["no", "yes"], n)
    table["outcome"] = np.where(table["dose"] + (table["age"] - 60) / 9 + rng.normal(size=n) > 0, "event", "none")
    table["hospital"] = np.array(["basel", "bern", "va"])[np.arange(n) % 3]
    return table


def prepare() -> None:
    """The tables that pages name."""
    table = patients()
    for path in ("hospitals.csv", "patients.csv"):
        table.to_csv(path, index=False)
    table.head(5).to_csv("new_patients.csv", index=False)
    table.head(40).drop(columns="hospital").to_csv("basel.csv", index=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare()
    done = 0
    for page in RUN:
        for line in "".join(blocks(ROOT / page)).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                assert words[0] == "fedprior", line
                more = SHORTER.get(words[1], [])
                if words[1] == "compare" and words[2].endswith(".csv"):
                    more = [*more, "--splits", "2"]
                found = CliRunner().invoke(app, [*words[1:], *more], catch_exceptions=False)
                assert found.exit_code == 0, f"{page}: {line}\n{found.output}"
                done += 1
    assert done >= 14


PYTHON = ("docs/index.md", "docs/own-network.md", "docs/tables.md", "README.md")
PYTHON_ELSEWHERE = ("docs/add-data.md", "docs/tutorial-hospitals.md")
"""Run by data/test_sets.py and by test_tutorial.py."""


def test_every_block_of_python_is_run_or_marked() -> None:
    found = [name(page) for page in PAGES if blocks(page, "python")]
    assert set(found) == {*PYTHON, *PYTHON_ELSEWHERE}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PYTHON)
def test_the_lines_of_python_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what they take for granted: a table of patients, and three rows of the synthetic data."""
    monkeypatch.chdir(tmp_path)
    prepare()
    (code,) = blocks(ROOT / page, "python")
    exec(compile(code, page, "exec"), {"fedprior": fedprior, "patients": patients(), "x": np.zeros((3, 30))})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr("sys.argv", [path.name])
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "__main__"})


@pytest.mark.filterwarnings("ignore")
def test_the_readme_shows_what_the_demo_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of `make demo`: every site's gain to 0.002, which allows for other processors, and its verdict."""
    monkeypatch.chdir(tmp_path)
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndemo:")[2].partition("\n\n")[0]
    for line in recipe.replace("$(OUT)", "demo").splitlines():
        words = shlex.split(line.strip())
        if words[0] == "$(BIN)/python":
            subprocess.run([sys.executable, ROOT / words[1], *words[2:]], check=True)
        elif words[0] == "$(BIN)/fedprior":
            assert CliRunner().invoke(app, words[1:], catch_exceptions=False).exit_code == 0
    sites = json.loads(Path("demo/comparison/verdict.json").read_text(encoding="utf-8"))["sites"]
    shown = re.findall(r"^(\w+) +\d+ +([+-][\d.]+) \[.*?\]  (\w.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {name: verdict for name, _, verdict in shown} == {name: site["verdict"] for name, site in sites.items()}
    for name, gain, _ in shown:
        assert sites[name]["gain_nll"]["mean"] == pytest.approx(float(gain), abs=2e-3)
