"""Tables of one's own: what is read from CSV files, how it becomes inputs, and what is refused."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from fedprior.data.datasets import load
from fedprior.data.federation import SPLITS, from_arrays
from fedprior.data.reading import read_file
from fedprior.data.target import Classes, Number
from fedprior.errors import FedpriorError, FedpriorWarning


def refusal(**options: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        load("csv", **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


@pytest.fixture
def table() -> pd.DataFrame:
    """Three sites with 20, 10 and 15 patients."""
    rng = np.random.default_rng(0)
    site = np.repeat(["site2", "site10", "site1"], [20, 10, 15])
    return pd.DataFrame(
        {"age": rng.integers(20, 80, 45), "dose": rng.normal(size=45), "site": site, "ill": ["no", "yes", "no"] * 15}
    )


@pytest.fixture
def csv_path(table: pd.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    table.to_csv(path, index=False)
    return path


def test_csv(csv_path: Path, table: pd.DataFrame) -> None:
    """Sites in natural order, classes in sorted order, columns in the file's order, scaled by each site's training."""
    federation = load("csv", path=str(csv_path), target="ill", client="site", validation=0.2, test=0.2)
    assert federation.clients == ("site1", "site2", "site10")
    assert federation.target == Classes(("no", "yes"))
    assert [federation.split(s).size for s in SPLITS] == [(9, 12, 6), (3, 4, 2), (3, 4, 2)]
    for c, site in enumerate(federation.clients):
        own = table[table["site"] == site]
        assert sum(int((y[c] == 1).sum()) for y in map(federation.labels, SPLITS)) == (own["ill"] == "yes").sum()
        x = torch.cat([federation.split(s).client(c)[0] for s in SPLITS]).double()
        ages = np.sort(own["age"].to_numpy())
        got = np.sort(x[:, 0].numpy())
        np.testing.assert_allclose(np.diff(got) * ages.std() / got.std(), np.diff(ages), atol=1e-5)
        torch.testing.assert_close(federation.train.client(c)[0].mean(0), torch.zeros(2), rtol=0, atol=1e-5)


def test_one_csv_per_site(csv_path: Path, table: pd.DataFrame, tmp_path: Path) -> None:
    """The same federation as from one file with a column for the site, whatever the order of the columns."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for site, own in table.groupby("site"):
        columns = ["ill", "dose", "age"] if site == "site10" else ["age", "dose", "ill"]
        own[columns].to_csv(folder / f"{site}.csv", index=False)
    (folder / "README.txt").write_text("not a table")
    options: dict[str, Any] = {"target": "ill", "validation": 0.2, "test": 0.2}
    one, several = load("csv", path=csv_path, client="site", **options), load("csv", path=folder, **options)
    assert several.clients == one.clients == ("site1", "site2", "site10")
    assert several.fingerprint() == one.fingerprint()


def test_a_folder_of_csv_that_is_wrong(table: pd.DataFrame, tmp_path: Path) -> None:
    assert "no .csv files" in refusal(path=tmp_path, target="ill")
    table.to_csv(tmp_path / "a.csv", index=False)
    table.drop(columns="dose").to_csv(tmp_path / "b.csv", index=False)
    told = refusal(path=tmp_path, target="ill")
    assert all(word in told for word in ("a.csv", "b.csv", "column 'dose'"))


def test_one_csv_needs_a_column_with_the_site(csv_path: Path) -> None:
    assert "needs the option 'client'" in refusal(path=csv_path, target="ill")


def test_csv_with_missing_values_filled_in(csv_path: Path, table: pd.DataFrame) -> None:
    """The median of the site's training doses, scaled as they are."""
    table["dose"] = table["dose"].astype(float)
    table.loc[table.index[::7], "dose"] = np.nan
    table.to_csv(csv_path, index=False)
    federation = load("csv", path=csv_path, target="ill", client="site", missing="median")
    encoder = federation.encoder("site2")
    assert encoder is not None
    scaler = encoder.scaler
    assert scaler.fill is not None
    filled = float((scaler.fill[1] - scaler.mean[1]) / scaler.std[1])
    doses = torch.cat([federation.split(s).client(federation.clients.index("site2"))[0][:, 1] for s in SPLITS])
    assert int((doses - filled).abs().lt(1e-6).sum()) >= table[table["site"] == "site2"]["dose"].isna().sum()
    assert bool(torch.isfinite(federation.train.x).all())


# The same as from arrays


