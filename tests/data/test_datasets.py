"""Federations by name: what they hold, and what is said about a bad option."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedprior.data.datasets import DATASETS, load, option_names
from fedprior.data.federation import SPLITS, Federation
from fedprior.data.partition import PARTITIONERS
from fedprior.errors import FedpriorError
from fedprior.local import Train
from fedprior.models import build

SMALL: dict[str, dict[str, Any]] = {
    "synthetic": {"skew": "feature", "clients": 3, "samples": 40},
    "digits": {"clients": 4},
    "breast_cancer": {"clients": 3},
    "noise": {"clients": 3},
}


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        load(name, **options)
    text = str(error.value)
    assert "\n" not in text
    assert "ArgsKwargs" not in text
    return text


def examples(federation: Federation) -> int:
    return sum(sum(federation.split(s).size) for s in SPLITS)


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


# What they hold


def test_synthetic() -> None:
    federation = load("synthetic", **SMALL["synthetic"])
    assert federation.clients == ("client-1", "client-2", "client-3")
    assert federation.shape == (30,)
    assert federation.classes == 2
    assert [federation.split(s).size for s in SPLITS] == [(28,) * 3, (4,) * 3, (8,) * 3]
    torch.testing.assert_close(federation.train.client(1)[0].mean(0), torch.zeros(30), rtol=0, atol=1e-5)


def test_names_of_clients_sort_in_their_order() -> None:
    """Zero-padded."""
    for federation in (load("synthetic", skew="feature", clients=10, samples=20), load("digits", clients=11)):
        assert list(federation.clients) == sorted(federation.clients)
        assert len(set(federation.clients)) == len(federation.clients)


def test_digits() -> None:
    """1,797 images of 8×8 pixels between 0 and 1; every one is at exactly one client."""
    federation = load("digits", clients=4)
    assert examples(federation) == 1797
    assert federation.shape == (1, 8, 8)
    assert federation.classes == 10
    assert [v.item() for v in federation.train.x.aminmax()] == [0, 1]
    total = sum(federation.label_counts(s).sum(0) for s in SPLITS)
    assert np.asarray(total).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_noise() -> None:
    """Any shape and number of classes; 120 labels go round 8 classes 15 times, and inputs are standard normal."""
    federation = load("noise", shape=[2, 5, 4], classes=8, samples=120, partition="iid", clients=3)
    assert (federation.shape, federation.classes, examples(federation)) == ((2, 5, 4), 8, 120)
    labels = torch.cat([federation.split(s).y for s in SPLITS])
    assert torch.bincount(labels).tolist() == [15] * 8
    x = torch.cat([federation.split(s).x for s in SPLITS])
    assert abs(float(x.mean())) < 4 / math.sqrt(x.numel())
    assert abs(float(x.std()) - 1) < 4 / math.sqrt(2 * x.numel())


@pytest.mark.parametrize("options", [{"shape": []}, {"shape": [0]}, {"classes": 1}, {"samples": 0}])
def test_noise_of_nothing_is_refused(options: dict[str, Any]) -> None:
    assert next(iter(options)) in refusal("noise", **options)


def test_breast_cancer() -> None:
    """569 tumours, 212 of them malignant (label 0), scaled site by site."""
    federation = load("breast_cancer", clients=3)
    assert federation.shape == (30,)
    assert np.asarray(sum(federation.label_counts(s).sum(0) for s in SPLITS)).tolist() == [212, 357]
    for c in range(3):
        torch.testing.assert_close(federation.train.client(c)[0].mean(0), torch.zeros(30), rtol=0, atol=1e-5)


def test_csv(csv_path: Path, table: pd.DataFrame) -> None:
    """Sites in natural order, classes in sorted order, columns in the file's order, scaled by each site's training."""
    federation = load("csv", path=str(csv_path), target="ill", client="site", validation=0.2, test=0.2)
    assert federation.clients == ("site1", "site2", "site10")
    assert federation.classes == 2
    assert [federation.split(s).size for s in SPLITS] == [(9, 12, 6), (3, 4, 2), (3, 4, 2)]
    for c, site in enumerate(federation.clients):
        own = table[table["site"] == site]
        assert sum(federation.label_counts(s)[c, 1] for s in SPLITS) == (own["ill"] == "yes").sum()
        x = torch.cat([federation.split(s).client(c)[0] for s in SPLITS]).double()
        ages = np.sort(own["age"].to_numpy())
        got = np.sort(x[:, 0].numpy())
        np.testing.assert_allclose(np.diff(got) * ages.std() / got.std(), np.diff(ages), atol=1e-5)
        torch.testing.assert_close(federation.train.client(c)[0].mean(0), torch.zeros(2), rtol=0, atol=1e-5)


def test_a_csv_a_site(csv_path: Path, table: pd.DataFrame, tmp_path: Path) -> None:
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
    assert "no file that ends in .csv" in refusal("csv", path=tmp_path, target="ill")
    table.to_csv(tmp_path / "a.csv", index=False)
    table.drop(columns="dose").to_csv(tmp_path / "b.csv", index=False)
    told = refusal("csv", path=tmp_path, target="ill")
    assert all(word in told for word in ("a.csv", "b.csv", "column 'dose'"))


def test_one_csv_needs_a_column_with_the_site(csv_path: Path) -> None:
    assert "needs the option 'client'" in refusal("csv", path=csv_path, target="ill")


def test_csv_with_missing_values_filled_in(csv_path: Path, table: pd.DataFrame) -> None:
    """The median of the site's training doses, scaled as they are."""
    table["dose"] = table["dose"].astype(float)
    table.loc[table.index[::7], "dose"] = np.nan
    table.to_csv(csv_path, index=False)
    federation = load("csv", path=csv_path, target="ill", client="site", missing="median")
    scaler = federation.scaler("site2")
    assert scaler is not None
    assert scaler.fill is not None
    filled = float((scaler.fill[1] - scaler.mean[1]) / scaler.std[1])
    doses = torch.cat([federation.split(s).client(federation.clients.index("site2"))[0][:, 1] for s in SPLITS])
    assert int((doses - filled).abs().lt(1e-6).sum()) >= table[table["site"] == "site2"]["dose"].isna().sum()
    assert bool(torch.isfinite(federation.train.x).all())


