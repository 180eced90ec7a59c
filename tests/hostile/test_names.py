"""Hostile names from one end to the other: they survive in objects and files, and nothing obeys them."""

from __future__ import annotations

import csv
import io
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

import fedprior
from fedprior.cli.progress import RunProgress
from fedprior.cli.screen import say
from fedprior.errors import FedpriorError, FedpriorWarning, of_the_disk, unknown
from fedprior.experiment.journal import Journal
from fedprior.methods.fedavg import FedAvg
from fedprior.names import FILE_BYTES, apart, csv_cell, file_names, from_csv_cell, on_screen, tensor_key, visible
from fedprior.report import charts, portrait, tables
from fedprior.report.charts.federation import picture as drawn
from fedprior.report.page.federation import page as page_of
from hostile.strange import NAMES, federation, names, raw, several


def printed(*things: Any, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, highlight=False)
    for thing in things:
        console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@given(names(), st.integers(5, 80))
def test_a_screen_gets_one_bounded_line(name: str, most: int) -> None:
    shown = on_screen(name, most)
    assert not raw(shown)
    assert "\n" not in shown
    assert len(shown) <= most
    if name.isprintable() and len(name) <= most:
        assert shown == name


@given(several())
def test_names_are_told_apart_on_a_screen(clients: list[str]) -> None:
    found = apart(clients, 5)
    assert len(set(found)) == len(found) == len(clients)
    assert not raw("".join(found))


def test_what_was_replaced_is_seen() -> None:
    assert on_screen("\x1b[31mred\u202e\n") == r"\x1b[31mred\u202e\n"
    assert on_screen("\udcff") == r"\udcff", "a byte of a path that is no UTF-8"
    assert on_screen("👩‍⚕️") == "👩‍⚕️"
    assert on_screen("a" * 50 + "b" * 50, 10) == "aaaaaa…bbb"


@given(names())
@example("\x1b]0;x\x07" * 3000)
def test_errors_and_warnings_are_one_line(name: str) -> None:
    said = [FedpriorError(f"no '{name}'"), FedpriorWarning(name), unknown("client", name, [name + "x"])]
    for error in (*said, of_the_disk(OSError(2, "gone", name))):
        assert not raw(str(error))
        assert "\n" not in str(error)
        assert len(str(error)) <= 4000


@given(names())
@example("'=1")
@example("''\t")
def test_a_cell_is_no_formula_and_gives_its_name_back(name: str) -> None:
    cell = csv_cell(name)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\0"))
    assert not cell.lstrip().startswith(("=", "+", "-", "@"))
    assert from_csv_cell(cell) == name


@pytest.mark.parametrize("name", ["north", "'tis", "O'Brien", "", "a=b", "x-1"])
def test_a_plain_name_is_its_own_cell(name: str) -> None:
    assert csv_cell(name) == from_csv_cell(name) == name


@given(several(12))
@settings(max_examples=50, deadline=None)
def test_the_journal_gives_names_back(clients: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        rows = [{"round": 1, "client": client, "updated": 1, "loss": 0.5} for client in clients]
        journal._add("logs.csv", rows[:1])
        journal._add("logs.csv", rows[1:])
        again = Journal(Path(folder))
        again.load()
        assert again.logs == rows == journal.logs
        with (Path(folder) / "logs.csv").open(newline="", encoding="utf-8") as file:
            assert [from_csv_cell(row["client"]) for row in csv.DictReader(file)] == clients


@given(several(12))
def test_file_names_are_short_portable_and_apart(clients: list[str]) -> None:
    found = file_names(clients)
    assert list(found) == clients
    assert len({file.casefold() for file in found.values()}) == len(clients)
    for file in found.values():
        assert file.isascii()
        assert 0 < len(file) <= FILE_BYTES
        assert not set(file) & set('/\\:*?"<>|\0\n')
        assert file.partition(".")[0].casefold() not in {"con", "prn", "aux", "nul", "com1", "lpt1"}
        assert file.strip(".")


def test_only_those_who_must_get_a_digest() -> None:
    found = file_names(["north", "Site", "SITE", "x" * 300, "東京" * 13])
    assert found["north"] == "north"
    assert file_names(["Site", "north"])["Site"] == "Site"
    assert found["Site"].startswith("Site+")
    assert found["SITE"].startswith("SITE+")
    assert found["x" * 300].startswith("x" * 60)
    assert found["東京" * 13].startswith("%E6%9D%B1%E4%BA%AC")
    assert file_names(reversed(list(found)))["SITE"] == found["SITE"], "whatever the order"


@given(several())
def test_tensor_keys_are_apart(clients: list[str]) -> None:
    keys = [tensor_key(client) for client in [*clients, "__metadata__"]]
    assert "__metadata__" not in keys
    assert len(set(keys)) == len({*clients, "__metadata__"})


def check_run(clients: list[str], folder: Path) -> None:
    """Everything that a run does with names."""
    data = federation(clients, name=clients[0], options={"a": clients[-1]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedpriorWarning)
        result = fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=folder, reference="local", workers=1)
        again = fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=folder, reference="local", workers=1)
    for run in (result, again):
        assert run.federation.clients == tuple(clients)
        assert list(run.clients.index) == clients
        assert list(run.values) == clients
        shown = printed(tables.clients(run), tables.comparison({"a": run, "b": run}), tables.by_client({"a": run}))
        assert not raw(shown + repr(run))
        for client in clients:
            assert (on_screen(client) if client.strip() else "") in shown
    assert again.clients.equals(result.clients)
    check_files(clients, folder, result)


