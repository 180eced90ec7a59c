"""Whatever is given to the functions of the library: a FedpriorError of one sentence."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fedprior
from fedprior.data import store
from fedprior.data.datasets import load
from fedprior.data.federation import from_arrays
from fedprior.data.store import layout
from fedprior.errors import LONGEST, SHOWN, FedpriorError, shown
from fedprior.experiment import Settings
from fedprior.methods import METHODS, build
from fedprior.models import MODELS
from fedprior.models import build as build_model
from fedprior.training import Train
from hostile.cases import (
    CHOICES,
    DRAWN,
    NO_NAME,
    NO_NUMBER,
    NUMBERS,
    OF_METHODS,
    OF_PARTITIONS,
    OF_WRAPPERS,
    one_sentence,
)
from support import federation

SETTINGS = [name for name in (*NUMBERS, *CHOICES) if name in Settings.model_fields]
ODD = NO_NUMBER | st.none() | st.binary(max_size=5) | st.sets(st.integers(), max_size=2) | st.complex_numbers()
NO_OBJECT = ODD | st.integers(-5, 5) | st.just(object()) | st.just(len)


@DRAWN
@example("rounds", b"1")
@given(st.sampled_from(SETTINGS), ODD.filter(lambda value: value != "auto"))
def test_settings(name: str, value: Any) -> None:
    with one_sentence():
        fedprior.run(build("fedavg"), federation(), **{name: value})


@DRAWN
@given(st.sampled_from(["method", "federation", "model", "out", "reference"]), NO_OBJECT)
def test_arguments_of_a_run(name: str, value: Any) -> None:
    right: dict[str, Any] = {"method": build("fedavg"), "federation": federation()}
    if (value is None and name in ("model", "out", "reference")) or (name, value) == ("model", {}):
        value = [None]  # nothing said, which is allowed
    if name == "out" and isinstance(value, str):
        value = [value]  # most text is a path
    with one_sentence():
        fedprior.run(**(right | {name: value}), rounds=1)


@DRAWN
@given(NO_OBJECT | st.lists(NO_OBJECT, min_size=1, max_size=3))
def test_methods_to_compare(value: Any) -> None:
    with one_sentence():
        fedprior.compare(value, federation(), rounds=1, baselines=False)


@DRAWN
@given(st.sampled_from([option.removeprefix("train.") for option in NUMBERS if option.startswith("train.")]), NO_NUMBER)
def test_training(name: str, value: Any) -> None:
    with one_sentence():
        Train(**{name: value})


@DRAWN
@given(st.sampled_from(OF_METHODS), NO_NUMBER)
def test_options_of_methods(where: tuple[str, str], value: Any) -> None:
    with one_sentence():
        METHODS[where[0]](**{where[1]: value})


@DRAWN
@given(st.sampled_from(OF_WRAPPERS), NO_NUMBER)
def test_options_of_wrappers(where: tuple[str, str], value: Any) -> None:
    with one_sentence():
        build(f"fedavg+{where[0]}", {where[0]: {where[1]: value}})


@DRAWN
@given(st.sampled_from(OF_PARTITIONS), NO_NUMBER)
def test_options_of_partitions(where: tuple[str, str], value: Any) -> None:
    with one_sentence():
        load("digits", partition=where[0], **{where[1]: value})


@DRAWN
@given(st.sampled_from(["samples", "features", "clients", "noise_variance", "ratio", "majority", "seed", "keep"]), ODD)
def test_options_of_data(name: str, value: Any) -> None:
    with one_sentence():
        load("synthetic", **{name: value})


@DRAWN
@given(NO_NAME | ODD.filter(lambda value: not isinstance(value, str)))
def test_names(value: Any) -> None:
    for call in (
        lambda: load(value),
        lambda: load("noise", partition=value),
        lambda: build(value),
        lambda: build("fedavg+" + str(value) if isinstance(value, str) else value),
        lambda: build_model(value, {}, (4,), 2),
        lambda: store.fetch(value),
        lambda: store.import_files(value, []),
    ):
        with one_sentence():
            call()


@DRAWN
@given(st.sampled_from(sorted(MODELS)), NO_NUMBER, st.data())
def test_options_of_models(name: str, value: Any, data: st.DataObject) -> None:
    hints = inspect.signature(MODELS[name]).parameters
    numbers = [k for k, p in hints.items() if "Int" in str(p.annotation) or "float" in str(p.annotation)]
    if numbers and value != []:
        with one_sentence():
            build_model(name, {data.draw(st.sampled_from(numbers)): value}, (3, 64, 64), 2)


# Arrays

X, Y = np.zeros((6, 2)), np.arange(6) % 2
OBJECTS = {
    "no dictionary": 5,
    "a list": [(X, Y)],
    "text": "abc",
    "nothing": {},
    "a number for a pair": {"a": 5},
    "three arrays": {"a": (X, Y, Y)},
    "one array": {"a": (X,)},
    "ragged": {"a": ([[1, 2], [3]], [0, 1])},
    "words": {"a": ([["x"], ["y"]], [0, 1])},
    "objects": {"a": (np.array([[object()], [None]]), [0, 1])},
    "complex": {"a": (X + 1j, Y)},
    "one number": {"a": (1.0, 0)},
    "a row": {"a": (np.zeros(6), Y)},
    "no rows": {"a": (X[:0], Y[:0])},
    "no columns": {"a": (X[:, :0], Y)},
    "one example": {"a": (X[:1], Y[:1])},
    "nan": {"a": (X * np.nan, Y)},
    "infinite": {"a": (X + np.inf, Y)},
    "negative labels": {"a": (X, Y - 1)},
    "labels of 10**12": {"a": (X, Y * 10**12)},
    "labels of half": {"a": (X, Y / 2)},
    "labels of nan": {"a": (X, Y * np.nan)},
    "labels in rows": {"a": (X, X)},
    "other shapes": {"a": (X, Y), "b": (X[:, :1], Y)},
    "no name": {"": (X, Y)},
    "a name that is none": {None: (X, Y)},
    "the same name": {"1": (X, Y), 1: (X, Y)},
    "dates": {"a": (X.astype("datetime64[s]"), Y)},
    "numbers beyond float32": {"a": (X + 1e300, Y)},
}


@pytest.mark.parametrize("clients", OBJECTS.values(), ids=OBJECTS)
def test_arrays(clients: Any) -> None:
    with one_sentence():
        from_arrays(clients)


@DRAWN
@given(
    st.sampled_from(["seed", "validation", "test", "tests", "split", "keep", "classes", "target", "scaling", "name"]),
    NO_OBJECT,
)
def test_options_of_arrays(name: str, value: Any) -> None:
    optional = value is None and name in ("classes", "target", "tests")
    allowed = (name in ("seed", "classes") and type(value) is int and 0 <= value < 2**63) or (
        name in ("validation", "keep") and type(value) is int and value in (0, 1)
    )
    if optional or (allowed and (name, value) not in (("validation", 1), ("keep", 0), ("classes", 0), ("classes", 1))):
        return
    if name == "name" and isinstance(value, str):
        return
    with one_sentence():
        from_arrays({"a": (X, Y), "b": (X, Y)}, **{name: value})


# What is stored

MANIFESTS: dict[str, Any] = {
    "a strange type": {"dtype": "<garbage>"},
    "an object type": {"dtype": "|O"},
    "a type that is a list": {"dtype": [["a", "b"]]},
    "a type that is a number": {"dtype": 5},
    "a structure": {"dtype": "i4,f8"},
    "a negative shape": {"shape": [-1]},
    "a shape of words": {"shape": ["x"]},
    "a shape of nothing": {"shape": None},
    "an endless shape": {"shape": [2**62, 2**62]},
    "a checksum that is none": {"sha256": 5},
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_manifests(change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path))
    good = {"dtype": "|u1", "shape": [3], "sha256": "0" * 64}
    label = good | {"dtype": "<i8"} | change
    document = {"name": "mnist", "title": "", "classes": 10, "examples": {"all": 3}, "features": [], "source": ""}
    document |= {"format": "", "date": "", "licence": "", "citation": "", "note": "", "bytes": 0, "version": 1}
    folder = layout.folder("mnist")
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(document | {"arrays": {"x": good, "y": label}}))
    for name in ("x", "y"):
        np.save(folder / f"{name}.npy", np.zeros(3))
    assert store.status("mnist").state == "damaged"
    with one_sentence():
        store.load("mnist")


# Messages


class Rude:
    def __repr__(self) -> str:
        raise ValueError


def test_values_are_shown_in_one_short_line() -> None:
    values: list[Any] = ["x" * 10**6, 10**5000, "\x1b[2J\n", [[]] * 10**5, Rude(), float("nan")]
    for value in values:
        assert len(shown(value)) <= SHOWN
        assert shown(value).isprintable()
    assert shown("a\nb") == "'a\\nb'"
    assert shown(10**5000) == "a number of 16610 bits"
    assert shown(Rude()) == "a Rude"
    assert str(FedpriorError("a\0b")) == "a\\x00b"
    assert len(str(FedpriorError("x" * 10**5))) == LONGEST
