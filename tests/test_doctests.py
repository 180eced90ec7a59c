"""The examples in docstrings run and show what they say; every public function has one, or says what it takes."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module

import pytest

import fedprior
from fedprior.protocol import Method

MODULES = (
    *("fedprior.experiment", "fedprior.training", "fedprior.data.datasets", "fedprior.data.frames"),
    *("fedprior.data.federation", "fedprior.metrics.gain", "fedprior.estimators", "fedprior.data.partition.view"),
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_show_what_they_say(name: str) -> None:
    failed, _ = doctest.testmod(import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert failed == 0


def test_there_are_examples() -> None:
    found = [e for name in MODULES for t in doctest.DocTestFinder().find(import_module(name)) for e in t.examples]
    assert len(found) >= 15


@pytest.mark.parametrize("name", [name for name in fedprior.__all__ if inspect.isfunction(getattr(fedprior, name))])
def test_public_functions_say_what_they_take_return_and_refuse(name: str) -> None:
    function = getattr(fedprior, name)
    text = inspect.getdoc(function) or ""
    missing = [p for p in inspect.signature(function).parameters if f"    {p}: " not in text]
    assert missing == []
    assert "Returns:" in text
    assert "Raises:" in text


def test_every_function_of_the_contract_is_described() -> None:
    functions = [f for name, f in inspect.getmembers(Method, inspect.isfunction) if not name.startswith("_")]
    assert [f.__name__ for f in functions if not inspect.getdoc(f)] == []
