"""`fedprior papers` and `fedprior reproduce`: what they print, where they write, and what they refuse."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from fedprior import papers as library
from fedprior.cli.papers import papers, reproduce
from fedprior.errors import FedpriorError
from fedprior.papers import definition as tables

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
app.command("papers")(papers)
app.command("reproduce")(reproduce)

TABLE = """
title = "Table 0, a miniature"
paper = "Somebody (2024)"
seeds = 2
minutes = 90

[run]
rounds = 1
data = {name = "synthetic", clients = 3, samples = 30}
train = {epochs = 1}

[columns.all]
[columns.first]
among = "client-1"

[rows.A]
method = {name = "fedavg"}
paper = {all = 80.0}
paper_global = {all = 78.0}

[rows.B]
method = {name = "local"}
paper = {all = 70.0}

[quick]
columns = ["all"]
"""
STORED = """
title = "Table 1, stored"
paper = "Somebody (2024)"
minutes = 12
run = {rounds = 1, data = {name = "digit_domains"}}
columns = {all = {}}
rows = {A = {method = {name = "fedavg"}}}
"""
NAME = "small/table0"
QUICK = ("reproduce", NAME, "--scale", "quick", "--workers", "1")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Call:
    """Calls the commands in this process; errors become what `main` makes of them."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *args: str) -> Outcome:
        self.capsys.readouterr()
        code: Any = 0
        try:
            app(args)
        except SystemExit as end:
            code = end.code
        except FedpriorError as error:
            found = self.capsys.readouterr()
            return Outcome(2, found.out, f"{found.err}error: {error}\n")
        return Outcome(int(code or 0), *self.capsys.readouterr())

    def good(self, *args: str) -> Outcome:
        found = self(*args)
        assert found.code == 0, found.err
        return found


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A working folder with two tables, one of which lacks its data."""
    for name, text in ((NAME, TABLE), ("small/table1", STORED)):
        path = tmp_path / "papers" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(tables, "folder", lambda: tmp_path / "papers")
    return Call(capsys)


RESULTS = Path("papers/small/results")
RUNS = Path("runs/papers/small/table0")


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its content and the time it was last written."""
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(found: Outcome, *words: str) -> None:
    """Exit code 2, one line on stderr, nothing on stdout."""
    assert found.code == 2
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    for word in words:
        assert word in found.err


# papers


def lines(found: Outcome) -> dict[str, list[str]]:
    """The rows of the list by the table's name."""
    rows = (re.split(r"\s*[│|]\s*", line.strip(" │|")) for line in found.out.splitlines())
    return {row[0]: row[1:] for row in rows if len(row) == 5}


def test_papers_are_listed(call: Call) -> None:
    found = call.good("papers")
    rows = lines(found)
    assert rows[NAME] == ["Table 0, a miniature", "–", "–", "1.5 h"]
    assert rows["small/table1"] == ["Table 1, stored", "–", "mnist, mnist_m, usps", "12 min"]
    assert "fedprior reproduce NAME --scale quick" in found.out
    assert found.err == ""


def test_papers_as_json(call: Call) -> None:
    found = call.good("papers", "--json")
    assert json.loads(found.out) == [
        {
            "name": NAME,
            "title": "Table 0, a miniature",
            "paper": "Somebody (2024)",
            "state": "runnable",
            "part": "",
            "results": [],
            "ran": {},
            "missing": [],
            "seeds": 2,
            "minutes": 90.0,
            "rows": ["A", "B"],
            "columns": ["all", "first"],
        },
        {
            "name": "small/table1",
            "title": "Table 1, stored",
            "paper": "Somebody (2024)",
            "state": "data missing",
            "part": "",
            "results": [],
            "ran": {},
            "missing": ["mnist", "mnist_m", "usps"],
            "seeds": 1,
            "minutes": 12.0,
            "rows": ["A"],
            "columns": ["all"],
        },
    ]


def save(name: str, columns: list[str], rows: list[str], seeds: int, **more: Any) -> None:
    """Results beside a table, as far as the list reads them."""
    RESULTS.mkdir(exist_ok=True)
    document = {"columns": columns, "rows": rows, "seeds": seeds, "missing": [], **more}
    (RESULTS / f"{name}.json").write_text(json.dumps(document))


def told(call: Call) -> list[dict[str, str]]:
    """What was run of the tables, by scale."""
    return [entry["ran"] for entry in json.loads(call.good("papers", "--json").out)]


