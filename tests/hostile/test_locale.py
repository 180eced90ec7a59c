"""Whatever the locale: files are UTF-8, and the terminal gets what it can show."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedprior

SITES = ("Köln", "東京", "Clinic [north]", "a[/]", "\x1b[31mred", "=1+1", "\u202eabc")
PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PLACES = {
    "ascii": PLAIN,
    "latin-1": PLAIN | {"PYTHONIOENCODING": "latin-1:strict"},
    "cp1252": {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"},
    "latin-1 locale": {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "utf-8": {"LC_ALL": "C.UTF-8"},
}


def command(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHONUTF8", "PYTHONIO"))}
    root = str(Path(fedprior.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "fedprior", *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f'"{site}",{k},{k % 3},{"ja" if k % 2 else "né"}\n' for site in SITES for k in range(6)]
    (tmp_path / "sites.csv").write_text("site,größe,x,y\n" + "".join(rows), encoding="utf-8")
    return tmp_path


def options() -> list[str]:
    return [
        "--workers",
        "1",
        "--data",
        "csv",
        "data.path=sites.csv",
        "data.target=y",
        "data.client=site",
        "model.name=softmax",
    ]


@pytest.mark.parametrize("place", ["ascii", "cp1252", "latin-1 locale"])
def test_a_run_is_the_same_in_every_locale(place: str, table: Path) -> None:
    if place == "latin-1 locale":
        try:
            known = subprocess.run(["locale", "-a"], capture_output=True, check=False).stdout.lower()
        except OSError:
            known = b""
        if b"en_us.iso" not in known:
            pytest.skip("there is no such locale here")
    made = command(
        "run",
        "--method",
        "fedavg",
        *options(),
        "--rounds",
        "1",
        "--no-local",
        "--out",
        "out",
        cwd=table,
        **PLACES[place],
    )
    assert (made.returncode, b"Traceback" in made.stderr) == (0, False), made.stderr.decode("ascii", "replace")
    assert b"\x1b" not in made.stdout + made.stderr
    assert b"Clinic [north]" in made.stdout
    assert b"\\x1b[31mred" in made.stdout
    assert b"results: out" in made.stdout
    for file in ("config.toml", "events.jsonl", "clients.csv", "logs.csv", "summary.json", "models/index.json"):
        text = (table / "out" / file).read_bytes().decode("utf-8")
        if file.endswith(".csv"):
            assert "Köln" in text
            assert ",'=1+1," in text
    assert set(json.loads((table / "out" / "models" / "index.json").read_bytes())) == set(SITES)
    again = command("resume", "out", cwd=table, **PLACES[place])
    assert (again.returncode, again.stdout) == (0, made.stdout), again.stderr.decode("ascii", "replace")


def test_a_run_goes_on_in_another_locale(table: Path) -> None:
    """What one locale wrote, another reads, and the rest is as it would have been."""
    first, second = PLACES["latin-1"], PLACES["utf-8"]
    given = ["run", "--method", "fedavg", *options(), "--rounds", "2", "--no-local"]
    assert command(*given, "--out", "whole", cwd=table, **first).returncode == 0
    shutil.copytree(table / "whole", table / "cut")
    (table / "cut" / "summary.json").unlink()  # as if it had been killed just before the end
    again = command("resume", "cut", cwd=table, **second)
    assert again.returncode == 0, again.stderr.decode("ascii", "replace")
    for file in ("clients.csv", "logs.csv", "models/index.json"):
        assert (table / "cut" / file).read_bytes() == (table / "whole" / file).read_bytes()


@pytest.mark.parametrize(("name", "place"), [("a[/]b", "utf-8"), ("Köln \x1b[31m[bold]", "ascii")])
def test_folders_with_any_name(name: str, place: str, table: Path) -> None:
    given = ["run", "--method", "local", *options(), "--rounds", "1", "--out", name]
    made = command(*given, cwd=table, **PLACES[place])
    assert made.returncode == 0, made.stderr.decode("ascii", "replace")
    assert (table / name / "summary.json").exists()
    taken = command(*given, cwd=table, **PLACES[place])
    assert (taken.returncode, b"already in use" in taken.stderr) == (2, True)
    assert b"\x1b" not in made.stdout + made.stderr + taken.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--data", "a[/]\x1b[31m", "--method", "local"),
        ("--no[/]\x1b",),
        ("resume", "a[/]\x1bü"),
        ("reproduce", "[/]\x1bü"),
    ],
)
def test_a_wrong_name_is_one_clean_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    found = command(*arguments, cwd=tmp_path, **PLACES["ascii"])
    assert found.returncode == 2
    assert found.stderr.startswith(b"error: ")
    assert b"\x1b" not in found.stderr
    assert found.stderr.count(b"\n") == 1


def test_a_file_that_the_locale_cannot_name_is_told(table: Path) -> None:
    """The path in config.toml is text; where paths are ASCII, there is no such file to be opened."""
    (table / "sites.csv").rename(table / "größe.csv")
    given = ["run", "--method", "local", *options(), "data.path=größe.csv", "--rounds", "1", "--out", "out"]
    made = command(*given, cwd=table, **PLACES["utf-8"])
    assert made.returncode == 0, made.stderr
    (table / "out" / "summary.json").unlink()
    again = command("resume", "out", cwd=table, **PLACES["ascii"])
    assert again.returncode == 2
    assert again.stderr.startswith(b"error: there is no file 'gr")
    assert b"Traceback" not in again.stderr


def test_no_text_file_is_opened_in_the_locales_encoding() -> None:
    """Every `open`, `read_text` and `write_text` of the library says which encoding, or that it is bytes."""
    for path in sorted(Path(fedprior.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "read_text":
                assert node.keywords or node.args, f"{path}:{node.lineno}"
            mode = node.args[0] if node.args else None
            if node.func.attr == "open" and isinstance(mode, ast.Constant) and mode.value in ("r", "w", "a", "x"):
                assert any(keyword.arg == "encoding" for keyword in node.keywords), f"{path}:{node.lineno}"
