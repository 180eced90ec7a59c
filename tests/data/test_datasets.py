"""Federations by name: what they hold, and what is said about a bad option."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from data.views import classes, counts
from fedprior.data.datasets import DATASETS, load, option_names
from fedprior.data.federation import SPLITS, Federation
from fedprior.data.partition import PARTITIONS
from fedprior.errors import FedpriorError
from fedprior.models import build
from fedprior.training import Train

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


# What they hold


def test_synthetic() -> None:
    federation = load("synthetic", **SMALL["synthetic"])
    assert federation.clients == ("client-1", "client-2", "client-3")
    assert federation.shape == (30,)
    assert classes(federation) == 2
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
    assert classes(federation) == 10
    assert [v.item() for v in federation.train.x.aminmax()] == [0, 1]
    total = sum(counts(federation, s).sum(0) for s in SPLITS)
    assert np.asarray(total).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_noise() -> None:
    """Any shape and number of classes; 120 labels go round 8 classes 15 times, and inputs are standard normal."""
    federation = load("noise", shape=[2, 5, 4], classes=8, samples=120, partition="iid", clients=3)
    assert (federation.shape, classes(federation), examples(federation)) == ((2, 5, 4), 8, 120)
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
    assert np.asarray(sum(counts(federation, s).sum(0) for s in SPLITS)).tolist() == [212, 357]
    for c in range(3):
        torch.testing.assert_close(federation.train.client(c)[0].mean(0), torch.zeros(30), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_the_recipe_fits_the_data(name: str) -> None:
    """The recommended model takes the examples, and the recommended training is valid."""
    federation = load(name, **SMALL[name])
    options = dict(federation.recipe["model"])
    module = build(options.pop("name"), options, federation.shape, classes(federation))
    assert module(federation.train.x[:2]).shape in ((2, classes(federation)), (2, 1))
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


@pytest.mark.parametrize("partition", [name for name in PARTITIONS if name not in ("superclass", "domains")])
def test_every_partition_by_name(partition: str) -> None:
    """With its default options; the blocks of slicing need a number of clients that divides, and ten labels are few."""
    clients = 4 if partition == "slicing" else 5
    few = {"min_users": 1} if partition == "merged" else {}
    federation = load("digits", clients=clients, partition=partition, **few)
    assert len(federation) == clients
    if partition not in ("major", "mixture", "lognormal", "column"):  # those that may leave examples out
        assert examples(federation) == 1797


def test_the_partition_matters() -> None:
    """Shards of digits: few labels per client; IID: all ten."""
    shards = counts(load("digits", clients=5, partition="shards", shards=1))
    assert ((shards > 0).sum(1) <= 4).all()
    assert (counts(load("digits", clients=5, partition="iid")) > 0).all()


def test_partition_by_column() -> None:
    federation = load("digits", partition="column", column="label")
    assert federation.clients == tuple("0123456789")
    assert ((counts(federation) > 0).sum(1) == 1).all()


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
