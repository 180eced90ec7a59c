"""Schemas: what is inferred from a table, what a site's table is told, and the way to a file and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

from fedprior.data.columns import KINDS, Column
from fedprior.data.schema import Schema
from fedprior.data.target import Classes, Number
from fedprior.errors import FedpriorError

quick = settings(deadline=None, max_examples=60)
N = 40


def frame(**columns: Any) -> pd.DataFrame:
    """N rows with a class in each."""
    return pd.DataFrame({**columns, "ill": ["no", "yes"] * (N // 2)})


def kind(values: Any, name: str = "x", **options: Any) -> Column:
    [column] = Schema.inferred(frame(**{name: values}), target="ill", **options).columns
    return column


def refusal(act: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        act()
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


def cycle(*values: Any) -> list[Any]:
    return [values[i % len(values)] for i in range(N)]


# Kinds


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(np.linspace(0, 1, N), "number", id="fractions"),
        pytest.param(cycle(1, 2, 3), "number", id="codes"),
        pytest.param(cycle(1, 2), "number", id="two codes"),
        pytest.param(cycle(1.5, None, 7), "number", id="gaps"),
        pytest.param(cycle("1.5", "2", "-3e2"), "number", id="numbers as text"),
        pytest.param(pd.array(cycle(3, None, 5), dtype="Int64"), "number", id="nullable"),
        pytest.param(cycle(0, 1), "yes/no", id="0 and 1"),
        pytest.param(cycle(0.0, 1.0, None), "yes/no", id="0 and 1 with gaps"),
        pytest.param(cycle(True, False), "yes/no", id="truths"),
        pytest.param(cycle(True, False, None), "yes/no", id="truths with gaps"),
        pytest.param(pd.array(cycle(True, None, False), dtype="boolean"), "yes/no", id="nullable truths"),
        pytest.param(cycle("yes", "no"), "yes/no", id="words"),
        pytest.param(cycle("Y", "n", "N"), "yes/no", id="letters"),
        pytest.param(cycle("a", "b", "c"), "category", id="text"),
        pytest.param(cycle("m", "f"), "category", id="two levels"),
        pytest.param(cycle("0", "1", "2", "3+"), "category", id="an open-ended level"),
        pytest.param(cycle(0, 1, 2, ">2"), "category", id="an open-ended level among numbers"),
        pytest.param(pd.Categorical(cycle(1, 2, 3)), "category", id="declared in pandas"),
        pytest.param(cycle(7), "constant", id="one value"),
        pytest.param(cycle("yes", None), "constant", id="one word"),
        pytest.param(cycle(None), "constant", id="empty"),
        pytest.param([f"patient {i}" for i in range(N)], "identifier", id="names"),
        pytest.param([f"patient {i % 30}" for i in range(N)], "identifier", id="nearly all distinct"),
        pytest.param(np.random.default_rng(0).permutation(N) + 1000, "identifier", id="row numbers"),
        pytest.param(np.arange(N) * 3, "number", id="distinct whole numbers"),
        pytest.param(pd.date_range("2020-01-01", periods=N), "date", id="dates"),
        pytest.param(cycle("2020-01-31", "1999-12-01"), "date", id="dates as text"),
        pytest.param(cycle("31.12.2020", "1.2.21"), "date", id="dates with points"),
        pytest.param(cycle("2020-01-31T10:00", "2020-01-31 11:30:05"), "date", id="times"),
    ],
)
def test_kinds(values: Any, expected: str) -> None:
    column = kind(values)
    assert column.kind == expected
    assert column.used == (expected in ("number", "category", "yes/no")) == (column.note == "")
    assert column.missing == bool(pd.Series(values).isna().any())


@pytest.mark.parametrize("name", ["id", "patient_id", "Patient ID", "Unnamed: 0", "key"])
def test_distinct_whole_numbers_with_the_name_of_a_key(name: str) -> None:
    assert kind(np.arange(N) * 3, name).kind == "identifier"
    assert kind(np.arange(N) // 2, name).kind == "number"
    assert kind(np.arange(N) * 3, "covid").kind == "number"


@pytest.mark.parametrize("name", ["id", "patient", "Student", "patient_no", "case number", "PatientNr"])
def test_numbers_that_every_site_gives_out(name: str) -> None:
    """Four sites of ten rows that number their rows by themselves. A measurement, or a number that recurs, is none."""
    where = np.repeat(["a", "b", "c", "d"], 10)
    own = np.tile(np.arange(10) * 3 + 1, 4)

    def at_sites(name: str, values: Any, sites: Any = where) -> Column:
        given = pd.DataFrame({name: values, "site": sites, "ill": np.tile([0, 1], len(sites) // 2)})
        [column] = Schema.inferred(given, target="ill", site="site").columns
        return column

    assert at_sites(name, own).kind == "identifier"
    assert at_sites(name, own).note == "whole numbers that identify the rows of a site"
    assert at_sites("year", own).kind == "number"
    assert at_sites(name, own // 6).kind == "number"
    assert at_sites(name, own + 0.5).kind == "number"
    pairs = np.repeat(np.arange(20), 2)  # too few rows per site to tell
    assert at_sites(name, np.tile([1, 4], 20), pairs).kind == "number"


def test_more_levels_than_a_category_has() -> None:
    """101 levels in 404 rows; 100 are still a category."""
    for levels, expected in ((101, "identifier"), (100, "category")):
        text = [f"code {i % levels}" for i in range(404)]
        made = Schema.inferred(pd.DataFrame({"x": text, "y": [0, 1] * 202}), target="y")
        assert made.columns[0].kind == expected


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        (cycle("b", "a", "C"), ("C", "a", "b")),
        (cycle("b", None, "a"), ("a", "b")),
        (pd.Categorical(cycle("low", "high"), categories=["low", "mid", "high"]), ("low", "mid", "high")),
    ],
)
def test_levels(values: Any, levels: tuple[str, ...]) -> None:
    """Sorted; or as pandas has them declared."""
    assert kind(values).levels == levels


def test_kinds_may_be_declared() -> None:
    """Codes as a category, in the order of numbers; a key as a number; a number as a key."""
    assert kind(cycle(10, 9, 2), kinds={"x": "category"}).levels == ("2", "9", "10")
    assert kind(cycle("10", "9", "2"), kinds={"x": "category"}).levels == ("2", "9", "10")
    assert kind(np.arange(N), kinds={"x": "number"}).used
    assert kind(cycle(5), kinds={"x": "number"}).used
    assert not kind(np.linspace(0, 1, N), kinds={"x": "identifier"}).used


@pytest.mark.parametrize(
    ("values", "options", "parts"),
    [
        (cycle(1.5, 2, "secret"), {}, ["column 'x'", "row 3", "category"]),
        ([*cycle(1, 2, 3)[:-1], "2l"], {}, ["column 'x'", f"row {N}", "data.kinds.x=category"]),
        ([*range(N - 2), "3+", "3+"], {}, ["column 'x'", f"row {N - 1}"]),
        (cycle("1,5", "2,25", "3"), {}, ["column 'x'", "decimal commas"]),
        ([*(f"{k},5" for k in range(N - 1)), "broken"], {}, ["column 'x'", "decimal commas", f"row {N}"]),
        (cycle(["secret"]), {}, ["column 'x'", "neither numbers nor text"]),
        (cycle("a", "b"), {"kinds": {"x": "number"}}, ["column 'x'", "row 1"]),
        (cycle(0, 1, 2), {"kinds": {"x": "yes/no"}}, ["column 'x'", "row 3"]),
        (cycle(0, 1), {"kinds": {"x": "nummer"}}, ["unknown kind 'nummer'", "did you mean 'number'"]),
        (cycle(0, 1), {"kinds": {"z": "number"}}, ["no column 'z'"]),
        (cycle(0, 1), {"site": "z"}, ["no column 'z'"]),
        (cycle(0, 1), {"kinds": {"ill": "date"}}, ["unknown kind 'date'", "'ill'"]),
    ],
)
def test_what_cannot_be_inferred(values: Any, options: dict[str, Any], parts: list[str]) -> None:
    told = refusal(lambda: kind(values, **options))
    assert all(part in told for part in parts), told
    assert "secret" not in told


def test_names_must_differ() -> None:
    twice = pd.DataFrame(np.arange(8).reshape(2, 4), columns=["a", "b", "a", "ill"])
    assert "two columns 'a'" in refusal(lambda: Schema.inferred(twice, target="ill"))
    clash = frame(**{"x": cycle("a", "b"), "x=b": np.linspace(0, 1, N)})
    assert "'x=b'" in refusal(lambda: Schema.inferred(clash, target="ill"))
    assert "no rows" in refusal(lambda: Schema.inferred(frame(x=cycle(1, 2))[:0], target="ill"))


# The target


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (cycle("b", "a"), Classes(("a", "b"))),
        (cycle(10, 9), Classes(("9", "10"))),
        (cycle(1.0, 0.0), Classes(("0", "1"))),
        (cycle("10", "9"), Classes(("9", "10"))),
        (cycle(True, False), Classes(("False", "True"))),
        (cycle(0.5, 1), Number()),
        (np.arange(N) % 20, Classes.numbered(20)),
        (np.arange(N) % 21, Number()),
        (cycle("0.5", "2"), Number()),
        (pd.Categorical(cycle("late", "early"), categories=["early", "late"]), Classes(("early", "late"))),
    ],
)
def test_targets(values: Any, expected: Any) -> None:
    """A number if it has fractions or more than 20 distinct values."""
    made = Schema.inferred(pd.DataFrame({"x": cycle(1, 2, 3), "y": values}), target="y")
    assert made.target == expected
    assert made.target_name == "y"


def test_the_targets_kind_may_be_declared() -> None:
    table = pd.DataFrame({"x": cycle(1, 2, 3), "y": cycle(0.5, 1, 2), "z": cycle(0, 1)})
    assert Schema.inferred(table, target="y", kinds={"y": "classes"}).target == Classes(("0.5", "1", "2"))
    assert Schema.inferred(table, target="z", kinds={"z": "number"}).target == Number()


@pytest.mark.parametrize(
    ("values", "options", "part"),
    [
        (cycle("a"), {}, "at least two classes"),
        (cycle("a", "b", None), {}, "a class in every row"),
        (cycle(0.5, 1, None), {}, "a number in every row"),
        (cycle(3), {"kinds": {"y": "number"}}, "at least two different ones"),
        (cycle("a", "b"), {"kinds": {"y": "number"}}, "a number in every row"),
    ],
)
def test_a_target_that_is_none(values: Any, options: dict[str, Any], part: str) -> None:
    table = pd.DataFrame({"x": cycle(1, 2, 3), "y": values})
    told = refusal(lambda: Schema.inferred(table, target="y", **options))
    assert part in told
    assert "column 'y'" in told


# Inputs


def test_heart_disease() -> None:
    """Columns like those of the UCI file: codes declared, the rest found. 8 + 3 + 2 inputs, and 3 indicators."""
    rng = np.random.default_rng(0)
    n = 300
    table = pd.DataFrame(
        {
            "age": rng.integers(29, 78, n),
            "sex": rng.integers(0, 2, n),
            "cp": rng.integers(1, 5, n),
            "trestbps": rng.normal(130, 17, n),
            "chol": np.where(rng.random(n) < 0.2, np.nan, rng.normal(250, 50, n)),
            "fbs": np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 2, n)),
            "thalach": rng.integers(71, 203, n),
            "exang": rng.choice(["no", "yes"], n),
            "oldpeak": rng.normal(1, 1, n).round(1),
            "thal": np.array(["normal", "fixed", "reversible", None])[rng.integers(0, 4, n)],
            "hospital": rng.choice(["Cleveland", "Basel"], n),
            "num": rng.integers(0, 5, n),
        }
    )
    made = Schema.inferred(table, target="num", site="hospital", kinds={"cp": "category"}, indicators=True)
    assert [c.kind for c in made.columns] == (
        ["number", "yes/no", "category", "number", "number", "yes/no", "number", "yes/no", "number", "category"]
    )
    assert made.target == Classes.numbered(5)
    assert made.inputs == (
        *("age", "sex", "cp=2", "cp=3", "cp=4", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak"),
        *("thal=normal", "thal=reversible", "chol missing", "fbs missing", "thal missing"),
    )
    x = made.matrix(table)
    assert x.shape == (n, 16)
    assert (x[:, 2:5] == OneHotEncoder(drop="first", sparse_output=False).fit_transform(table[["cp"]])).all()
    assert (np.isnan(x[:, 11]) == table["thal"].isna()).all()
    assert made.labels(table).tolist() == table["num"].tolist()


@pytest.mark.parametrize("levels", [(1, 2, 3), (1.0, 2.0, 3.0), ("1", "2", "3")])
def test_a_level_is_the_same_however_a_file_was_read(levels: tuple[Any, ...]) -> None:
    """Whole numbers become fractions in a column with gaps, and text beside other text."""
    made = Schema.inferred(frame(x=cycle(1, 2, 3)), target="ill", kinds={"x": "category"})
    assert made.matrix(frame(x=cycle(*levels)))[:3].tolist() == [[0, 0], [1, 0], [0, 1]]


@pytest.mark.parametrize("words", [(0, 1), (False, True), ("no", "YES"), ("f", "T"), (0.0, 1.0), ("0", "1")])
def test_yes_and_no_in_any_spelling(words: tuple[Any, ...]) -> None:
    made = Schema.inferred(frame(x=cycle("no", "yes")), target="ill")
    assert made.matrix(frame(x=cycle(*words)))[:2].tolist() == [[0], [1]]


# Whether a site's table fits


def declared() -> Schema:
    return Schema.inferred(
        frame(
            age=np.linspace(20, 80, N), stage=cycle("I", "II"), smoker=cycle("no", "yes"), dose=cycle(1.5, None, 2.5)
        ),
        target="ill",
    )


def site(**changes: Any) -> pd.DataFrame:
    return frame(age=cycle(40, 50), stage=cycle("I", "II"), smoker=cycle(0, 1), dose=cycle(2)).assign(**changes)


def test_a_table_that_fits() -> None:
    """In another order, with another column, with a constant, with gaps where they are allowed."""
    assert declared().problems(site()) == []
    assert (
        declared().problems(site(dose=cycle(None, 1), more=3)[["more", "ill", "dose", "smoker", "stage", "age"]]) == []
    )


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (site().drop(columns="age"), ["there is no column 'age' (number)"]),
        (site(age=cycle("old", 1)), ["column 'age' (number): 20 rows hold something else"]),
        (site(age=cycle(np.inf, 1)), ["column 'age' (number): 20 rows hold something else"]),
        (site(age=cycle(None, 1)), ["column 'age' (number): 20 rows are empty, which the schema does not allow"]),
        (
            site(stage=cycle("III", "I", "IV", "V")),
            ["column 'stage' (category): 30 rows with 3 levels that the schema does not have"],
        ),
        (site(smoker=cycle(0, 2)), ["column 'smoker' (yes/no): 20 rows hold something else"]),
        (site().drop(columns="ill"), ["there is no column 'ill', the target"]),
        (site(ill=cycle("no", None)), ["column 'ill', the target: 20 rows without a class that the schema has"]),
        (site(ill=cycle("no", "dead")), ["column 'ill', the target: 20 rows without a class that the schema has"]),
        (site()[:0], ["the table has no rows"]),
        (pd.concat([site(), site()[["age"]]], axis=1), ["two columns have the same name: rename one"]),
    ],
)
def test_a_table_that_does_not_fit(table: pd.DataFrame, expected: list[str]) -> None:
    assert declared().problems(table) == expected


def test_several_problems_at_once() -> None:
    """Half of 40 ages, and all classes."""
    told = declared().problems(site(age=cycle("old", 1), ill=0).drop(columns="dose"))
    assert [line.split("'")[1] for line in told] == ["age", "dose", "ill"]


cells = st.sampled_from(["CANARY-text", 770077.5, "770077", None, True, 1, "yes", "I", float("inf")])


@settings(quick, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(cells, min_size=5, max_size=5), min_size=1, max_size=6), st.booleans())
def test_no_value_is_ever_told(rows: list[list[Any]], headless: bool) -> None:
    """Neither by `problems` nor by a refusal; nor the header of a file without one, which is a patient."""
    names = ["age", "stage", "smoker", "dose", "ill"]
    table = pd.DataFrame(rows, columns=[f"CANARY {k}" for k in range(5)] if headless else names, dtype=object)
    told = declared().problems(table)
    for act in (declared().matrix, declared().labels):
        try:
            act(table)
        except FedpriorError as error:
            told.append(str(error))
    assert not any(word in line for line in told for word in ("CANARY", "770077"))


# To a file and back

names = st.text(min_size=1, max_size=8)
columns = st.builds(
    Column,
    names,
    st.sampled_from(KINDS),
    st.lists(names, min_size=2, max_size=4, unique=True).map(tuple),
    st.booleans(),
    st.text(max_size=5),
)
targets = st.builds(Classes, st.lists(names, min_size=2, unique=True).map(tuple)) | st.builds(Number, unit=names)


@settings(quick, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(columns, max_size=4), targets, names, st.none() | names, st.booleans(), st.sampled_from(["json", "toml"])
)
def test_through_a_file_and_back(
    tmp_path: Path, given: list[Column], target: Any, name: str, site: str | None, indicators: bool, suffix: str
) -> None:
    """Of any names and levels, unless two inputs would be called the same."""
    try:
        schema = Schema(tuple(given), target, name, site, indicators)
    except FedpriorError:
        return
    schema.write(tmp_path / f"schema.{suffix}")
    again = Schema.read(tmp_path / f"schema.{suffix}")
    assert again == schema
    assert again.hash == schema.hash
    assert Schema.from_document(json.loads(json.dumps(schema.document()))) == schema


def test_the_hash_sees_everything_but_what_is_learnt() -> None:
    """The order of columns, levels, gaps, the target, the site; not the mean of a target in one federation."""
    a, b = Column("a", "number"), Column("b", "category", ("x", "y"))
    schemas = [
        Schema((a, b), Number(), "y"),
        Schema((b, a), Number(), "y"),
        Schema((a,), Number(), "y"),
        Schema((a, Column("b", "category", ("y", "x"))), Number(), "y"),
        Schema((Column("a", "number", missing=True), b), Number(), "y"),
        Schema((a, b), Number("kg"), "y"),
        Schema((a, b), Classes(("0", "1")), "y"),
        Schema((a, b), Number(), "z"),
        Schema((a, b), Number(), "y", "site"),
        Schema((a, b), Number(), "y", None, True),
    ]
    assert len({schema.hash for schema in schemas}) == len(schemas)
    assert Schema((a, b), Number(mean=3.0, deviation=2.0), "y").hash == schemas[0].hash


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("columns = 3", "lacks 'target'"),
        ("[target]\nkind = 'number'\nname = 'y'", "lacks 'columns'"),
        ("[target]\nkind = 'number'\nname = 'y'\n[[columns]]\nname = 'a'\nkind = 'colour'", "no kind 'colour'"),
        ("[target]\nkind = 'number'\nname = 'y'\n[[columns]]\nname = 'a'\nkind = 'number'\nhue = 1", "hue"),
        ("target = 3\ncolumns = []", "not a schema"),
        ("= 3", "not a schema"),
        (b"\xff\xfe", "not a schema"),
    ],
)
def test_a_file_that_is_no_schema(tmp_path: Path, content: str | bytes, part: str) -> None:
    path = tmp_path / "schema.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    told = refusal(lambda: Schema.read(path))
    assert part in told
    assert "schema.toml" in told


def test_a_schema_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no file" in refusal(lambda: Schema.read(tmp_path / "schema.toml"))
