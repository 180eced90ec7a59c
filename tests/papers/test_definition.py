"""Tables as files: what they may say, which runs they stand for, and whether those can be done."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedprior
from fedprior import methods
from fedprior.data import DATASETS, store
from fedprior.errors import FedpriorError
from fedprior.metrics.classes import METRICS
from fedprior.models import MODELS
from fedprior.papers import find, listing
from fedprior.papers.cell import Cell, merged
from fedprior.papers.definition import PARTS, Scale, Table, folder, read
from fedprior.training import Train

TABLE = """
title = "Table 0, a miniature"
paper = "Somebody (2024)"
seeds = 2
HEAD

[run]
rounds = 1
RUN

[run.data]
name = "synthetic"
clients = 4
samples = 40

[columns.all]
[columns.few]
COLUMN

[rows.Alone.method]
name = "local"

[rows.Together]
ROW

[rows.Together.method]
name = "fedprox"
mu = 2.0

[rows.Together.paper]
all = 80.0

[quick]
QUICK
"""


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Writes the table with lines put in its places, and reads it."""

    def written(name: str = "small/table0", **places: str) -> Table:
        text = TABLE
        for place in ("HEAD", "RUN", "COLUMN", "ROW", "QUICK"):
            text = text.replace(place, places.get(place, ""))
        path = tmp_path / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return read(path)

    return written


@pytest.fixture(autouse=True)
def _no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path / "data"))


def cells(table: Table, scale: Scale = "paper", seeds: int = 1) -> list[Cell]:
    return list(table.cells(scale, *table.limited(scale, None, None), seeds))


def sentence(error: pytest.ExceptionInfo[FedpriorError], *words: str) -> None:
    """One line that ends like a sentence and has the words."""
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    for word in words:
        assert word in text


# Reading


def test_a_table_is_read(make: Any) -> None:
    table = make(
        HEAD='metric = "balanced_accuracy"\nunit = 1.0\nat = "best"\nminutes = 3\nunknown = ["μ"]\nstand_in = "digits"',
        COLUMN='among = "smallest tenth"',
    )
    assert (table.name, table.title, table.paper) == ("small/table0", "Table 0, a miniature", "Somebody (2024)")
    assert (table.metric, table.unit, table.at, table.seeds, table.minutes) == ("balanced_accuracy", 1, "best", 2, 3)
    assert (table.unknown, table.stand_in) == (["μ"], "digits")
    assert {name: column.among for name, column in table.columns.items()} == {"all": "all", "few": "smallest tenth"}
    assert list(table.rows) == ["Alone", "Together"]
    assert table.rows["Together"].paper == {"all": 80.0}
    assert table.rows["Alone"].paper == {}


def test_a_table_may_hold_any_metric_or_a_cost(make: Any) -> None:
    for name in (*(metric.name for metric in METRICS), "seconds", "parameters"):
        assert make(HEAD=f'metric = "{name}"').metric == name
    with pytest.raises(FedpriorError, match="metric = 'accurcy' is not valid: it is none of accuracy, "):
        make(HEAD='metric = "accurcy"')


def test_what_a_table_does_not_say(make: Any) -> None:
    """Accuracy in percent after the last round; one seed when it is quick."""
    table = make()
    assert (table.metric, table.unit, table.at, table.unknown, table.stand_in) == ("accuracy", 0.01, "last", [], "")
    assert (table.quick.seeds, table.quick.rows, table.quick.columns) == (1, None, None)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"HEAD": "colour = 3"}, ("colour", "table0.toml")),
        ({"COLUMN": "colour = 3"}, ("columns.few.colour", "table0.toml")),
        ({"ROW": "colour = 3"}, ("rows.Together.colour", "table0.toml")),
        ({"QUICK": "colour = 3"}, ("quick.colour", "table0.toml")),
        ({"HEAD": 'metric = "f1"'}, ("metric = 'f1'", "table0.toml")),
        ({"HEAD": 'at = "first"'}, ("at = 'first'", "last", "best")),
        ({"HEAD": 'metric = "seconds"\nper = "example"'}, ("seconds is averaged per client", "leave out `per`")),
        ({"HEAD": "unit = 0"}, ("unit = 0", "table0.toml")),
        ({"QUICK": "seeds = 0"}, ("quick.seeds = 0",)),
        ({"ROW": "paper_global = {al = 3}"}, ("row 'Together'", "column 'al'", "table0.toml")),
        ({"ROW": "columns.fw = {mu = 3}"}, ("row 'Together'", "column 'fw'", "table0.toml")),
        ({"QUICK": 'rows = ["Togther"]'}, ("unknown row 'Togther'", "did you mean 'Together'?")),
        ({"QUICK": 'columns = ["al"]'}, ("unknown column 'al'", "did you mean 'all'?")),
        ({"HEAD": "minutes ="}, ("table0.toml", "not valid TOML")),
    ],
    ids=str,
)
def test_a_wrong_table_is_refused(places: dict[str, str], words: tuple[str, ...], make: Any) -> None:
    with pytest.raises(FedpriorError) as error:
        make(**places)
    sentence(error, *words)