@pytest.mark.parametrize("missing", ["refuse", "median"])
def test_numbers_are_taken_as_they_are(tmp_path: Path, missing: str) -> None:
    """Bit for bit what pandas reads, handed over as arrays: whole numbers, fractions and codes."""
    rng = np.random.default_rng(3)
    n = 120
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 80, n),
            "dose": rng.normal(1e5, 1e3, n),
            "code": rng.integers(1, 5, n),
            "flag": rng.integers(0, 3, n),
            "site": rng.choice(["a", "b"], n),
            "grade": rng.integers(0, 12, n),
        }
    )
    if missing == "median":
        table.loc[::7, "dose"] = np.nan
        table["flag"] = table["flag"].where(np.arange(n) % 5 > 0)
    path = tmp_path / "table.csv"
    table.to_csv(path, index=False)
    read = pd.read_csv(path)
    given = {}
    for site, own in read.groupby("site"):
        given[str(site)] = own[["age", "dose", "code", "flag"]].to_numpy(np.float64), own["grade"].to_numpy()
    expected = from_arrays(given, classes=12, standardise=True, impute=missing == "median")
    assert (
        load("csv", path=path, target="grade", client="site", missing=missing).fingerprint() == expected.fingerprint()
    )


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda v: v or 0.0), min_size=8, max_size=20, unique=True),
    st.sampled_from(",;\t"),
)
def test_any_numbers_through_a_file(tmp_path: Path, values: list[float], separator: str) -> None:
    """The encoder of a site makes of its raw rows what the federation holds of them."""
    table = pd.DataFrame({"x": [v + 0.5 for v in values], "ill": [i % 2 for i in range(len(values))], "site": "a"})
    if table["x"].nunique() < 2:
        return
    table.to_csv(tmp_path / "t.csv", index=False, sep=separator)
    federation = load("csv", path=tmp_path / "t.csv", target="ill", client="site", kinds={"x": "number"})
    encoder = federation.encoder("a")
    assert encoder is not None
    held = np.sort(np.concatenate([federation.split(s).x[:, 0].numpy() for s in SPLITS]))
    raw = pd.read_csv(tmp_path / "t.csv", sep=separator)
    np.testing.assert_array_equal(held, np.sort(encoder.encode(raw)[:, 0].astype(np.float32)))


# Kinds


def test_categories_and_yes_no(csv_path: Path, table: pd.DataFrame) -> None:
    """2 numbers, 2 inputs for 3 levels, 1 for yes/no."""
    stage = ["I", "II", "III"] * 15
    table.assign(stage=stage, smoker=["yes", "no", "no", "no", "yes"] * 9).to_csv(csv_path, index=False)
    federation = load("csv", path=csv_path, target="ill", client="site")
    encoder = federation.encoder("site1")
    assert encoder is not None
    assert encoder.schema is not None
    assert encoder.schema.inputs == ("age", "dose", "stage=II", "stage=III", "smoker")
    assert federation.shape == (5,)
    assert (encoder.schema.target_name, encoder.schema.site) == ("ill", "site")


def test_codes_may_be_declared_a_category(csv_path: Path, table: pd.DataFrame) -> None:
    table.assign(code=[1, 2, 3] * 15).to_csv(csv_path, index=False)
    options: dict[str, Any] = {"path": csv_path, "target": "ill", "client": "site"}
    assert load("csv", **options).shape == (3,)
    assert load("csv", **options, kinds={"code": "category"}).shape == (4,)
    assert "kinds.code = 'colour'" in refusal(**options, kinds={"code": "colour"})


def test_a_number_to_predict(csv_path: Path, table: pd.DataFrame) -> None:
    """Fractions, or more than 20 whole numbers; unless classes are asked for."""
    options: dict[str, Any] = {"path": csv_path, "client": "site"}
    table = table.drop(columns="ill").assign(score=np.arange(45) % 3)
    table.to_csv(csv_path, index=False)
    dose = load("csv", target="dose", **options)
    assert isinstance(dose.target, Number)
    assert dose.train.y.dtype == torch.float32
    assert isinstance(load("csv", target="age", **options).target, Number)
    assert load("csv", target="score", **options).target == Classes.numbered(3)
    assert isinstance(load("csv", target="score", target_kind="number", **options).target, Number)
    classes = load("csv", target="age", target_kind="classes", **options).target
    assert classes == Classes(tuple(str(age) for age in sorted(set(table["age"]))))


def test_what_is_no_input_is_left_out_with_a_warning(csv_path: Path, table: pd.DataFrame) -> None:
    table.assign(patient=[f"P{i}" for i in range(45)], seen="2020-01-31", unit="mg", born=cycle(45)).to_csv(
        csv_path, index=False
    )
    with pytest.warns(FedpriorWarning, match=r"'patient' .*'seen' .*'unit' .*'born' \(a date") as told:
        federation = load("csv", path=csv_path, target="ill", client="site")
    assert federation.shape == (2,)
    assert not any(word in str(told[0].message) for word in ("P1", "2020", "mg"))