def test_papers_tell_what_has_been_run(call: Call) -> None:
    save("table0-quick", ["all"], ["A", "B"], 1)
    save("table1-quick", ["all"], ["A"], 1)
    assert lines(call.good("papers"))[NAME][1] == "quick, all of it, 1 seed"
    save("table0", ["all", "first"], ["A", "B"], 2)
    save("table1", ["all"], ["A"], 1)
    rows = lines(call.good("papers"))
    assert rows[NAME][1] == "all of it, 2 seeds"
    assert rows["small/table1"][1:3] == ["all of it, 1 seed", "mnist, mnist_m, usps"], "whatever data are stored"
    found = json.loads(call.good("papers", "--json").out)
    assert [(entry["state"], entry["results"]) for entry in found] == [("run", ["paper", "quick"])] * 2


def test_a_row_that_was_added_later_has_not_been_run(call: Call) -> None:
    """The results say that they were all of the table, and were; what counts is the table as it is now."""
    save(
        "table0",
        ["all", "first"],
        ["A", "gone"],
        2,
        about={"part": ""},
        missing=[["A", "first", 1], ["gone", "all", 1]],
    )
    assert told(call)[0] == {"paper": "1 of 2 rows, 3 of these 4 runs, 2 seeds"}


def test_results_that_cannot_be_read_are_no_results(call: Call) -> None:
    RESULTS.mkdir()
    (RESULTS / "table0.json").write_text("{")
    assert told(call)[0] == {"paper": "0 of 2 columns, 0 of 2 rows, 0 of 2 seeds"}


def test_papers_tell_the_scale_and_the_seeds_of_both_results(call: Call) -> None:
    """Each scale has its own line: what a quick run changes stands before how much of it was run."""
    save("table0", ["all"], ["A", "B"], 2)
    save("table0-quick", ["all"], ["A", "B"], 1, quick={"rounds": 4, "eval_every": 2})
    assert told(call)[0] == {"paper": "1 of 2 columns, 2 seeds", "quick": "rounds=4: all of it, 1 seed"}
    shown = call.good("papers").out
    assert all(words in shown for words in ("1 of 2 columns", "2 seeds", "quick, rounds=4"))


def test_the_real_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(Call(capsys).good("papers", "--json").out)
    assert [entry["name"] for entry in found] == [table.name for table in library.listing()]
    assert {entry["state"] for entry in found} <= {"run", "runnable", "data missing"}


# reproduce


def test_reproduce_quickly(call: Call) -> None:
    """Prints the numbers and the verdicts, keeps the runs in `runs`, and writes the results beside the table."""
    found = call.good(*QUICK)
    written = {RESULTS / f"table0-quick{suffix}" for suffix in (".json", ".md", ".html")}
    assert set(RESULTS.iterdir()) == written
    document = json.loads((RESULTS / "table0-quick.json").read_text())
    assert (document["scale"], document["seeds"], document["columns"]) == ("quick", 1, ["all"])
    for kind, row in (("personal", "A"), ("personal", "B"), ("global", "A")):
        cell = document["cells"][kind][row]["all"]
        assert f"{cell['paper']:.1f} → {cell['ours']:.1f} ({cell['delta']:+.1f})" in found.out
    assert found.out.count("\nall: ") == 2, "a verdict on each kind of model"
    assert re.search(r"^all: [01] of 1 pairs of methods in the paper's order", found.out, re.MULTILINE)
    assert "\nall: the paper has no two numbers to compare\n" in found.out
    assert "Not the paper's setting: " in found.out
    assert "written: " in found.out
    assert {p.name.split("-")[0] for p in (RUNS / "quick").iterdir()} == {"fedavg", "local"}
    assert all("workers = 1\n" in path.read_text() for path in (RUNS / "quick").glob("*/config.toml"))
    assert "1/2 fedavg: round 1/1" in found.err
    assert "2/2 local: round 1/1" in found.err
    assert "left" not in found.err, "the file does not say how long a quick run takes"
    assert lines(call.good("papers"))[NAME][1] == "quick, all of it, 1 seed"