@pytest.mark.parametrize("name", SMALL)
def test_the_recipe_fits_the_data(name: str) -> None:
    """The recommended model takes the examples, and the recommended training is valid."""
    federation = load(name, **SMALL[name])
    options = dict(federation.recipe["model"])
    module = build(options.pop("name"), options, federation.shape, federation.classes)
    assert module(federation.train.x[:2]).shape in ((2, federation.classes), (2, 1))
    Train(**federation.recipe["train"])


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_decides(name: str) -> None:
    a, b, c = (load(name, seed=seed, **SMALL[name]).fingerprint() for seed in (0, 0, 1))
    assert a == b
    assert a != c


def test_the_seed_decides_who_gets_what() -> None:
    """Not only the three splits: every client's labels over all splits differ from seed to seed."""
    parts = [sum(load("digits", clients=4, seed=seed).label_counts(s) for s in SPLITS) for seed in (0, 1)]
    assert (np.asarray(parts[0]) != np.asarray(parts[1])).any(1).all()


def test_a_federation_remembers_its_name_and_options() -> None:
    federation = load("digits", clients=4, partition="shards", shards=3)
    assert federation.name == "digits"
    assert federation.options == {"clients": 4, "partition": "shards", "shards": 3}
    assert load(federation.name, **federation.options).fingerprint() == federation.fingerprint()


@pytest.mark.parametrize("partition", [name for name in PARTITIONERS if name != "superclass"])
def test_every_partition_by_name(partition: str) -> None:
    """With its default options; the blocks of slicing need a number of clients that divides."""
    clients = 4 if partition == "slicing" else 5
    federation = load("digits", clients=clients, partition=partition)
    assert len(federation) == clients
    if partition not in ("major", "mixture", "lognormal"):  # those that may leave examples out
        assert examples(federation) == 1797


def test_the_partition_matters() -> None:
    """Shards of digits: few labels per client; IID: all ten."""
    shards = load("digits", clients=5, partition="shards", shards=1).label_counts()
    assert ((shards > 0).sum(1) <= 4).all()
    assert (load("digits", clients=5, partition="iid").label_counts() > 0).all()


def test_partition_by_column() -> None:
    federation = load("digits", partition="column", column="label")
    assert federation.clients == tuple("0123456789")
    assert ((federation.label_counts() > 0).sum(1) == 1).all()


def test_split_sizes_are_options() -> None:
    for name, options in SMALL.items():
        federation = load(name, validation=0.0, test=0.5, **options)
        assert sum(federation.validation.size) == 0
        assert abs(sum(federation.test.size) - sum(federation.train.size)) <= len(federation)


def test_option_names_are_accepted_by_load() -> None:
    """What the command line offers exists, and differs with the partition."""
    assert {"skew", "clients", "samples", "validation", "test"} <= set(option_names("synthetic", {}))
    assert {"alpha", "cap", "partition", "validation"} <= set(option_names("digits", {}))
    assert "alpha" not in option_names("digits", {"partition": "shards"})
    assert {"shards"} <= set(option_names("digits", {"partition": "shards"}))
    assert {"path", "target", "client", "column"} <= set(option_names("csv", {}))


# What is refused


