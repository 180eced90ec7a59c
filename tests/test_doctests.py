"""The examples in docstrings run and show what they say; every public function has one, or says what it takes."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedprior
from fedprior.data.partition import PARTITIONS
from fedprior.data.registry import DATASETS
from fedprior.protocol import Method
from website.reference import PYTHON

MODULES = (
    *("fedprior.experiment", "fedprior.experiment.repeated", "fedprior.training", "fedprior.estimators"),
    *("fedprior.data.datasets", "fedprior.data.frames", "fedprior.data.federation"),
    *("fedprior.data.registry", "fedprior.data.partition.view", "fedprior.experiment.joining"),
)


@pytest.fixture
def _registries() -> Iterator[None]:
    """What an example registers is forgotten after it."""
    registries: list[dict[str, Any]] = [DATASETS, PARTITIONS]
    kept = [(known, dict(known)) for known in registries]
    yield
    for known, before in kept:
        known.clear()
        known.update(before)


@pytest.mark.usefixtures("_registries")
@pytest.mark.parametrize("name", MODULES)
def test_examples_show_what_they_say(name: str) -> None:
    failed, _ = doctest.testmod(import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert failed == 0


def test_every_module_with_examples_is_tested() -> None:
    sources = Path(fedprior.__file__).parent
    found = [path for path in sources.rglob("*.py") if re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), re.M)]
    names = [".".join(("fedprior", *path.relative_to(sources).with_suffix("").parts)) for path in found]
    assert {name.removesuffix(".__init__") for name in names} == set(MODULES)


@pytest.mark.parametrize("estimator", [fedprior.FederatedClassifier])
def test_the_estimators_describe_every_argument(estimator: type) -> None:
    text = inspect.getdoc(estimator) or ""
    assert [name for name in inspect.signature(estimator).parameters if f"    {name}: " not in text] == []


@pytest.mark.parametrize("name", [name for name in fedprior.__all__ if inspect.isfunction(getattr(fedprior, name))])
def test_public_functions_say_what_they_take_return_and_refuse(name: str) -> None:
    function = getattr(fedprior, name)
    text = inspect.getdoc(function) or ""
    missing = [p for p in inspect.signature(function).parameters if f"    {p}: " not in text]
    assert missing == []
    assert "Returns:" in text
    assert "Raises:" in text


HANDED_OUT = (
    *(fedprior.Result, fedprior.Comparison, fedprior.Assessment, fedprior.PersonalModel),
    *(fedprior.FederatedClassifier, fedprior.FederatedRegressor),
)
"""What users hold in their hands: each of its methods has a section for arguments and one for what it returns."""


@pytest.mark.parametrize("owner", HANDED_OUT, ids=lambda owner: owner.__name__)
def test_methods_of_results_say_what_they_take_and_return(owner: type) -> None:
    silent = []
    for name, function in inspect.getmembers(owner, inspect.isfunction):
        if name.startswith("_") or not function.__module__.startswith("fedprior"):
            continue
        text, signature = inspect.getdoc(function) or "", inspect.signature(function)
        taken = [p for p in signature.parameters if p != "self"]
        silent += [f"{name}: {p}" for p in taken if f"    {p}: " not in text]
        silent += [name] * (bool(taken) and signature.return_annotation != "None" and "Returns:" not in text)
    assert silent == []


def test_every_function_of_the_contract_is_described() -> None:
    functions = [f for name, f in inspect.getmembers(Method, inspect.isfunction) if not name.startswith("_")]
    assert [f.__name__ for f in functions if not inspect.getdoc(f)] == []


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions that the Python reference shows; those that override another are described there."""
    for name in (name for _, names in PYTHON.values() for name in names):
        thing: Any = pydoc.locate(name)
        own = vars(thing).items() if isinstance(thing, ModuleType) else [("", thing)]
        for key, member in own:
            if key.startswith("_") or (key and getattr(member, "__module__", "") != name):
                continue
            if inspect.isfunction(member):
                yield f"{name}.{key}".rstrip("."), member
            elif inspect.isclass(member):
                inherited = {key for base in member.__mro__[1:] for key in vars(base)}
                for attribute, value in vars(member).items():
                    function = getattr(value, "__func__", value)
                    if inspect.isfunction(function) and attribute not in inherited and not attribute.startswith("_"):
                        yield f"{name}.{key}.{attribute}", function


def test_every_argument_in_the_reference_is_described() -> None:
    """By its name in the docstring."""
    functions = dict(public())
    assert len(functions) > 120
    silent = [
        f"{name}: {argument}"
        for name, function in functions.items()
        for argument in inspect.signature(function).parameters
        if argument not in ("self", "cls") and not re.search(rf"\b{argument}\b", inspect.getdoc(function) or "")
    ]
    assert silent == []


def test_what_is_returned_is_a_sentence_without_a_type() -> None:
    """The reference would show words before a colon in code, as the type; that stands in the signature."""
    returned = {name: re.search(r"Returns:\n(.*)", inspect.getdoc(function) or "") for name, function in public()}
    assert [name for name, line in returned.items() if line and ": " in re.sub("`.*?`", "", line[1])] == []