def cycle(n: int) -> list[str]:
    return [f"19{50 + i % 9}-02-03" for i in range(n)]


def test_a_table_with_no_input_at_all(csv_path: Path, table: pd.DataFrame) -> None:
    table.assign(unit="mg").drop(columns=["age", "dose"]).to_csv(csv_path, index=False)
    told = refusal(path=csv_path, target="ill", client="site")
    assert "no column of" in told
    assert "'unit' (the same in every row)" in told


# Gaps and scaling


def test_indicators(csv_path: Path, table: pd.DataFrame) -> None:
    table["dose"] = table["dose"].where(table.index % 3 > 0)
    table.to_csv(csv_path, index=False)
    options: dict[str, Any] = {"path": csv_path, "target": "ill", "client": "site", "missing": "median"}
    encoder = load("csv", **options, indicators=True).encoder("site1")
    assert encoder is not None
    assert encoder.schema is not None
    assert encoder.schema.inputs == ("age", "dose", "dose missing")
    assert load("csv", **options).shape == (2,)


def test_shared_scaling(csv_path: Path, table: pd.DataFrame) -> None:
    """One scaling for all, that of all training rows: a site's own mean is then not 0, but everyone's is."""
    table["age"] += np.where(table["site"] == "site10", 100, 0)
    table.to_csv(csv_path, index=False)
    federation = load("csv", path=csv_path, target="ill", client="site", scaling="shared")
    np.testing.assert_allclose(StandardScaler().fit(federation.train.x.numpy()).mean_, 0, atol=1e-6)
    np.testing.assert_allclose(StandardScaler().fit(federation.train.x.numpy()).scale_, 1, atol=1e-6)
    assert federation.train.client(federation.clients.index("site10"))[0][:, 0].mean() > 1
    assert federation.setup_bytes == 2 * 32
    assert "scaling = 'both'" in refusal(path=csv_path, target="ill", client="site", scaling="both")


# Files


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "csv.zip"])
def test_files_of_many_programs(
    table: pd.DataFrame, csv_path: Path, tmp_path: Path, separator: str, encoding: str, suffix: str
) -> None:
    """The same federation, whatever separates cells, with a byte order mark or not, compressed or not."""
    options: dict[str, Any] = {"target": "ill", "client": "site"}
    content = table.to_csv(index=False, sep=separator).encode(encoding)
    path = tmp_path / f"other.{suffix}"
    if suffix.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other.csv", content)
    else:
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert load("csv", path=path, **options).fingerprint() == load("csv", path=csv_path, **options).fingerprint()


def test_decimal_commas(tmp_path: Path) -> None:
    """As spreadsheets write them where the comma is the decimal mark; text with commas stays text."""
    path = tmp_path / "t.csv"
    path.write_text("x;y;z\n1,5;a,b;-2,25e1\n;c;3\n-2;a,b;0,5\n")
    frame = read_file(path)
    np.testing.assert_array_equal(frame["x"], [1.5, np.nan, -2])
    np.testing.assert_array_equal(frame["z"], [-22.5, 3, 0.5])
    assert frame["y"].tolist() == ["a,b", "c", "a,b"]


@pytest.mark.parametrize("mark", ["?", ".", "NA", "n/a", "NULL", "None"])
def test_spellings_of_empty_cells(tmp_path: Path, mark: str) -> None:
    """Among numbers, with points or with decimal commas, and in a workbook."""
    path, sheet = tmp_path / "t.csv", tmp_path / "t.xlsx"
    path.write_text(f"x;y\n1,5;2.5\n{mark};{mark}\n2,25;3\n")
    pd.DataFrame({"x": [1.5, mark, 2.25], "y": [2.5, mark, 3]}).to_excel(sheet, index=False)
    for frame in (read_file(path), read_file(sheet)):
        np.testing.assert_array_equal(frame["x"].to_numpy(float), [1.5, np.nan, 2.25])
        np.testing.assert_array_equal(frame["y"].to_numpy(float), [2.5, np.nan, 3])


def test_none_among_words_is_a_level(tmp_path: Path) -> None:
    """As a class, `None` is often the most frequent one."""
    path, sheet = tmp_path / "t.csv", tmp_path / "t.xlsx"
    path.write_text("harm\nNone\nsevere\nNone\n?\n")
    pd.DataFrame({"harm": ["None", "severe", "None", "?"]}).to_excel(sheet, index=False)
    for frame in (read_file(path), read_file(sheet)):
        assert frame["harm"].dropna().tolist() == ["None", "severe", "None"]