def test_reproduce_the_table(call: Call) -> None:
    found = call.good("reproduce", NAME, "--workers", "1")
    assert {p.name for p in RESULTS.iterdir()} == {"table0.json", "table0.md", "table0.html"}
    assert "small/table0: 4 runs left, about 1.5 h on two cores; it can be interrupted." in found.err
    document = json.loads((RESULTS / "table0.json").read_text())
    assert (document["scale"], document["seeds"], document["columns"]) == ("paper", 2, ["all", "first"])
    assert "standard error over 2 seeds" in found.out
    assert len(list((RUNS / "paper").iterdir())) == 4
    assert lines(call.good("papers"))[NAME][1] == "all of it, 2 seeds"


def test_reproduce_goes_on_in_the_same_folder(call: Call) -> None:
    """A second time nothing is run; another folder is another beginning."""
    call.good(*QUICK, "--quiet")
    before = files(RUNS)
    found = call.good(*QUICK)
    assert files(RUNS) == before
    assert "round" not in found.err
    call.good(*QUICK, "--out", "elsewhere", "--quiet")
    assert {p.name for p in Path("elsewhere").iterdir()} == {p.name for p in (RUNS / "quick").iterdir()}


def test_reproduce_as_json(call: Call) -> None:
    """The document and nothing else; it is the one that is written."""
    found = call.good(*QUICK, "--json")
    assert found.err == ""
    assert json.loads(found.out) == json.loads((RESULTS / "table0-quick.json").read_text())
    assert "NaN" not in found.out


def test_quiet_prints_nothing(call: Call) -> None:
    assert call.good("reproduce", NAME, "--workers", "1", "--quiet") == (0, "", "")


def test_seeds_can_be_chosen(call: Call) -> None:
    found = json.loads(call.good(*QUICK, "--seeds", "2", "--rows", "B", "--json").out)
    assert found["seeds"] == 2
    assert len(found["cells"]["personal"]["B"]["all"]["values"]) == 2


@pytest.mark.parametrize("scale", ["paper", "quick"])
@pytest.mark.parametrize("limit", [("--rows", "B"), ("--columns", "all"), ("--rows", "B", "--columns", "first")])
def test_a_part_is_not_written_over_the_results(limit: tuple[str, ...], scale: str, call: Call) -> None:
    RESULTS.mkdir()
    for suffix in (".json", ".md", ".html"):
        (RESULTS / f"table0{suffix}").write_text("mine")
        (RESULTS / f"table0-quick{suffix}").write_text("mine")
    before = files(RESULTS)
    call.good("reproduce", NAME, "--scale", scale, "--workers", "1", "--quiet", "--seeds", "1", *limit)
    assert files(RESULTS) == before
    document = json.loads((RUNS / scale / "table.json").read_text())
    options = dict(zip(limit[::2], limit[1::2], strict=True))
    assert document["rows"] == ([options["--rows"]] if "--rows" in options else ["A", "B"])
    if "--columns" in options:
        assert document["columns"] == [options["--columns"]]
    assert {p.name for p in (RUNS / scale).iterdir() if p.is_file()} == {"table.json", "table.md", "table.html"}


def test_several_rows_with_commas_between(call: Call) -> None:
    found = json.loads(call.good(*QUICK, "--rows", "B,A", "--json").out)
    assert found["rows"] == ["A", "B"]
    assert not RESULTS.exists()