def test_a_row_with_a_number_for_no_column_is_refused(make: Any, tmp_path: Path) -> None:
    path = make().path
    path.write_text(path.read_text().replace("all = 80.0", "all = 80.0\nmost = 70.0"))
    with pytest.raises(FedpriorError) as error:
        read(path)
    sentence(error, "row 'Together'", "column 'most'", str(path))


@pytest.mark.parametrize("key", ["title", "paper"])
def test_a_table_needs_its_keys(key: str, make: Any) -> None:
    path = make().path
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(f"{key} =")))
    with pytest.raises(FedpriorError) as error:
        read(path)
    sentence(error, f"'{path}'", f"'{key}'")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FedpriorError) as error:
        read(tmp_path / "nowhere.toml")
    sentence(error, "nowhere.toml")


def test_the_path_is_no_key_of_a_table(make: Any) -> None:
    with pytest.raises(FedpriorError) as error:
        make(HEAD='path = "elsewhere"')
    sentence(error, "path", "table0.toml")


@pytest.mark.parametrize("line", ['rows = ["Togther"]', 'columns = ["al"]'])
def test_a_wrong_quick_version_is_located(line: str, make: Any) -> None:
    with pytest.raises(FedpriorError, match="unknown") as error:
        make(QUICK=line)
    sentence(error, "table0")


# Finding


def test_tables_are_listed_by_name_and_found(make: Any, tmp_path: Path) -> None:
    for name in ("b/table1", "a/table2", "a/table1"):
        make(name)
    (tmp_path / "a" / "results").mkdir()
    (tmp_path / "a" / "results" / "table1.toml").write_text("")  # one level too deep
    (tmp_path / "notes.toml").write_text("")
    assert [table.name for table in listing(tmp_path)] == ["a/table1", "a/table2", "b/table1"]
    found = find("a/table2", tmp_path)
    assert (found.name, found.path) == ("a/table2", tmp_path / "a" / "table2.toml")


@pytest.mark.parametrize("name", ["fedmap/tabel1", "fedmap/table", "fedmap/table1.toml", "../fedmap/table1"])
def test_a_misspelt_table_has_a_nearest(name: str, make: Any, tmp_path: Path) -> None:
    make("fedmap/table1")
    make("pfedvem/cifar")
    with pytest.raises(FedpriorError) as error:
        find(name, tmp_path)
    sentence(error, f"unknown table '{name}'", "did you mean 'fedmap/table1'?")


def test_no_tables(tmp_path: Path) -> None:
    assert listing(tmp_path) == []
    with pytest.raises(FedpriorError) as error:
        find("fedmap/table1", tmp_path)
    sentence(error, "none")


def test_tables_lie_in_the_package_or_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "fedprior"
    monkeypatch.setattr(fedprior, "__file__", str(package / "__init__.py"))
    with pytest.raises(FedpriorError) as error:
        folder()
    sentence(error, "not installed")
    (tmp_path / "papers").mkdir()
    assert folder() == tmp_path / "papers"
    (package / "papers" / "tables").mkdir(parents=True)
    assert folder() == package / "papers" / "tables"


