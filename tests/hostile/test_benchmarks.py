"""Whatever is given to `fedprior benchmark`, or lies in its folder: exit code 2, one sentence, nothing left behind."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprior.benchmark.lines import FILE, Line, add_line, read_lines
from fedprior.methods import METHODS
from hostile.cases import DRAWN, one_sentence, refused

GOOD = Line("digits iid", 0, "local", 1, 1, nll=0.5, accuracy=0.75, sites=[1.0, None])
SMALL = ["benchmark", "--suite", "quick", "--methods", "local", "--seeds", "1", "--tries", "1", "--rounds", "1"]


def test_a_line_comes_back(tmp_path: Path) -> None:
    """With separators of lines in a message, too, which are not ends of lines here; what was cut off is no line."""
    lines = [GOOD, Line("digits iid", 0, "fedavg", 1, 1, refused="a\u2028b\x85c")]
    for line in lines:
        add_line(tmp_path, line)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"federation": "dig')
    assert read_lines(tmp_path) == lines


@DRAWN
@given(st.binary(min_size=1, max_size=60).filter(lambda content: b"\n" not in content))
def test_files_of_anything(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content + b"\n")
    refused([*SMALL, "--out", str(tmp_path), "--so-far"], tmp_path)


@pytest.mark.parametrize("name", [*asdict(GOOD), "another"])
@pytest.mark.parametrize("value", [True, [["x"]], float("nan")], ids=str)
def test_values_of_another_kind(tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / FILE).write_text(json.dumps(asdict(GOOD) | {name: value}) + "\n")
    with one_sentence():
        read_lines(tmp_path)


DEEP = b"[" * 100_000


def test_a_line_without_end(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(DEEP + b"\n")
    refused([*SMALL, "--out", str(tmp_path), "--so-far"], tmp_path)


@pytest.mark.parametrize(
    "option", [["--seeds", "9" * 30], ["--tries", "1" * 20], ["--methods", "a[/]"], ["--seeds", "0"]]
)
def test_options(option: list[str], tmp_path: Path) -> None:
    refused([*SMALL, "--out", str(tmp_path / "out"), *option], tmp_path)


UNFINISHED = """
from typing import ClassVar
from fedprior.protocol import About, Method, register

@register
class Unfinished(Method):
    about: ClassVar[About] = About("unfinished", "Unfinished", "", 2026, "", "", "")
"""


@pytest.mark.parametrize("code", ["1 / 0", "raise SystemExit(5)", "raise KeyError", "def (", "x = 1"])
def test_own_files(code: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(code)
    refused([*SMALL, "--out", str(tmp_path / "out"), "--own", str(tmp_path / "own.py")], tmp_path)


def test_an_unfinished_method(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(UNFINISHED)
    told = refused([*SMALL, "--out", str(tmp_path / "out"), "--own", str(tmp_path / "own.py")], tmp_path)
    assert "does not define aggregate" in told
    assert "unfinished" not in METHODS
