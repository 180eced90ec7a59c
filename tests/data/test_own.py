"""Tables of one's own of any format: the same federation from each, what is left out, and how rows are split."""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedprior
from fedprior.data import from_frame
from fedprior.data.datasets import load
from fedprior.data.federation import SPLITS, Federation, from_arrays
from fedprior.data.own import SITE_LEVEL
from fedprior.data.splits import Shares
from fedprior.data.sums import LEAST, Sums
from fedprior.data.target import Classes, Number
from fedprior.errors import FedpriorError, FedpriorWarning


def hospitals(seed: int = 0, sizes: tuple[int, ...] = (40, 25, 30)) -> pd.DataFrame:
    """Three sites with a number, a category, a yes/no, a key, a column of the site, gaps and several visits each."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    site = np.repeat(["north", "south", "west"], sizes)
    age = np.where(rng.random(n) < 0.1, np.nan, rng.integers(20, 90, n))
    return pd.DataFrame(
        {
            "key": [f"p{k:04d}" for k in range(n)],
            "age": age,
            "stage": rng.choice(["I", "II", "III"], n),
            "smokes": rng.choice(["yes", "no"], n),
            "beds": np.repeat([100, 250, 90], sizes),
            "patient": rng.integers(0, 15, n),
            "visited": pd.date_range("2020-01-01", periods=n).strftime("%Y-%m-%d"),
            "hospital": site,
            "outcome": rng.choice(["ill", "well"], n),
        }
    )


def same(one: Federation, other: Federation) -> None:
    assert one.clients == other.clients
    assert one.fingerprint() == other.fingerprint()


def quietly(**options: Any) -> Federation:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedpriorWarning)
        return load("table", target="outcome", site="hospital", **options)


@pytest.fixture
def frame() -> pd.DataFrame:
    return hospitals()


def written(frame: pd.DataFrame, kind: str, folder: Path) -> dict[str, Any]:
    """The table in a format, and the options that read it."""
    path = folder / f"table.{kind}"
    if kind == "db":
        with sqlite3.connect(path) as connection:
            frame.to_sql("visits", connection, index=False)
        return {"path": f"sqlite:///{path}"}
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "xlsx":
        frame.to_excel(path, index=False)
    else:
        frame.to_csv(path, index=False, sep={"csv": ",", "tsv": "\t", "csv.gz": ";"}[kind])
    return {"path": str(path)}


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "parquet", "xlsx", "db"])
def test_every_format_gives_the_same_federation(kind: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    same(quietly(**written(frame, kind, tmp_path)), from_frame(frame, site="hospital", target="outcome"))


def test_a_folder_of_formats(frame: pd.DataFrame, tmp_path: Path) -> None:
    """One file per site, whatever its format; the file's name is the site's."""
    for name, own in frame.groupby("hospital"):
        kind = {"north": "csv", "south": "parquet", "west": "xlsx"}[str(name)]
        written(own.drop(columns="hospital").reset_index(drop=True), kind, tmp_path)
        (tmp_path / f"table.{kind}").rename(tmp_path / f"{name}.{kind}")
    same(load("table", path=str(tmp_path), target="outcome"), from_frame(frame, site="hospital", target="outcome"))


def test_a_query_of_a_database(frame: pd.DataFrame, tmp_path: Path) -> None:
    options = written(frame, "db", tmp_path)
    some = quietly(**options, sql="SELECT age, hospital, outcome FROM visits WHERE hospital <> 'west'")
    assert some.clients == ("north", "south")
    assert some.encoders[0] is not None
    assert some.encoders[0].schema is not None
    assert some.encoders[0].schema.inputs == ("age", "age missing")


@pytest.mark.parametrize(
    ("url", "sql", "told"),
    [
        ("sqlite:///nowhere.db", None, "there is no file"),
        ("postgresql://me:secret@host/db", None, "password"),
        ("sqlite:///{db}", "visit", "no table 'visit': its tables are visits"),
        ("sqlite:///{db}", "SELECT * FROM visits WHERE age > 1000", "gives no rows"),
        ("sqlite:///{db}", "SELECT nothing FROM visits", "cannot be read"),
        ("made-up://host", None, "cannot be read"),
    ],
)
def test_databases_that_do_not_answer(
    url: str, sql: str | None, told: str, frame: pd.DataFrame, tmp_path: Path
) -> None:
    written(frame, "db", tmp_path)
    with pytest.raises(FedpriorError, match=told) as error:
        quietly(path=url.format(db=tmp_path / "table.db"), sql=sql)
    assert "secret" not in str(error.value)


def test_what_becomes_of_every_column(frame: pd.DataFrame) -> None:
    federation = from_frame(frame, site="hospital", target="outcome")
    assert federation.encoders[0] is not None
    schema = federation.encoders[0].schema
    assert schema is not None
    assert {column.name: column.kind for column in schema.columns} == {
        "key": "identifier",
        "age": "number",
        "stage": "category",
        "smokes": "yes/no",
        "beds": "number",
        "patient": "number",
        "visited": "identifier" if "visited" not in schema.left_out else "date",
    }
    notes = {column.name: column.note for column in schema.used}
    assert notes["beds"] == SITE_LEVEL
    assert notes["age"] == ""
    assert "age missing" in schema.inputs


def test_differences_between_sites_survive_the_scaling(frame: pd.DataFrame) -> None:
    """`beds` is constant at every site: shared scaling keeps its three values, own scaling makes all of them 0."""
    for scaling, values in (("shared", 3), ("own", 1)):
        federation = from_frame(frame, site="hospital", target="outcome", scaling=scaling)  # type: ignore[arg-type]
        assert federation.encoders[0] is not None
        assert federation.encoders[0].schema is not None
        column = federation.encoders[0].schema.inputs.index("beds")
        assert len(np.unique(federation.train.x[:, column].numpy())) == values


def test_a_continuous_target_is_a_number(frame: pd.DataFrame) -> None:
    frame["days"] = np.random.default_rng(1).gamma(2.0, 3.0, len(frame))
    assert isinstance(from_frame(frame, site="hospital", target="days").target, Number)
    assert from_frame(frame, site="hospital", target="stage").target == Classes(("I", "II", "III"))


def test_rows_without_a_target_and_sites_without_rows_are_left_out(frame: pd.DataFrame) -> None:
    frame.loc[frame["hospital"] == "west", "outcome"] = np.nan
    frame.loc[3, "outcome"] = np.nan
    lone = frame.iloc[[0]].assign(hospital="[lone]")
    with pytest.warns(FedpriorWarning) as said:
        federation = from_frame(pd.concat([frame, lone]), site="hospital", target="outcome")
    assert [str(one.message) for one in said] == [
        "31 of 96 rows of the table have no 'outcome' and are left out.",
        "sites with fewer than two rows to learn from are left out: [lone], west.",
    ]
    assert federation.clients == ("north", "south")
    assert sum(sum(federation.split(split).size) for split in SPLITS) == 64


def test_small_sites_and_sites_of_one_class_take_part(frame: pd.DataFrame) -> None:
    tiny = frame.iloc[:5].assign(hospital="tiny", outcome="ill")
    federation = from_frame(pd.concat([frame, tiny]), site="hospital", target="outcome")
    c = federation.clients.index("tiny")
    assert sum(federation.split(split).size[c] for split in SPLITS) == 5
    assert federation.test.size[c] == 1


def test_a_level_only_in_test_rows_has_no_effect() -> None:
    """No weight of its input was ever trained: it counts as 0, not as a random number."""
    x = np.random.default_rng(0).normal(size=(20, 2))
    x[:, 1] = 0
    tests = {"a": (np.array([[0.5, 250.0]]), np.array([1]))}
    federation = from_arrays({"a": (x, np.arange(20) % 2)}, tests=tests, standardise=True, scaling="shared")
    assert abs(float(federation.test.x[0, 1])) < 1e-20
    assert abs(float(federation.test.x[0, 0])) > 0.1


# What leaves a site


def test_few_values_are_not_given_away_by_their_sums() -> None:
    """A site of four rows says nothing at all; one with a single known value of an input nothing of that input."""
    assert LEAST == 5
    x = np.arange(8.0).reshape(4, 2)
    assert all((part == 0).all() for part in Sums.of(x).guarded())
    x = np.arange(20.0).reshape(10, 2)
    x[1:, 1] = np.nan
    told = Sums.of(x).guarded()
    assert [part.tolist() for part in told] == [[10.0, 0.0], [9.0, 0.0], [330.0, 0.0], [0.0, 0.0]]
    with pytest.raises(FedpriorError, match="use scaling=own"):
        from_arrays({"a": (np.ones((4, 1)), [0, 1, 0, 1])}, standardise=True, scaling="shared")


def test_shared_scaling_is_that_of_the_sites_that_take_part(frame: pd.DataFrame) -> None:
    """A site of four rows has no say in the scaling, and is scaled like everywhere."""
    tiny = frame.iloc[:4].assign(hospital="tiny", beds=10_000)
    with_it = from_frame(pd.concat([frame, tiny]), site="hospital", target="outcome")
    without = from_frame(frame, site="hospital", target="outcome")
    own = [with_it.encoder("tiny"), with_it.encoder("north"), without.encoder("north")]
    scalers = [encoder.scaler.document() for encoder in own if encoder is not None]
    assert scalers[0] == scalers[1] == scalers[2]


# Splits


def parts(how: str, units: Any = None, turn: int = 0, n: int = 40, test: float = 0.2) -> list[set[int]]:
    """The row numbers of the three parts."""
    x = np.arange(n, dtype=np.float64)[:, None]
    given = None if units is None else {"a": units}
    options: dict[str, Any] = {"split": how, "units": given, "turn": turn, "validation": 0.1, "test": test}
    federation = from_arrays({"a": (x, np.arange(n) % 2)}, **options)
    return [set(federation.split(split).x[:, 0].int().tolist()) for split in SPLITS]


@pytest.mark.parametrize("how", ["random", "stratified"])
def test_successive_turns_test_on_every_row_once(how: str) -> None:
    tested = [parts(how, turn=turn)[2] for turn in range(5)]
    assert set.union(*tested) == set(range(40))
    assert sum(map(len, tested)) == 40
    for turn in range(5):
        assert set.union(*parts(how, turn=turn)) == set(range(40))


def test_groups_are_never_divided() -> None:
    group = np.random.default_rng(0).integers(0, 12, 40)
    tested: list[set[int]] = []
    for turn in range(5):
        found = [{int(group[row]) for row in rows} for rows in parts("grouped", group, turn)]
        assert not (found[0] & found[2])
        assert not (found[0] & found[1])
        assert not (found[1] & found[2])
        tested.append(found[2])
    assert set.union(*tested) == set(group.tolist())
    assert sum(map(len, tested)) == 12  # each group once
    assert [len(rows) for rows in parts("grouped", np.zeros(40))] == [40, 0, 0]


def test_the_latest_rows_are_tested_on_with_all_of_their_moment() -> None:
    time = np.repeat(np.arange(8), 5)  # the last fifth of 40 rows begins within moment 6
    train, validation, test = parts("time", time)
    assert test == set(range(30, 40))
    assert len(validation) == 4
    assert train | validation == set(range(30))
    assert parts("time", np.zeros(40))[2] == set()


def test_groups_and_times_of_a_table(frame: pd.DataFrame) -> None:
    grouped = from_frame(frame, site="hospital", target="outcome", group="patient")
    assert grouped.encoders[0] is not None
    assert grouped.encoders[0].schema is not None
    assert "patient" not in [column.name for column in grouped.encoders[0].schema.columns]
    timed = from_frame(frame, site="hospital", target="outcome", time="visited")
    assert timed.tested[0].tolist() == list(range(32, 40))
    with pytest.raises(FedpriorError, match="neither dates nor numbers"):
        from_frame(frame, site="hospital", target="outcome", time="stage")
    with pytest.raises(FedpriorError, match="not by both"):
        from_frame(frame, site="hospital", target="outcome", time="visited", group="patient")


@pytest.mark.parametrize("turn", [-1, 1.5, True, 2**40])
def test_turns_that_are_none(turn: Any) -> None:
    with pytest.raises(FedpriorError, match="turn"):
        Shares(0.1, 0.2, "random", 1.0, turn).check()


def test_what_from_frame_refuses(frame: pd.DataFrame) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "has no column 'ward'": {"site": "ward", "target": "outcome"},
        "is the target": {"site": "outcome", "target": "outcome"},
        "missing = 'median'": {"site": "hospital", "target": "outcome", "missing": "median"},
        "unknown option 'tests'": {"site": "hospital", "target": "outcome", "tests": {}},
    }
    for told, given in wrong.items():
        with pytest.raises(FedpriorError, match=told):
            from_frame(frame, **given)
    with pytest.raises(FedpriorError, match="not a DataFrame"):
        fedprior.data.from_frame([1, 2], site="a", target="b")  # type: ignore[arg-type]