def test_a_folder_of_compressed_files(table: pd.DataFrame, csv_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for site, own in table.groupby("site"):
        own.drop(columns="site").to_csv(folder / f"{site}.csv.gz", index=False)
    several = load("csv", path=folder, target="ill")
    assert several.fingerprint() == load("csv", path=csv_path, target="ill", client="site").fingerprint()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        pytest.param(b"", ["is empty"], id="empty"),
        pytest.param(b"\xef\xbb\xbf\n", ["is empty"], id="nothing but a mark"),
        pytest.param(b"x,site,ill\n", ["no rows"], id="header only"),
        pytest.param(b"x,y,x,site,ill\n1,2,3,a,0\n", ["two columns 'x'"], id="twice"),
        pytest.param(b"x;y;x;site;ill\n1;2;3;a;0\n", ["two columns 'x'"], id="twice with semicolons"),
        pytest.param("größe,site,ill\n1,a,0\n".encode("latin-1"), ["not UTF-8"], id="another encoding"),
        pytest.param("x,site,ill\n1,a,0\n".encode("utf-16"), ["not UTF-8"], id="utf-16"),
        pytest.param(b"x,site,ill\n1,2,a,0\n3,4,a,1\n", ["more cells than its header"], id="long rows"),
        pytest.param(b"x,site,ill\n1,a,0\n3,4,a,1\n", ["line 3"], id="one long row"),
        pytest.param(b'x,site,ill\n"1,5",a,0\n"2,5",a,1\n', ["column 'x'", "decimal commas"], id="decimal commas"),
        pytest.param(b"x,site,ill\n1,a,0\n2,a,1\nfew,a,1\n", ["column 'x'", "row 3"], id="text among numbers"),
        pytest.param(b"x,site,ill\n1,a,0\n2,a,1\ninf,a,1\n", ["column 'x'", "row 3"], id="infinite"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    told = refusal(path=path, target="ill", client="site")
    assert all(part in told for part in ["bad.csv", *parts]), told


def test_a_file_that_is_not_compressed_after_all(tmp_path: Path) -> None:
    for suffix in ("gz", "bz2", "xz", "zip"):
        (tmp_path / f"bad.csv.{suffix}").write_bytes(b"x,site,ill\n1,a,0\n")
        assert "cannot be unpacked" in refusal(path=tmp_path / f"bad.csv.{suffix}", target="ill", client="site")


def test_a_folder_names_the_file_of_a_bad_row(table: pd.DataFrame, tmp_path: Path) -> None:
    """The third row of b.csv, not the row of all files together."""
    table.to_csv(tmp_path / "a.csv", index=False)
    table["dose"] = table["dose"].astype(object)
    table.loc[2, "dose"] = "much"
    table.to_csv(tmp_path / "b.csv", index=False)
    told = refusal(path=tmp_path, target="ill")
    assert f"row 3 of '{tmp_path / 'b.csv'}'" in told
    assert "much" not in told


# What is refused


def test_csv_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no file" in refusal(path=tmp_path / "no.csv", target="ill", client="site")


@pytest.mark.parametrize(("target", "client"), [("sick", "site"), ("ill", "hospital")])
def test_csv_without_the_column(csv_path: Path, target: str, client: str) -> None:
    got = refusal(path=csv_path, target=target, client=client)
    assert "has no column" in got
    assert "age, dose, site, ill" in got


def test_csv_with_a_missing_value(csv_path: Path, table: pd.DataFrame) -> None:
    """Row 33 of the file is the fourth of site1: row 3 of the client."""
    table.loc[33, "dose"] = np.nan
    table.to_csv(csv_path, index=False)
    got = refusal(path=csv_path, target="ill", client="site")
    assert "client 'site1'" in got
    assert "row 3" in got


def test_csv_needs_two_classes_and_no_gap(csv_path: Path, table: pd.DataFrame) -> None:
    table.assign(ill="no").to_csv(csv_path, index=False)
    assert "at least two classes" in refusal(path=csv_path, target="ill", client="site")
    table.loc[3, "ill"] = None
    table.to_csv(csv_path, index=False)
    assert "a class in every row" in refusal(path=csv_path, target="ill", client="site")
    table.loc[3, ["ill", "site"]] = ["no", None]
    table.to_csv(csv_path, index=False)
    assert "names the client is empty" in refusal(path=csv_path, target="ill", client="site")


@pytest.mark.parametrize(
    "content", ["", "site,ill\na,0\na,1\na,0\n", '"x\n1,2'], ids=["empty", "no features", "broken"]
)
def test_csv_that_is_no_table(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    assert "bad.csv" in refusal(path=path, target="ill", client="site")