# Sections laid over each other


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([], {}, id="nothing"),
        pytest.param([{"rounds": 1}, {"rounds": 2}, {"rounds": 3}], {"rounds": 3}, id="the last one counts"),
        pytest.param([{"rounds": 1}, {"seed": 2}], {"rounds": 1, "seed": 2}, id="both stay"),
        pytest.param([{"train": {"lr": 1}}, {"train": {"epochs": 2}}], {"train": {"lr": 1, "epochs": 2}}, id="unnamed"),
        pytest.param(
            [{"data": {"name": "a", "x": 1, "y": 2}}, {"data": {"y": 3}}],
            {"data": {"name": "a", "x": 1, "y": 3}},
            id="without a name it changes the section",
        ),
        pytest.param(
            [{"data": {"name": "a", "x": 1, "y": 2}}, {"data": {"name": "a", "y": 3}}],
            {"data": {"name": "a", "x": 1, "y": 3}},
            id="with the same name too",
        ),
        pytest.param(
            [{"data": {"name": "a", "x": 1}}, {"data": {"name": "b", "y": 3}}],
            {"data": {"name": "b", "y": 3}},
            id="another name replaces it",
        ),
        pytest.param(
            [{"data": {"name": "a", "x": 1}}, {"data": {"name": "b", "y": 3}}, {"data": {"x": 5}}],
            {"data": {"name": "b", "y": 3, "x": 5}},
            id="and is changed in its turn",
        ),
        pytest.param(
            [{"model": {"hidden": [3]}}, {"model": {"name": "mlp"}}],
            {"model": {"name": "mlp"}},
            id="a name where there was none",
        ),
        pytest.param(
            [{"method": {"am": {"a": 1, "b": 2}}}, {"method": {"am": {"b": 3}}}],
            {"method": {"am": {"a": 1, "b": 3}}},
            id="two levels",
        ),
        pytest.param([{"model": {"a": [3, 4]}}, {"model": {"a": [5]}}], {"model": {"a": [5]}}, id="lists"),
        pytest.param([{"data": {"name": "a"}}, {"data": "b"}], {"data": "b"}, id="a word over a section"),
        pytest.param([{"data": "a"}, {"data": {"name": "b"}}], {"data": {"name": "b"}}, id="a section over a word"),
    ],
)
def test_merged(parts: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(parts)
    assert merged(*parts) == expected
    assert parts == before, "the parts stay as they are"


def test_merged_shares_nothing_with_its_parts() -> None:
    part: dict[str, Any] = {"model": {"hidden": [3]}, "train": {"lr": 1}}
    found = merged(part, {"train": {"epochs": 2}})
    found["model"]["hidden"].append(4)
    found["train"]["lr"] = 2
    assert part == {"model": {"hidden": [3]}, "train": {"lr": 1}}


# Cells


def test_cells_come_seed_by_seed_column_by_column(make: Any) -> None:
    found = [(cell.seed, cell.column, cell.row) for cell in cells(make(), seeds=2)]
    assert found == [
        (0, "all", "Alone"),
        (0, "all", "Together"),
        (0, "few", "Alone"),
        (0, "few", "Together"),
        (1, "all", "Alone"),
        (1, "all", "Together"),
        (1, "few", "Alone"),
        (1, "few", "Together"),
    ]
    assert [cell.config.seed for cell in cells(make(), seeds=2)] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("places", "paper", "quick"),
    [
        ({}, 1, 1),
        ({"COLUMN": "run.rounds = 2"}, 2, 2),
        ({"COLUMN": "run.rounds = 2", "ROW": "run.rounds = 3"}, 3, 3),
        ({"COLUMN": "run.rounds = 2", "ROW": "run.rounds = 3", "QUICK": "run.rounds = 4"}, 3, 4),
        ({"QUICK": "run.rounds = 4"}, 1, 4),
    ],
    ids=str,
)
def test_what_comes_on_top(places: dict[str, str], paper: int, quick: int, make: Any) -> None:
    """The run, then the column, then the row, and above all the quick version."""
    table = make(**places)
    for scale, expected in (("paper", paper), ("quick", quick)):
        found = {(c.row, c.column): c.config.rounds for c in table.cells(scale, ["few"], ["Together"], 1)}
        assert found == {("Together", "few"): expected}


