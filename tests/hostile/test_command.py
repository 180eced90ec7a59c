"""Whatever is given to the command: exit code 2 and one sentence, no traceback, no folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile.cases import BASE, DEEP, DRAWN, command, overrides, refused, wrong

RUN = ["run", "--quiet", "--no-local", *overrides(BASE)]


def test_the_base_is_right(tmp_path: Path) -> None:
    """Or else everything would be refused, and the tests below would tell nothing."""
    said = command(*RUN, "--out", str(tmp_path / "out"))
    assert (said.code, said.err) == (0, "") or said.code is None


@DRAWN
@given(wrong())
def test_overrides(tmp_path: Path, given: list[str]) -> None:
    refused([*RUN, "--out", str(tmp_path / "out"), *given], tmp_path)


@DRAWN
@given(st.binary(min_size=1, max_size=200) | st.text(min_size=1, max_size=200).map(str.encode))
def test_files_of_anything(tmp_path: Path, content: bytes) -> None:
    """Random bytes are no TOML, or name no data."""
    (tmp_path / "run.toml").write_bytes(content)
    refused(["run", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")], tmp_path)


FILES = {
    "a duplicate key": "rounds = 1\nrounds = 2",
    "a duplicate table": "[train]\n[train]",
    "a number of 5,000 digits": f"rounds = {'9' * 5000}",
    "500 lists deep": f"rounds = {'[' * DEEP}{']' * DEEP}",
    "5,000 lists deep": f"rounds = {'[' * 5000}{']' * 5000}",
    "500 tables deep": f"[train{'.a' * DEEP}]\nx = 1",
    "a NUL": "rounds = 1\0",
    "not UTF-8": b"\xff\xfe\x00",
    "an ELF header": b"\x7fELF\x02\x01\x01" + bytes(100),
    "nan": "[train]\nlr = nan",
    "a list of names": 'method = ["fedavg", "fedmap"]',
    "a section too many": "[[data]]\nname = 'noise'",
    "two megabytes": "# " + "x" * (2 << 20),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_files(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(["run", "--config", str(path), "--out", str(tmp_path / "out")], tmp_path)


@pytest.mark.parametrize("what", [".", "missing.toml", "x" * 300, "/dev/zero", "a\0b"])
def test_what_is_no_file(tmp_path: Path, what: str) -> None:
    refused(["run", "--config", str(tmp_path / what) if what[0] != "/" else what], tmp_path)


@pytest.mark.parametrize("given", [["methods.fedprox.strength=1"], ["methods.fedprox.x=1"], ["methods.nothing.x=1"]])
def test_options_of_a_method_that_is_not_compared(tmp_path: Path, given: list[str]) -> None:
    shared = [f for f in overrides(BASE) if not f.startswith("method.")]
    refused(["compare", "--methods", "fedavg", *shared, *given, "--out", str(tmp_path / "out")], tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "--methods", ","],
        ["compare", "--methods", "fedavg,\x1b[31m"],
        ["resume", "/nowhere"],
        ["resume", "a\0b"],
        ["run", "--rounds", "9" * 5000],
        ["run", "--workers", "٣"],
        ["run", "--workers", "9" * 5000, *overrides(BASE)],
        ["run", "--seed", "nan"],
        ["run", "--data", "\0"],
        ["data", "describe", "noise", "data.samples=1000000000000"],
        ["data", "describe", "noise", "--seed", "-1"],
        ["data", "fetch", "x" * 5000],
        ["data", "import", "mnist", "/dev/null"],
        ["reproduce", "\0"],
        ["reproduce", "../../x"],
        ["x" * 5000],
    ],
    ids=lambda arguments: repr(arguments)[:40],
)
def test_arguments(tmp_path: Path, arguments: list[str]) -> None:
    refused(arguments, tmp_path)


def test_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    """σ and × become question marks; nothing fails for them."""
    env = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "200"}
    for arguments, code in ((["methods"], 0), (["data", "list"], 0), (["run", "--data", "naïve", "--method", "σ"], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "fedprior", *arguments], env=env, cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