def check_files(clients: list[str], folder: Path, result: fedprior.Result) -> None:
    index = json.loads((folder / "models" / "index.json").read_text(encoding="utf-8"))
    assert list(index) == clients
    assert {p.name for p in (folder / "models").iterdir()} == {*index.values(), "index.json"}
    assert not list(folder.glob("**/*.tmp"))
    for client, file in index.items():
        loaded = fedprior.load_model(folder / "models" / file)
        assert loaded.client == client
        assert (loaded.predict([[0.5, 1.0]]) == result.predict(client, [[0.5, 1.0]])).all()
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert [row["client"] for row in summary["clients"]] == clients


def test_every_hostile_name_goes_through_a_run(tmp_path: Path) -> None:
    for k in range(0, len(NAMES), 20):
        check_run(list(NAMES[k : k + 20]), tmp_path / str(k))


@given(several())
@example(["\x00"])
@settings(max_examples=10, deadline=None)
def test_any_names_go_through_a_run(clients: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_run(clients, Path(folder) / "run")


@given(several())
@settings(max_examples=15, deadline=None)
def test_pictures_show_names_as_text(clients: list[str]) -> None:
    data = federation(clients, name=clients[0], options={"a": clients[-1]})
    picture = portrait.portrait(data)
    shown = printed(portrait.terminal(picture, 100), tables.federation(data))
    page = page_of(data, picture)
    assert not raw(shown + page.partition("<script>")[0])
    assert page.lower().count("<script") == 3, "the data and two scripts, whatever the names"


def test_a_picture_takes_a_dollar_for_a_dollar() -> None:
    data = federation(["a", "b"], name="$x^2_{$")
    assert ">$x^2_{$:" in charts.svg(drawn(portrait.portrait(data)))


@pytest.mark.parametrize("name", [name for name in NAMES if name.strip()])
def test_progress_and_lines_take_no_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(quiet=False) as progress:
        observe = progress(name, 1)
        assert observe is not None
        observe({"kind": "round", "round": 1, "logs": {}})
        observe({"kind": "saving", "round": 1, "models": 500, "of": 1000})
        row = progress.bar.make_tasks_table(progress.bar.tasks)
    assert on_screen(name) in printed(row)
    console = Console(file=io.StringIO(), width=2000)
    say(console, f"results: {name}")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == f"results: {visible(name)}\n"
    assert not raw(capsys.readouterr().err)


def test_names_that_no_file_can_hold_are_refused() -> None:
    with pytest.raises(FedpriorError, match=r"the client name 'a\\udc80' is not text that a file can hold: rename it"):
        federation(["a\udc80"])
    both: dict[Any, Any] = {1: ([[0.0]] * 4, [0, 1] * 2), "1": ([[0.0]] * 4, [0, 1] * 2)}
    with pytest.raises(FedpriorError, match=r"two clients are called '1': rename one\."):
        fedprior.data.from_arrays(both, classes=2)