def test_where_the_tables_cannot_be_written_results_go_to_the_runs(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    call.good(*QUICK, "--quiet")
    assert not RESULTS.exists()
    assert (RUNS / "quick" / "table.md").exists()


def test_a_part_is_saved_on_demand_and_says_so(call: Call) -> None:
    limit = ("--seeds", "1", "--rows", "B", "--columns", "first")
    call.good("reproduce", NAME, "--workers", "1", "--quiet", "--save", *limit)
    text = (RESULTS / "table0.md").read_text()
    assert "**Part of the table**: 1 of 2 columns, 1 of 2 rows, 1 of 2 seeds." in text
    assert "`fedprior reproduce small/table0 --columns first --rows B --seeds 1`" in text
    assert "Part of the table" in (RESULTS / "table0.html").read_text()
    assert lines(call.good("papers"))[NAME][1] == "1 of 2 columns, 1 of 2 rows, 1 of 2 seeds"
    listed = json.loads(call.good("papers", "--json").out)[0]
    assert (listed["state"], listed["part"]) == ("run", "1 of 2 columns, 1 of 2 rows, 1 of 2 seeds")
    assert listed["ran"] == {"paper": "1 of 2 columns, 1 of 2 rows, 1 of 2 seeds"}


def test_parts_are_put_together(call: Call) -> None:
    """Two rows, saved one after the other from runs in different folders, make a table."""
    for row in "AB":
        call.good("reproduce", NAME, "--workers", "1", "--quiet", "--save", "--rows", row, "--out", f"runs-{row}")
    found = json.loads((RESULTS / "table0.json").read_text())
    assert (found["rows"], found["missing"], found["about"]["part"]) == (["A", "B"], [], "")
    assert all(len(found["cells"]["personal"][row]["all"]["values"]) == 2 for row in "AB")
    assert lines(call.good("papers"))[NAME][1] == "all of it, 2 seeds"


@pytest.fixture
def saved_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as runs are made, somebody else has saved row A, from a file beside the runs."""
    run = library.reproduce

    def slow(*given: Any, **options: Any) -> Any:
        outcome = run(*given, **options)
        if Path("other.json").exists():
            RESULTS.mkdir(exist_ok=True)
            Path("other.json").rename(RESULTS / "table0.json")
        return outcome

    monkeypatch.setattr(library, "reproduce", slow)


def put_aside(call: Call, row: str) -> None:
    """The results of a row, for `saved_meanwhile`."""
    call.good("reproduce", NAME, "--workers", "1", "--quiet", "--save", "--rows", row)
    (RESULTS / "table0.json").rename("other.json")


@pytest.mark.usefixtures("saved_meanwhile")
def test_parts_that_are_saved_at_the_same_time_are_put_together(call: Call) -> None:
    """Row A is saved while B runs: both are there. (It was lost: results were read before the runs.)"""
    put_aside(call, "A")
    call.good("reproduce", NAME, "--workers", "1", "--quiet", "--save", "--rows", "B", "--out", "runs-B")
    found = json.loads((RESULTS / "table0.json").read_text())
    assert (found["rows"], found["missing"]) == (["A", "B"], [])


@pytest.mark.usefixtures("saved_meanwhile")
def test_more_says_when_somebody_else_saved_meanwhile(call: Call) -> None:
    """The same seeds twice would be counted twice; given again, the command adds what it had run."""
    put_aside(call, "A")
    again = ("reproduce", NAME, "--workers", "1", "--quiet", "--more", "--out", "runs-more")
    refused(call(*again), "another run changed the saved results of small/table0", "same command again")
    call.good(*again)
    found = json.loads((RESULTS / "table0.json").read_text())
    assert [len(found["cells"]["personal"][name]["all"]["values"]) for name in "AB"] == [2, 2]


def test_damaged_results_are_noticed_before_anything_is_run(call: Call) -> None:
    RESULTS.mkdir()
    (RESULTS / "table0.json").write_text("mine")
    found = call("reproduce", NAME, "--save", "--rows", "A")
    refused(found, "the results in", "table0.json", "move them away")
    assert not RUNS.exists()
    assert (RESULTS / "table0.json").read_text() == "mine"


def test_the_whole_is_no_part(call: Call) -> None:
    call.good("reproduce", NAME, "--workers", "1", "--quiet")
    assert "A part of" not in (RESULTS / "table0.md").read_text()
    assert lines(call.good("papers"))[NAME][1] == "all of it, 2 seeds"


def test_so_far(call: Call) -> None:
    """A is done at all clients, B for one seed; only --save puts that beside the table."""
    part = ("--workers", "1", "--quiet")
    call.good("reproduce", NAME, *part, "--rows", "A")
    found = call.good("reproduce", NAME, "--so-far")
    assert not RESULTS.exists()
    assert re.search(r"\bA\b.*80\.0 →", found.out)
    assert "70.0" not in found.out
    call.good("reproduce", NAME, *part, "--rows", "B", "--seeds", "1")
    runs = files(RUNS / "paper")
    call.good("reproduce", NAME, "--so-far", "--save", "--quiet")
    assert {k: v for k, v in files(RUNS / "paper").items() if k in runs} == runs
    found = json.loads((RESULTS / "table0.json").read_text())
    assert [len(found["cells"]["personal"][row]["all"]["values"]) for row in "AB"] == [2, 1]
    assert found["about"]["part"] == "6 of the 8 runs"
    refused(call("reproduce", NAME, "--so-far", "--scale", "quick"), "nothing of small/table0 is finished")


# reproduce --search

SEARCH = """
[search]
column = "all"
tries = [{"train.lr" = 0.001}, {"train.lr" = 0.01}]
run = {data = {validation = 0.3}}
"""
CHOICES = Path("papers/small/search/table0.json")


def test_search(call: Call) -> None:
    """Prints what was tried and seen, keeps the choices beside the table, and later runs use them."""
    Path(f"papers/{NAME}.toml").write_text(TABLE + SEARCH)
    found = call.good("reproduce", NAME, "--search", "--workers", "1")
    document = json.loads(CHOICES.read_text())
    assert {row: len(entry["validation"]) for row, entry in document["rows"].items()} == {"A": 2, "B": 2}
    for entry in document["rows"].values():
        assert all(f"{value:.1f}" in found.out for value in entry["validation"])
    assert "train.lr = 0.001" in found.out
    assert found.out.count("✓") == 2
    assert f"written: {Path.cwd() / CHOICES}" in found.out.replace("\n", "")
    assert len(list((RUNS / "search").iterdir())) == 4
    call.good("reproduce", NAME, "--workers", "1", "--quiet")
    text = (RESULTS / "table0.md").read_text()
    assert f"- A: train.lr = {document['rows']['A']['chosen']['train.lr']}" in text
    assert "Chosen on validation data" in (RESULTS / "table0.html").read_text()
    assert json.loads(call.good("reproduce", NAME, "--search", "--json").out)["rows"] == document["rows"]


@pytest.mark.parametrize("option", [("--rows", "A"), ("--columns", "all"), ("--seeds", "2"), ("--so-far",)])
def test_a_search_is_for_all(option: tuple[str, ...], call: Call) -> None:
    Path(f"papers/{NAME}.toml").write_text(TABLE + SEARCH)
    refused(call("reproduce", NAME, "--search", *option), option[0], "leave out")
    assert not CHOICES.exists()


def test_nothing_to_search(call: Call) -> None:
    refused(call("reproduce", NAME, "--search"), "nothing to search")


def test_an_interruption_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "reproduce", interrupted)
    found = call(*QUICK)
    assert (found.code, found.out) == (130, "")
    assert found.err == "interrupted: continue with `fedprior reproduce small/table0` with the same options\n"
    assert not RESULTS.exists()


# What is wrong


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("small/tabel0",), ("unknown table 'small/tabel0'", "did you mean 'small/table0'?")),
        (("zzz",), ("unknown table 'zzz'", "small/table0", "small/table1")),
        ((NAME, "--workers", "two"), ("workers = 'two'", "whole number")),
        ((NAME, "--workers", "0"), ("workers = 0",)),
        ((NAME, "--workers", "-1"), ("workers = '-1'",)),
        ((NAME, "--workers", "1.5"), ("workers = '1.5'",)),
        ((NAME, "--rows", "C"), ("unknown row 'C'", "A, B")),
        ((NAME, "--rows", "A,C"), ("unknown row 'C'",)),
        ((NAME, "--columns", "frst"), ("unknown column 'frst'", "did you mean 'first'?")),
        (("small/table1",), ("small/table1 needs data", "`fedprior data fetch usps`")),
    ],
    ids=" ".join,
)
def test_what_is_wrong_is_refused(args: tuple[str, ...], words: tuple[str, ...], call: Call, tmp_path: Path) -> None:
    """In one sentence, and nothing is written."""
    before = files(tmp_path)
    refused(call("reproduce", *args, "--scale", "quick"), *words)
    assert files(tmp_path) == before
    assert not Path("runs").exists()


@pytest.mark.parametrize("args", [("--scale", "slow"), ("--seeds", "0"), ("--seeds", "one")], ids=" ".join)
def test_wrong_options_are_refused(args: tuple[str, ...], call: Call) -> None:
    found = call("reproduce", NAME, *args)
    assert found.code == 2
    assert args[0] in found.err
    assert not Path("runs").exists()


def test_a_damaged_run_is_told(call: Call) -> None:
    call.good(*QUICK, "--quiet")
    path = next(RUNS.glob("quick/local-*")) / "summary.json"
    path.write_text("{")
    refused(call(*QUICK, "--quiet"), str(path.parent), "damaged", "delete")


def test_a_wrong_table_is_told(call: Call) -> None:
    path = Path("papers/small/table1.toml")
    path.write_text(f"colour = 3\n{STORED}")
    refused(call("papers"), "table1.toml", "colour")
    refused(call("reproduce", "small/table1"), "table1.toml", "colour")
