"""Tuning: the declared space, on validation alone, as many tries for each method, and continued by the same call."""

from __future__ import annotations

import shutil
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedprior.errors import FedpriorError
from fedprior.experiment import config as configs
from fedprior.experiment import tuning
from fedprior.experiment.tuning import STUDY, TUNED, _score, tune
from fedprior.methods import METHODS, build
from hostile.cases import command


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return table(tmp_path)


def table(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=90)
    ill = np.where(rng.random(90) < 1 / (1 + np.exp(-2 * x)), "yes", "no")
    frame = pd.DataFrame({"x": x, "site": np.repeat(["a", "b", "c"], 30), "ill": ill})
    frame.to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


def config(path: Path, **methods: dict[str, Any]) -> configs.Config:
    data = {"name": "table", "path": str(path), "site": "site", "target": "ill"}
    return configs.parse({"data": data, "methods": methods, "rounds": 2, "workers": 1}, several=True)


def test_every_method_has_as_many_tries_and_the_same_call_goes_on(path: Path) -> None:
    out, given = path.parent / "out", config(path, fedmap={}, fedavg={})
    seen: list[tuple[str, int, float]] = []
    first = tune(given, out, tries=2, splits=1, tell=lambda *told: seen.append(told))
    assert [(name, number) for name, number, _ in seen] == [
        ("local", 1),
        ("local", 2),
        ("fedmap", 1),
        ("fedmap", 2),
        ("fedavg", 1),
    ]
    again = tune(given, out, tries=2, splits=1, tell=lambda *told: pytest.fail("nothing is left to try"))
    assert again == first
    more = tune(given, out, tries=3, splits=1)
    assert (more["fedmap"].tries, more["fedavg"].tries) == (3, 1)  # FedAvg declares nothing to search
    for name, best in more.items():
        scores = [score for told, _, score in seen if told == name]
        assert best.score <= min(scores)
        assert best.before == scores[0]
    written = tomllib.loads((out / TUNED).read_text())["methods"]
    assert written["fedmap"] == more["fedmap"].options
    assert more["fedmap"].options.keys() <= {"sigma2"}


def test_tries_that_go_on_are_those_of_one_call_and_none_is_repeated(path: Path) -> None:
    """Stopped after one, two and four tries: the same scores in the same order, and five distinct values of sigma2."""
    given, seen = config(path, fedmap={}), []
    for tries in (1, 2, 4, 5):
        tune(given, path.parent / "stopped", tries=tries, splits=1, tell=lambda *told: seen.append(told))
    stopped = sorted(seen, key=lambda told: told[:2])
    seen.clear()
    tune(given, path.parent / "whole", tries=5, splits=1, tell=lambda *told: seen.append(told))
    assert stopped == sorted(seen, key=lambda told: told[:2])
    scores = [score for name, _, score in seen if name == "fedmap"]
    assert len(set(scores)) == 5


def test_tries_of_other_settings_are_refused(path: Path) -> None:
    out = path.parent / "out"
    tune(config(path, fedavg={}), out, tries=1, splits=1)
    with pytest.raises(FedpriorError, match="holds tries of local with other data or settings: choose another folder"):
        tune(config(path, fedavg={}), out, tries=1, splits=2)


def test_declared_spaces_are_options(path: Path) -> None:
    for name, method in METHODS.items():
        for option, values in method.space.items():
            for value in values:
                assert getattr(build(name, {option: value}), option) in (
                    value,
                    tuple(value) if isinstance(value, list) else value,
                )


def test_what_cannot_be_tuned_is_told(path: Path) -> None:
    with pytest.raises(FedpriorError, match="at least one try"):
        tune(config(path), path.parent / "out", tries=0)
    assert not (path.parent / "out").exists()


def test_a_search_that_was_cut_off_finds_the_same(path: Path) -> None:
    """In its first try and in its third: a try that was begun counts for nothing, and the default is tried first."""
    given = config(path, local={}, fedmap={})
    whole = tune(given, path.parent / "whole", tries=4, splits=1)
    out = path.parent / "a?b#c%20d"  # a name that would not survive in a URL
    for tries in (0, 2):
        left = [_score] * tries

        def cut_off(*args: Any, left: list[Callable[..., float]] = left) -> float:
            if not left:
                raise KeyboardInterrupt
            return left.pop()(*args)

        with mock.patch.object(tuning, "_score", cut_off), pytest.raises(KeyboardInterrupt):
            tune(given, out, tries=4, splits=1)
    assert tune(given, out, tries=4, splits=1) == whole
    assert sorted(file.name for file in out.iterdir()) == [STUDY, TUNED]