def test_a_column_changes_its_own_runs_alone(make: Any) -> None:
    table = make(COLUMN="run.data.clients = 3")
    assert {(c.column, c.config.data["clients"], c.config.data["samples"]) for c in cells(table)} == {
        ("all", 4, 40),
        ("few", 3, 40),
    }
    assert all(c.config.data["name"] == "synthetic" for c in cells(table))


def test_a_column_with_other_data_inherits_none_of_the_options(make: Any) -> None:
    table = make(COLUMN='run.data = {name = "digits", clients = 3}')
    assert {c.column: c.config.data for c in cells(table)}["few"] == {"name": "digits", "clients": 3}


def test_a_row_has_its_method_and_changes_it_in_single_columns(make: Any) -> None:
    table = make(ROW="columns.few = {mu = 0.5}")
    found = {(c.row, c.column): c.config.method for c in cells(table)}
    assert found == {
        ("Alone", "all"): {"name": "local"},
        ("Alone", "few"): {"name": "local"},
        ("Together", "all"): {"name": "fedprox", "mu": 2.0},
        ("Together", "few"): {"name": "fedprox", "mu": 0.5},
    }


def test_seeds_of_the_table_are_not_those_of_the_run(make: Any) -> None:
    """A seed in [run] would otherwise make all seeds the same run."""
    assert [c.config.seed for c in make(RUN="seed = 7").cells("paper", ["all"], ["Alone"], 3)] == [0, 1, 2]


def test_a_wrong_run_is_refused(make: Any) -> None:
    with pytest.raises(FedpriorError) as error:
        cells(make(RUN="rouds = 3"))
    sentence(error, "rouds", "did you mean 'rounds'?")


# Limits


def test_limits(make: Any) -> None:
    """What is asked for, else what the quick version has, else everything; always in the table's order."""
    table = make(QUICK='rows = ["Together"]\ncolumns = ["few"]')
    both = (["all", "few"], ["Alone", "Together"])
    assert table.limited("paper", None, None) == both
    assert table.limited("quick", None, None) == (["few"], ["Together"])
    assert table.limited("quick", ["few", "all"], ["Together", "Alone"]) == both
    assert table.limited("paper", ["all"], None) == (["all"], ["Alone", "Together"])
    assert table.limited("quick", None, ["Alone"]) == (["few"], ["Alone"])


@pytest.mark.parametrize("scale", ["paper", "quick"])
def test_a_limit_to_what_is_not_there_is_refused(scale: Scale, make: Any) -> None:
    with pytest.raises(FedpriorError) as error:
        make().limited(scale, ["all", "fw"], None)
    sentence(error, "unknown column 'fw'", "did you mean 'few'?")
    with pytest.raises(FedpriorError) as error:
        make().limited(scale, None, ["Togeter"])
    sentence(error, "unknown row 'Togeter'", "did you mean 'Together'?")


# Folders


def test_the_same_run_has_one_folder(make: Any) -> None:
    """Two columns that only pick other clients are one run; rows and seeds are runs of their own."""
    table = make(COLUMN='among = "client-1"')
    found = {(c.row, c.column, c.seed): c.folder for c in cells(table, seeds=2)}
    assert len(found) == 8
    assert len(set(found.values())) == 4
    for row in table.rows:
        for seed in range(2):
            assert found[row, "all", seed] == found[row, "few", seed]
    assert found["Alone", "all", 1].startswith("local-seed1-")
    assert found["Together", "all", 0].startswith("fedprox-seed0-")


@pytest.mark.parametrize("line", ["workers = 1", "workers = 3", 'engine = "ray"', 'ray_address = "here:1"'])
def test_how_a_run_is_done_does_not_matter(line: str, make: Any) -> None:
    assert [c.folder for c in cells(make(RUN=line))] == [c.folder for c in cells(make())]


@pytest.mark.parametrize(
    "line",
    [
        *("rounds = 2", "data.samples = 41", 'precision = "float64"', "train.lr = 0.3", "model.hidden = [3]"),
        *("participation.newcomers = 1", "eval_every = 1"),
    ],
)
def test_whatever_else_a_run_is_does(line: str, make: Any) -> None:
    changed = {c.row: c.folder for c in cells(make(COLUMN=f"run.{line}")) if c.column == "few"}
    plain = {c.row: c.folder for c in cells(make()) if c.column == "few"}
    assert all(changed[row] != plain[row] for row in plain)


