"""Inputs that nobody should give, drawn at random, and what must come of each: one sentence, and nothing else.

There are 25 of every kind, the same ones every time. `EXPLORE=24 pytest tests/hostile` draws 600 others.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedprior.cli.main import main
from fedprior.data.partition import PARTITIONS
from fedprior.errors import LONGEST, FedpriorError
from fedprior.methods import METHODS
from fedprior.options import names
from fedprior.training import Train
from fedprior.wrappers import WRAPPERS

DRAWN = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
BASE = {
    "method": {"name": "fedavg"},
    "data": {"name": "noise", "samples": 60, "partition": "iid", "clients": 3},
    "train": {"epochs": 1},
    "rounds": 1,
    "workers": 1,
}
DEEP = 500


class Said(NamedTuple):
    """What the command leaves behind."""

    code: object
    out: str
    err: str


def command(*arguments: str) -> Said:
    """The command in this process."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with (
        mock.patch.object(sys, "argv", ["fedprior", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return Said(code, out.getvalue(), err.getvalue())


def refused(arguments: list[str], folder: Path) -> str:
    """Run a command that must fail in one sentence, exit with 2 and leave nothing in `folder`; gives the sentence."""
    before = sorted(folder.rglob("*"))
    said = command(*arguments)
    lines = said.err.splitlines()
    assert said.code == 2, (said, arguments)
    assert len(lines) == 1, said.err
    assert lines[0].startswith("error: "), said.err
    assert lines[0][-1] in ".?", said.err
    assert lines[0].isprintable(), said.err
    assert len(lines[0]) <= LONGEST + len("error: "), said.err
    assert sorted(folder.rglob("*")) == before, "something was left behind"
    return lines[0]


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """What is called within must refuse its input in a sentence."""
    with pytest.raises(FedpriorError) as error:
        yield
    text = str(error.value)
    assert text
    assert text.isprintable()
    assert text[-1] in ".?"
    assert len(text) <= LONGEST


# Values


def is_number(text: str) -> bool:
    """Whether pydantic may read text as a number, which is allowed."""
    with contextlib.suppress(ValueError):
        return float(text.replace("_", "")) is not None
    return False


WORDS = st.text(max_size=30).filter(lambda text: not is_number(text.strip()))
LONG = st.sampled_from(["x" * 5000, "\0", "a\0b", "\x1b[31m", "é" * 300, "\u2028", ""])
NOT_FINITE = st.sampled_from([float("nan"), float("inf"), -float("inf")])
HUGE = st.integers(20, 4000).map(lambda digits: 10**digits) | st.integers(20, 4000).map(lambda digits: -(10**digits))
NESTED = st.recursive(
    st.integers(-5, 5) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
).filter(lambda value: isinstance(value, list | dict))
DATES = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))

NO_NUMBER = WORDS | LONG | NOT_FINITE | HUGE | NESTED | DATES | st.booleans()
NO_NAME = LONG | NESTED | HUGE | st.text(max_size=30).filter(lambda text: not text.isidentifier())

# Where they stand

NUMBERS = [
    *("rounds", "seed", "eval_every", "min_answers", "checkpoint_every"),
    *("participation.rate", "participation.min_reporters", "participation.newcomers"),
    *("data.samples", "data.classes", "data.clients", "data.min_size", "data.seed", "data.validation", "data.keep"),
    *("data.examples", "data.test_cap"),
    *(f"train.{name}" for name in names(Train) if name != "optimizer"),
]
CHOICES = [
    *("workers", "chunk", "precision", "engine", "select", "participation.rule", "participation.joining"),
    *("data.name", "data.partition", "data.split", "data.test", "method.name", "model.name", "train.optimizer"),
]


def _numeric(thing: Any) -> list[str]:
    def has_number(hint: Any) -> bool:
        return hint in (int, float) or any(has_number(part) for part in get_args(hint))

    fields = getattr(thing, "__pydantic_fields__", {})
    return [name for name, field in fields.items() if has_number(field.annotation)]


OF_METHODS = [(name, option) for name, cls in sorted(METHODS.items()) for option in _numeric(cls)]
OF_WRAPPERS = [(name, option) for name, cls in sorted(WRAPPERS.items()) for option in _numeric(cls)]
OF_PARTITIONS = [(name, option) for name, cls in sorted(PARTITIONS.items()) for option in _numeric(cls)]


def toml(value: Any) -> str:
    """A value as TOML has it on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(toml(v) for v in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {toml(v)}' for k, v in value.items())}}}"
    return str(value)


def overrides(document: dict[str, Any], path: str = "") -> list[str]:
    """A document as arguments of the command."""
    found: list[str] = []
    for key, value in document.items():
        found += overrides(value, f"{path}{key}.") if isinstance(value, dict) else [f"{path}{key}={toml(value)}"]
    return found


@st.composite
def wrong(draw: st.DrawFn) -> list[str]:  # noqa: PLR0911 - one for each kind
    """Overrides of a run, the last of which cannot be right."""
    kind = draw(st.sampled_from(["number", "choice", "method", "wrapper", "partition", "section", "name", "syntax"]))
    value = toml(draw(NO_NUMBER))
    match kind:
        case "number":
            return [f"{draw(st.sampled_from(NUMBERS))}={value}"]
        case "choice":
            return [f"{draw(st.sampled_from(CHOICES))}={toml(draw(NO_NAME))}"]
        case "method":
            name, option = draw(st.sampled_from(OF_METHODS))
            return [f"method.name={name}", f"method.{option}={value}"]
        case "wrapper":
            name, option = draw(st.sampled_from(OF_WRAPPERS))
            return [f"method.name=fedavg+{name}", f"method.{name}.{option}={value}"]
        case "partition":
            name, option = draw(st.sampled_from(OF_PARTITIONS))
            return [f"data.partition={name}", f"data.{option}={value}"]
        case "section":
            return [f"{draw(st.sampled_from(['train', 'participation']))}={toml(draw(WORDS | HUGE | st.booleans()))}"]
        case "name":
            section = draw(st.sampled_from(["", "train.", "data.", "method.", "model.", "participation."]))
            return [f"{section}{draw(st.text('xyzé_', min_size=3, max_size=2000))}=1"]
        case _:
            return [draw(st.sampled_from(SYNTAX))]


SYNTAX = [
    *("=", "=1", "rounds", ".=1", "a..b=1", "rounds.x=1", "seed.x.y=1", "\0=1", "method.name", "train.=1"),
    *("train.lr=1\nrounds = 2", "rounds=1\n[data]", "train.lr=0.1 # a comment", "train.lr=1, momentum = 1"),
    *("train.lr=1}\nrounds = {x = 1", f"rounds={'9' * 5000}", f"train.lr={'[' * DEEP}{']' * DEEP}"),
    *(f"model.hidden={'[' * 5000}", f"{'a.' * DEEP}b=1", f"train.{'a.' * DEEP}b=1", "rounds='''1\n2'''"),
]

# Tables

SITES = ("a", "b", "Köln [x]")
ROWS = "site,age,dose,class\n" + "".join(
    f"{SITES[i % 3]},{(7 * i) % 11},{(5 * i) % 7},{'yn'[(i * i) % 5 > 1]}\n" for i in range(60)
)
EMPTY = [
    b"",
    b"\0",
    b"\n\n\n",
    b"age\n",
    b"age,age,dose\n1,2,3\n",
    b"age,dose\n1\n",
    b"\xff\xfe\0",
    b"site,age,dose",
]
NO_TABLE = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(str.encode),
    st.text("age,dose;\t\n\"'=0123456789.x", max_size=120).map(str.encode),
    st.sampled_from(EMPTY),
)