def test_tries_of_another_search_are_not_counted(path: Path) -> None:
    out, given = path.parent / "out", config(path, local={})
    tune(given, out, tries=1, splits=1)
    others = [
        given.model_copy(update={"seed": 3}),
        given.model_copy(update={"rounds": 3}),
        given.model_copy(update={"train": {"lr": 0.02}}),
    ]
    for other in others:
        with pytest.raises(FedpriorError, match="other data or settings"):
            tune(other, out, tries=2, splits=1)


def test_a_damaged_study_is_refused(path: Path) -> None:
    (path.parent / "out").mkdir()
    (path.parent / "out" / STUDY).write_bytes(b"SQLite format 3\0" + bytes(range(256)))
    with pytest.raises(FedpriorError, match=r"study.db' is damaged or is not a study"):
        tune(config(path, local={}), path.parent / "out", tries=1, splits=1)


def test_the_command(path: Path) -> None:
    out = path.parent / "tuned"
    table = [str(path), "--site", "site", "--target", "ill", "--rounds", "1", "--workers", "1"]
    found = command("tune", *table, "--methods", "fedmap", "--tries", "2", "--splits", "1", "--out", str(out))
    assert found.code in (0, None), found.err
    assert "fedmap: try 2, validation NLL" in found.err
    assert "tries (" in found.out
    compared = command(
        "compare",
        *table,
        "--config",
        str(out / TUNED),
        "--splits",
        "1",
        "--out",
        str(path.parent / "compared"),
        "--json",
    )
    assert compared.code in (0, None), compared.err


CHANGES = {
    "a lost value": "UPDATE trial_values SET value = NULL",
    "another value": "UPDATE trial_values SET value = 0.01 WHERE trial_id = 2",
    "another kind of value": "UPDATE trial_values SET value_type = 'NAN'",
    "another state": "UPDATE trials SET state = 'ODD'",
    "no study": "DELETE FROM studies",
    "no settings": "DELETE FROM study_user_attributes",
    "settings that are not JSON": "UPDATE study_user_attributes SET value_json = 'nope'",
    "no options": "DELETE FROM trial_user_attributes",
    "other options": "UPDATE trial_user_attributes SET value_json = '{\"sigma2\": 5}' WHERE key = 'options'",
    "other draws": "UPDATE trial_params SET param_value = -5",
    "the other direction": "UPDATE study_directions SET direction = 'MAXIMIZE'",
    "no direction": "DELETE FROM study_directions",
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[configs.Config, Path]:
    """A finished search of two tries."""
    folder = tmp_path_factory.mktemp("study")
    own = config(table(folder), fedmap={})
    tune(own, folder / "out", tries=2, splits=1)
    return own, folder / "out"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_study_that_was_changed_is_refused(study: tuple[configs.Config, Path], change: str, tmp_path: Path) -> None:
    """Whatever was lost or changed: its tries would be taken for what they are not."""
    own, finished = study
    shutil.copytree(finished, tmp_path / "out")
    with closing(sqlite3.connect(tmp_path / "out" / STUDY)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(FedpriorError, match=r"study.db' is damaged or is not a study"):
        tune(own, tmp_path / "out", tries=2, splits=1)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=40), st.floats(0, 1))
def test_a_study_with_any_damage(
    study: tuple[configs.Config, Path], tmp_path: Path, changes: list[tuple[float, int]], kept: float
) -> None:
    """The same settings, or one sentence."""
    own, finished = study
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished, out)
    content = bytearray((out / STUDY).read_bytes())
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    (out / STUDY).write_bytes(content[: int(kept * len(content))] if kept < 0.3 else content)
    with suppress(FedpriorError):
        tune(own, out, tries=2, splits=1)
    assert (out / TUNED).read_bytes() == (finished / TUNED).read_bytes()