def test_an_unknown_dataset() -> None:
    assert refusal("digts") == "unknown dataset 'digts': did you mean 'digits'?"
    assert refusal("syntetic") == "unknown dataset 'syntetic': did you mean 'synthetic'?"
    assert all(name in refusal("qqq") for name in DATASETS)


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("digits", {"alhpa": 1.0}, ["unknown option 'alhpa'", "did you mean 'alpha'?"]),
        ("digits", {"client": 3}, ["unknown option 'client'", "did you mean 'clients'?"]),
        ("digits", {"tset": 0.2}, ["unknown option 'tset'", "did you mean 'test'?"]),
        ("synthetic", {"skew": "feature", "sample": 3}, ["unknown option 'sample'", "did you mean 'samples'?"]),
        ("synthetic", {"skew": "feture"}, ["skew = 'feture'", "'feature', 'quantity' or 'label'"]),
        ("synthetic", {"skew": "feature", "samples": 1}, ["samples = 1", "greater than or equal to 2"]),
        ("digits", {"alpha": 0}, ["alpha = 0", "greater than 0"]),
        ("digits", {"clients": 0}, ["clients = 0"]),
        ("digits", {"clients": "many"}, ["clients = 'many'"]),
        ("digits", {"clients": 1798, "partition": "iid"}, ["1798 clients", "fewer clients"]),
        ("digits", {"clients": 500}, ["500 clients", "fewer clients"]),
        ("digits", {"partition": "shard"}, ["unknown partition 'shard'", "did you mean 'shards'?"]),
        ("digits", {"partition": "shards", "alpha": 1.0}, ["unknown option 'alpha'", "partition 'shards'"]),
        ("digits", {"shards": 2}, ["unknown option 'shards'", "partition 'dirichlet'"]),
        ("digits", {"partition": "column", "column": "lable"}, ["unknown column 'lable'", "did you mean 'label'?"]),
        ("digits", {"partition": "column", "min_size": 175}, ["8 (174)", "fewer than 175"]),
        ("digits", {"test": 0.0}, ["test = 0.0"]),
        ("csv", {}, ["needs the option 'path'"]),
    ],
)
def test_a_bad_option_is_told_in_one_sentence(name: str, options: dict[str, Any], parts: list[str]) -> None:
    got = refusal(name, **options)
    assert all(part in got for part in parts), got


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"test": "lots"}, "test = 'lots'"),
        ({"validation": None}, "validation = None"),
        ({"partition": "column", "min_size": "lots"}, "min_size = 'lots'"),
        ({"partition": 3}, "unknown partition '3'"),
    ],
)
def test_options_of_the_wrong_type(options: dict[str, Any], part: str) -> None:
    assert part in refusal("digits", **options)


def test_csv_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no file" in refusal("csv", path=tmp_path / "no.csv", target="ill", client="site")


@pytest.mark.parametrize(("target", "client"), [("sick", "site"), ("ill", "hospital")])
def test_csv_without_the_column(csv_path: Path, target: str, client: str) -> None:
    got = refusal("csv", path=csv_path, target=target, client=client)
    assert "has no column" in got
    assert "age, dose, site, ill" in got


def test_csv_with_text_in_a_feature(csv_path: Path, table: pd.DataFrame) -> None:
    table.assign(sex="f").to_csv(csv_path, index=False)
    assert "column 'sex'" in refusal("csv", path=csv_path, target="ill", client="site")


def test_csv_with_a_missing_value(csv_path: Path, table: pd.DataFrame) -> None:
    """Row 33 of the file is the fourth of site1: row 3 of the client."""
    table.loc[33, "dose"] = np.nan
    table.to_csv(csv_path, index=False)
    got = refusal("csv", path=csv_path, target="ill", client="site")
    assert "client 'site1'" in got
    assert "row 3" in got


def test_csv_needs_two_classes_and_no_gap(csv_path: Path, table: pd.DataFrame) -> None:
    table.assign(ill="no").to_csv(csv_path, index=False)
    assert "at least two classes" in refusal("csv", path=csv_path, target="ill", client="site")
    table.loc[3, "ill"] = None
    table.to_csv(csv_path, index=False)
    assert "a class in every row" in refusal("csv", path=csv_path, target="ill", client="site")
    table.loc[3, ["ill", "site"]] = ["no", None]
    table.to_csv(csv_path, index=False)
    assert "names the client is empty" in refusal("csv", path=csv_path, target="ill", client="site")


@pytest.mark.parametrize(
    "content", ["", "site,ill\na,0\na,1\na,0\n", '"x\n1,2'], ids=["empty", "no features", "broken"]
)
def test_csv_that_is_no_table(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    assert "bad.csv" in refusal("csv", path=path, target="ill", client="site")