def test_the_folder_does_not_depend_on_the_order_of_options(make: Any) -> None:
    path = make().path
    plain = [c.folder for c in cells(read(path))]
    path.write_text(path.read_text().replace('name = "fedprox"\nmu = 2.0', 'mu = 2.0\nname = "fedprox"'))
    assert [c.folder for c in cells(read(path))] == plain
    path.write_text(path.read_text().replace("mu = 2.0", "mu = 2.5"))
    assert [c.folder for c in cells(read(path))] != plain


# Data, and whether the table has been run


def test_embedded_data_are_never_missing(make: Any) -> None:
    table = make()
    assert (table.needs, table.missing, table.state) == ([], [], "runnable")


@pytest.mark.parametrize(
    ("data", "needs"),
    [("mnist", ["mnist"]), ("digit_domains", ["mnist", "mnist_m", "usps"])],
)
def test_stored_data_are_missing_from_an_empty_folder(data: str, needs: list[str], make: Any) -> None:
    table = make(COLUMN=f'run.data.name = "{data}"')
    assert (table.needs, table.missing, table.state) == (needs, needs, "data missing")


def test_damaged_data_are_missing(make: Any, tmp_path: Path) -> None:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    assert store.status("mnist").state == "damaged"
    assert make(COLUMN='run.data.name = "mnist"').missing == ["mnist"]


def test_stored_data_are_not_missing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(COLUMN='run.data.name = "digit_domains"')
    there = {"mnist": "stored", "usps": "absent", "mnist_m": "stored"}
    monkeypatch.setattr(store, "status", lambda name: SimpleNamespace(state=there[name]))
    assert (table.missing, table.state) == (["usps"], "data missing")
    there["usps"] = "stored"
    assert (table.missing, table.state) == ([], "runnable")


def test_results_make_it_run(make: Any) -> None:
    """With results it has been run, wherever the data are now; quick results are not the table's."""
    table = make(COLUMN='run.data.name = "mnist"')
    results = table.path.parent / "results"
    assert table.results("paper") == results / "table0"
    assert table.results("quick") == results / "table0-quick"
    results.mkdir()
    (results / "table0-quick.json").write_text("{}")
    assert table.state == "data missing"
    (results / "table0.json").write_text("{}")
    assert table.state == "run"


def test_a_dot_in_the_name_of_a_table(make: Any) -> None:
    table = make("small/table0-α0.1")
    table.results("paper").parent.mkdir()
    (table.results("paper").parent / "table0-α0.1.json").write_text("{}")
    assert table.state == "run"


def test_a_data_set_is_needed_once(make: Any) -> None:
    table = make(COLUMN='run.data.name = "mnist"\n[columns.more]\nrun.data.name = "digit_domains"')
    assert table.needs == ["mnist", "mnist_m", "usps"]


def test_a_row_may_need_data_too(make: Any) -> None:
    assert make(ROW='run.data.name = "mnist"').needs == ["mnist"]


def test_data_given_as_a_word(make: Any) -> None:
    table = make(COLUMN='run.data = "mnist"')
    assert {c.config.data["name"] for c in cells(table)} == {"synthetic", "mnist"}
    assert table.needs == ["mnist"]


# The tables themselves


TABLES = sorted(folder().glob("*/*.toml"))


def test_there_are_tables() -> None:
    assert [table.path for table in listing()] == TABLES
    assert TABLES


@pytest.mark.parametrize("scale", ["paper", "quick"])
@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_table_stands_for_runs(path: Path, scale: Scale) -> None:
    """All its runs parse, and their methods, models, data and training exist with the options given; no data loaded."""
    table = read(path)
    planned = cells(table, scale)
    assert planned
    numbers = any(row.paper or row.paper_global for row in table.rows.values())
    assert numbers or table.unknown, "it has numbers of the paper, or says why not"
    for cell in planned:
        config = cell.config
        options = dict(config.method)
        methods.build(options.pop("name"), options, Train(**config.train))
        assert config.data["name"] in {*DATASETS, *store.RECORDS, *PARTS}
        assert config.model.get("name", "mlp") in MODELS
        assert all(name in store.RECORDS for name in table.needs)
