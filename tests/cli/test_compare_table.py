"""`fedprior compare FILE`: from a table to a verdict, and tables that nobody should give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hostile.cases import command, refused

SHORT = ["--rounds", "2", "--splits", "2", "--workers", "1"]


def hospitals(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, n),
            "[bold]sex": rng.choice(["f", "m"], n),
            "id": np.arange(n),
            "hospital": np.repeat(["[red]a", "b"], n // 2),
            "outcome": rng.choice([0, 1], n),
        }
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    hospitals().to_csv(tmp_path / "hospitals.csv", index=False)
    return tmp_path / "hospitals.csv"


def test_one_line(path: Path) -> None:
    out = path.parent / "out"
    arguments = [str(path), "--site", "hospital", "--target", "outcome", "--methods", "fedmap", *SHORT]
    found = command("compare", *arguments, "--out", str(out))
    assert found.code in (0, None), found.err
    verdict = json.loads((out / "verdict.json").read_text())
    assert {"recommended", "text", "methods", "sites"} <= set(verdict)
    assert list(verdict["methods"]) == ["local", "fedmap", "reference_pooled", "reference_site_effects"]
    assert set(verdict["sites"]) == {"[red]a", "b"}
    before, after = found.out.index("Columns"), found.out.index("Does federation help?")
    assert before < after
    assert "left out: whole numbers that identify rows" in found.out
    assert "[bold]sex" in found.out
    assert " ".join(verdict["text"].split()) in " ".join(found.out.split())
    again = command("compare", *arguments, "--out", str(out), "--json")
    assert json.loads(again.out) == verdict
    assert "Use " in (out / "report.html").read_text()
    resumed = command("resume", str(out), "--json")
    assert json.loads(resumed.out) == verdict


def test_a_kind_can_be_declared(path: Path) -> None:
    arguments = [str(path), "--site", "hospital", "--target", "outcome", "--methods", "fedavg", *SHORT]
    found = command("compare", *arguments, "data.kinds.age=category", "--out", str(path.parent / "out"))
    assert "category" in found.out


def test_repeated_splits_of_a_data_set(tmp_path: Path) -> None:
    options = ["--data", "breast_cancer", "data.clients=3", "--methods", "fedavg", "--splits", "1", "--rounds", "1"]
    found = command("compare", *options, "--out", str(tmp_path / "out"), "--json")
    assert set(json.loads(found.out)["methods"]) >= {"local", "fedavg", "reference_pooled"}


def test_the_target_must_be_named(path: Path) -> None:
    assert "--target" in refused(["compare", str(path), "--site", "hospital"], path.parent)
    assert "--site" in refused(["compare", str(path), "--target", "outcome"], path.parent)


HEADER = "age,hospital,outcome\n"
ROWS = "".join(f"{20 + k * k % 7},{'ab'[k % 2]},{k % 3 % 2}\n" for k in range(20))
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b"\n\n \n", "is empty"),
    "header only": (HEADER.encode(), "has a header but no rows"),
    "duplicate columns": (b"age,age,hospital,outcome\n1,2,a,0\n", "two columns 'age'"),
    "not UTF-8": (HEADER.encode() + "1,Zürich,0\n".encode("latin-1"), "is not UTF-8 text, first in line 2"),
    "a NUL": ((HEADER + ROWS + "1,\0,0\n").encode(), "first in line 22"),
    "a longer row": ((HEADER + ROWS + "1,a,0,9\n" + ROWS).encode(), "Expected 3 fields in line 22, saw 4"),
    "an open quote": ((HEADER + ROWS + '"1,a,0\n').encode(), "EOF inside string"),
    "a target too large": (b"age,hospital,outcome\n" + b"1,a,0.5\n2,b,1.5\n3,a,1e308\n4,b,2\n", "first in row 3"),
    "UTF-16": ((HEADER + ROWS).encode("utf-16"), "is not UTF-8"),
    "binary": (bytes(range(256)) * 4, "is not UTF-8"),
    "mixed types": ((HEADER + ROWS + "old,a,1\n").encode(), "column 'age'"),
    "too large": ((HEADER + ROWS + "1e308,a,1\n").encode(), "column 'age'"),
    "infinite": ((HEADER + ROWS + "inf,a,1\n").encode(), "column 'age'"),
    "decimal commas": (b"age,hospital,outcome\n" + b'"1,5",a,0\n"2,5",a,1\n"3,5",b,1\n' * 4, "decimal commas"),
    "more cells": ((HEADER + "1,a,0,9\n" * 5).encode(), "more cells than its header"),
    "one class": ((HEADER + "1,a,0\n2,b,0\n3,a,0\n4,b,0\n").encode(), "at least two classes"),
    "no site": ((HEADER + ROWS + "3,,1\n").encode(), "names no site in 1 rows"),
    "no inputs": (b"hospital,outcome\na,0\na,1\nb,0\nb,1\n", "no columns besides"),
    "a single row each": (b"age,hospital,outcome\n1,a,0\n2,b,1\n", "two rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    content, told = BAD[name]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    arguments = ["compare", str(path), "--site", "hospital", "--target", "outcome", "--out", str(tmp_path / "out")]
    sentence = refused(arguments, tmp_path)
    assert told in sentence
    assert "table.csv" in sentence


@pytest.mark.parametrize("kind", ["parquet", "xlsx", "csv.gz", "csv.zip"])
def test_damaged_files_are_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"table.{kind}"
    path.write_bytes(b"PK\x03\x04 not what it says")
    arguments = ["compare", str(path), "--site", "hospital", "--target", "outcome", "--out", str(tmp_path / "out")]
    assert f"table.{kind}" in refused(arguments, tmp_path)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_marks_and_separators_make_no_difference(mark: bytes, separator: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(mark + (HEADER + ROWS).replace(",", separator).encode())
    arguments = [str(path), "--site", "hospital", "--target", "outcome", "--methods", "fedavg", "--rounds", "1"]
    found = command("compare", *arguments, "--splits", "1", "--out", str(tmp_path / "out"), "--json")
    assert set(json.loads(found.out)["sites"]) == {"a", "b"}
