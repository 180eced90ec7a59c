"""The command: its fixed interface, and one sentence for everything that is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedprior
from fedprior import __version__, experiment, load_model
from fedprior.cli import main as command
from fedprior.cli.main import main
from fedprior.cli.progress import _validation
from fedprior.data import DATASETS
from fedprior.experiment.journal import Event
from fedprior.methods import build
from fedprior.protocol import METHODS

ROWS = [
    f"{('north', 'south', 'west')[i % 3]},{(7 * i) % 11},{(5 * i) % 7 + 0.5},{'yn'[(i * i) % 5 > 1]}" for i in range(60)
]
HEADER = "site,age,dose,class"
DATA = ("--data", "csv", "data.path=good.csv", "data.target=class", "data.client=site")
RUN = ("run", "--method", "fedmap", *DATA, "--rounds", "2", "--out", "out", "--no-report", "train.epochs=1")
CLIENTS = {"north", "south", "west"}


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Call:
    """Calls the command in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *args: str) -> Outcome:
        self.monkeypatch.setattr(sys, "argv", ["fedprior", *args])
        self.capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Outcome(int(code or 0), *self.capsys.readouterr())

    def good(self, *args: str) -> Outcome:
        found = self(*args)
        assert found.code == 0, found.err
        return found


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """A working folder with `good.csv`: three sites of 20 rows, two numbers, two classes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text("\n".join([HEADER, *ROWS]) + "\n")
    return Call(monkeypatch, capsys)


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its content and the time it was last written."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def models(folder: Path) -> dict[str, bytes]:
    return {p.stem: p.read_bytes() for p in (folder / "models").glob("*.safetensors")}


def refused(found: Outcome, *words: str) -> None:
    """Exit code 2, one line on stderr, nothing on stdout."""
    assert found.code == 2
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    assert found.err.endswith("\n")
    assert "Traceback" not in found.err
    for word in words:
        assert word in found.err


# What is wrong


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--method", "fedmapp"), ("fedmapp", "did you mean 'fedmap'?")),
        (("--method", "zzz"), ("zzz", *METHODS)),
        (("--method", ":cat:"), (":cat:",)),
        (("--data", "digitz"), ("did you mean 'digits'?",)),
        (("method.sigm2=3",), ("did you mean 'sigma2'?",)),
        (("methd.sigma2=3",), ("did you mean 'method'?",)),
        (("rouds=3",), ("did you mean 'rounds'?",)),
        (("sigma2=3",), ("write method.sigma2=value",)),
        (("lr=3",), ("write train.lr=value",)),
        (("clients=3",), ("write data.clients=value",)),
        (("hidden=[3]",), ("write model.hidden=value",)),
        (("data.target=Clas",), ("did you mean 'class'?",)),
        (("train.lrate=3",), ("lrate",)),
        (("model.hiden=[3]",), ("did you mean 'hidden'?",)),
        (("data.taget=x",), ("taget",)),
        (("participation.rte=0.5",), ("did you mean 'rate'?",)),
        (("method.sigma2=0",), ("sigma2 = 0",)),
        (("method.sigma2=-1",), ("sigma2 = -1",)),
        (("method.sigma2=wide",), ("sigma2 = 'wide'",)),
        (("method.omega=some",), ("omega",)),
        (("train.lr=0",), ("lr = 0",)),
        (("train.batch_size=0",), ("batch_size = 0",)),
        (("--rounds", "0"), ("rounds = 0",)),
        (("--seed", "-1"), ("seed = -1",)),
        (("--workers", "0"), ("workers = 0",)),
        (("precision=float16",), ("float16",)),
        (("participation.rate=0",), ("rate = 0",)),
        (("rounds",), ("'rounds' is not an override",)),
        (("--config", "nowhere.toml"), ("nowhere.toml",)),
        (("--config", "good.csv"), ("not valid TOML",)),
        (("data.seed=some",), ("seed",)),
        (("data.test=some",), ("test",)),
        (("data.test=1",), ("test = 1",)),
        (("data.min_size=some",), ("min_size",)),
        (("data.min_size=21",), ("fewer than 21",)),
        (("data.partition=some",), ("some",)),
        (("data.partition=5",), ("5",)),
        (("model.name=5",), ("5",)),
    ],
    ids=" ".join,
)
def test_a_wrong_run_is_refused(args: tuple[str, ...], words: tuple[str, ...], call: Call, tmp_path: Path) -> None:
    """The wrong option comes last, so that it replaces the right one. Nothing is written."""
    before = snapshot(tmp_path)
    refused(call(*RUN, *args), *words)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("reproduce", "x/y", "--seeds", "some"), ("--seeds", "See `fedprior reproduce --help`.")),
        (("reproduce", "x/y", "--seeds", "0"), ("--seeds",)),
        (("reproduce", "x/y", "--scale", "qick"), ("--scale", "'qick' is not one of 'paper', 'quick'")),
        (("reproduce", "x/y", "--scal", "quick"), ("--scal", "--scale")),
        (("reproduce",), ("Missing argument", "See `fedprior reproduce --help`.")),
        (("reprodce",), ("No such command 'reprodce'", "'reproduce'", "See `fedprior --help`.")),
        (("data", "fecth"), ("No such command 'fecth'", "See `fedprior data --help`.")),
        (("run", "--rounds"), ("--rounds",)),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_sentence_too(args: tuple[str, ...], words: tuple[str, ...], call: Call) -> None:
    refused(call(*args), *words)


def test_the_command_alone_greets_with_examples_that_parse(call: Call) -> None:
    """Three, of commands that exist, with options that they have."""
    found = call.good()
    examples = [line.split()[1:] for line in found.out.splitlines() if line.startswith("  fedprior ")]
    assert len(examples) == 3
    for name, *words in examples:
        told = call.good(name, "--help").out
        assert [word for word in words if word.startswith("--") and word not in told] == []
    assert call.good("--version").out == f"fedprior {__version__}\n"


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (("run", "--method", "fedmp", "--data", "digits"), "fedprior methods"),
        (("run", "--method", "fedmap", "--data", "digitss"), "fedprior data list"),
        (("reproduce", "fedmap/table99"), "fedprior papers"),
    ],
)
def test_an_error_names_the_command_to_run_next(args: tuple[str, ...], command: str, call: Call) -> None:
    found = call(*args)
    assert found.code == 2
    assert found.err.strip().endswith(f"See `{command}`.")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("data.alpha=0",), ("alpha = 0",)),
        (("data.alpha=-1",), ("alpha = -1",)),
        (("data.clients=0",), ("clients = 0",)),
        (("data.clients=5000",), ("5000 clients", "too few")),
        (("data.clients=5000", "data.min_size=1"), ("5000 clients", "too few")),
        (("data.partition=iid", "data.clients=1797"), ("has 1 examples",)),
        (("data.client=4",), ("did you mean 'clients'?",)),
        (("data.partition=dirchlet",), ("did you mean 'dirichlet'?",)),
    ],
    ids=" ".join,
)
def test_a_wrong_partition_is_refused(options: tuple[str, ...], words: tuple[str, ...], call: Call) -> None:
    refused(call("run", "--method", "fedmap", "--data", "digits", "--rounds", "1", "--out", "out", *options), *words)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("\n".join([HEADER, "north,,1.5,y", *ROWS]), ("'north'", "missing"), id="missing value"),
        pytest.param("\n".join([HEADER, *ROWS, "west,NaN,1,n"]), ("'west'", "missing"), id="nan"),
        pytest.param("\n".join([HEADER, *ROWS, "west,inf,1,n"]), ("'age'", "finite", "row 61"), id="inf"),
        pytest.param("\n".join([HEADER, *ROWS, "west,old,1,n"]), ("'age'", "row 61"), id="text among numbers"),
        pytest.param("\n".join([HEADER, *ROWS, ",3,1,n"]), ("client",), id="no site"),
        pytest.param("\n".join([HEADER, *ROWS, "west,3,1,"]), ("'class'",), id="no class"),
        pytest.param("\n".join([HEADER, "north,3,1,n", "north,4,1,n"]), ("'class'",), id="one class"),
        pytest.param("\n".join([HEADER, *ROWS, "east,3,1,n"]), ("'east'",), id="a site with one row"),
        pytest.param("\n".join(["site,age,dose,kind", *ROWS]), ("'class'", "kind"), id="no such column"),
        pytest.param("\n".join(["place,age,dose,class", *ROWS]), ("'site'", "place"), id="no such site column"),
        pytest.param(HEADER, (), id="header only"),
        pytest.param("", ("bad.csv",), id="empty"),
        pytest.param("\n".join([HEADER, *ROWS, "a,1,2,y,4,5"]), ("bad.csv",), id="too many cells"),
        pytest.param(b"\xff\xfe\x00\x01\x81", ("bad.csv",), id="no text"),
        pytest.param(None, ("bad.csv",), id="no file"),
    ],
)
def test_a_wrong_table_is_refused(content: str | bytes | None, words: tuple[str, ...], call: Call) -> None:
    if content is not None:
        Path("bad.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(call(*RUN, "data.path=bad.csv"), *words)
    assert not Path("out").exists()


def test_a_table_needs_its_options(call: Call) -> None:
    refused(call("run", "--method", "fedmap", "--data", "csv", "data.path=good.csv", "--out", "out"), "target")
    refused(call("run", "--method", "fedmap", "--data", "csv", "--out", "out"), "path")


def test_a_folder_in_use_is_refused(call: Call, tmp_path: Path) -> None:
    Path("out").mkdir()
    Path("out/notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    refused(call(*RUN), "'out' is already in use")
    refused(call("compare", "--methods", "fedavg", *DATA, "--out", "out"), "'out' is already in use")
    refused(call(*RUN, "--out", "good.csv"), "'good.csv' is a file")
    assert snapshot(tmp_path) == before


def test_a_second_run_does_not_overwrite_the_first(call: Call, tmp_path: Path) -> None:
    call.good(*RUN, "--quiet")
    before = snapshot(tmp_path)
    refused(call(*RUN, "--quiet"), "fedprior resume out")
    assert snapshot(tmp_path) == before


def test_a_corrupted_checkpoint_is_refused(call: Call, tmp_path: Path) -> None:
    """The run is unfinished (it has no summary) and a byte of its checkpoint is another."""
    call.good(*RUN, "--quiet", "--no-local")
    Path("out/summary.json").unlink()
    path = Path("out/checkpoint/round-00002.safetensors")
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    before = snapshot(tmp_path)
    refused(call("resume", "out"), "round-00002.safetensors", "damaged")
    assert snapshot(tmp_path) == before


def test_what_is_no_run_cannot_be_resumed(call: Call, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    refused(call("resume", "nowhere"), "nowhere")
    refused(call("resume", "."), "no run to resume")
    refused(call("resume", "good.csv"), "good.csv")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--methods", "fedavg", "method.sigma2=3"), ("methods.NAME.key=value",)),
        (("--methods", "fedavg", "method=fedmap"), ("--methods",)),
        (("--methods", "fedavg,fedmapp"), ("did you mean 'fedmap'?",)),
        (("--methods", "fedavg", "methods.fedmapp.sigma2=3"), ("did you mean 'fedmap'?",)),
        (("--methods", "fedmap", "methods.fedmap.sigma2=0"), ("sigma2 = 0",)),
        (("--methods", "fedmap", "methods.fedmap.sgma2=1"), ("did you mean 'sigma2'?",)),
        (("--methods", "fedmap", "sigma2=3"), ("write methods.NAME.sigma2=value",)),
        (("--methods", ""), ("nothing to compare",)),
        ((), ("nothing to compare",)),
    ],
    ids=" ".join,
)
def test_a_wrong_comparison_is_refused(args: tuple[str, ...], words: tuple[str, ...], call: Call) -> None:
    refused(call("compare", *DATA, "--rounds", "1", "--out", "out", *args), *words)
    assert not Path("out").exists()


def test_options_for_several_methods_are_refused_by_one_run(call: Call) -> None:
    """They would be ignored, even when they are wrong."""
    refused(call(*RUN, "methods.fedmap.sigma2=-3"), "methods")


def test_wrong_descriptions_are_refused(call: Call) -> None:
    refused(call("data", "describe", "digitz"), "did you mean 'digits'?")
    refused(call("data", "describe", "digits", "data.alpha=0"), "alpha = 0")
    refused(call("data", "describe", "digits", "clients=3"), "clients")


def test_an_error_as_a_process() -> None:
    """The installed command itself: exit code, one line, no traceback."""
    binary = Path(sys.executable).parent / "fedprior"
    found = subprocess.run([binary, "run", "--method", "nope"], capture_output=True, text=True, check=False)
    refused(Outcome(found.returncode, found.stdout, found.stderr), "names no data")


def test_an_error_of_the_disk_as_a_process(tmp_path: Path) -> None:
    """A page cannot be written where a folder is; what is in the folder stays, and nothing else comes."""
    binary = Path(sys.executable).parent / "fedprior"
    (tmp_path / "page" / "inside").mkdir(parents=True)
    command = [str(binary), "data", "describe", "digits", "--html", "page"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    refused(Outcome(found.returncode, "", found.stderr), "'page' cannot be read or written: is a directory.")
    assert [p.name for p in tmp_path.rglob("*")] == ["page", "inside"]


def test_an_interruption_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", interrupted)
    found = call(*RUN, "--quiet")
    assert (found.code, found.out) == (130, "")
    assert found.err == "interrupted: run the same command again\n", "nothing is there to resume"


# The fixed interface


def test_run_as_a_process(call: Call) -> None:
    """The interface that others rely on, word for word, with two workers."""
    binary = Path(sys.executable).parent / "fedprior"
    args = [*("run", "--method", "fedmap", "--data", "csv"), *("data.path=good.csv", "data.target=class")]
    args += ["data.client=site", "--rounds", "2", "--seed", "3", "--workers", "2", "--out", "out"]
    found = subprocess.run([binary, *args], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["method"]["name"], summary["rounds"], summary["seed"]) == ("fedmap", 2, 3)
    assert set(models(Path("out"))) == CLIENTS
    assert all(client in found.stdout for client in CLIENTS)
    assert load_model("out/models/west.safetensors").predict([[1.0, 2.0]]).shape == (1, 2)


def test_the_seed_decides_and_the_workers_do_not(call: Call) -> None:
    """Twice the same seed, once with two workers: the same bytes in every model. Another seed: others."""
    for out, seed, workers in (("a", "1", "1"), ("b", "1", "1"), ("c", "1", "2"), ("d", "2", "1")):
        call.good(*RUN, "--seed", seed, "--workers", workers, "--out", out, "--quiet", "--no-local", "chunk=2")
    a, b, c, d = (models(Path(out)) for out in "abcd")
    assert set(a) == CLIENTS
    assert a == b
    assert a == c
    assert all(a[client] != d[client] for client in CLIENTS)


def test_run_prints_a_table_and_where_the_results_are(call: Call) -> None:
    found = call.good(*RUN)
    assert "FedMAP" in found.out
    assert "results: out" in found.out
    assert all(client in found.out for client in CLIENTS)
    assert "local: round 2/2" in found.err
    assert "fedmap: round 2/2" in found.err


@pytest.mark.parametrize("args", [RUN, ("compare", "--methods", "fedavg", *DATA, "--rounds", "1", "--out", "out")])
def test_quiet_prints_nothing(args: tuple[str, ...], call: Call) -> None:
    assert call.good(*args, "--quiet") == (0, "", "")
    assert call.good("resume", "out", "--quiet") == (0, "", "")


def test_json_is_the_summary_and_nothing_else(call: Call) -> None:
    found = call.good(*RUN, "--json")
    assert found.err == ""
    assert json.loads(found.out) == json.loads(Path("out/summary.json").read_text())
    again = call.good("resume", "out", "--json")
    assert json.loads(again.out) == json.loads(found.out)


def test_json_of_a_comparison_has_every_method(call: Call) -> None:
    found = call.good("compare", "--methods", "fedavg,fedmap", *DATA, "--rounds", "1", "--out", "out", "--json")
    document = json.loads(found.out)
    assert list(document) == ["local", "fedavg_ft", "fedavg", "fedmap"]
    assert document["fedmap"] == json.loads(Path("out/fedmap/summary.json").read_text())
    assert found.err == ""


def test_compare_leaves_one_folder_a_method(call: Call) -> None:
    found = call.good("compare", "--methods", "fedavg,fedmap", *DATA, "--rounds", "1", "--seed", "2", "--out", "out")
    names = {"local", "fedavg_ft", "fedavg", "fedmap"}
    assert {p.name for p in Path("out").iterdir() if p.is_dir()} == names
    for name in names:
        assert set(models(Path("out") / name)) == CLIENTS
        assert json.loads((Path("out") / name / "summary.json").read_text())["seed"] == 2
        assert METHODS[name].about.title in found.out


def test_compare_without_baselines(call: Call) -> None:
    call.good("compare", "--methods", "fedavg", "--no-baselines", *DATA, "--rounds", "1", "--out", "out", "--quiet")
    assert {p.name for p in Path("out").iterdir() if p.is_dir()} == {"fedavg"}


def test_compare_hears_the_options_of_each_method(call: Call) -> None:
    """Also those of a baseline that was not asked for by name."""
    options = ("methods.fedmap.sigma2=3", "methods.fedavg_ft.ft_epochs=1")
    call.good("compare", "--methods", "fedmap", *DATA, "--rounds", "1", "--out", "out", "--quiet", *options)
    assert json.loads(Path("out/fedmap/summary.json").read_text())["method"]["sigma2"] == 3
    assert json.loads(Path("out/fedavg_ft/summary.json").read_text())["method"]["ft_epochs"] == 1


def test_compare_from_a_file(call: Call) -> None:
    Path("compare.toml").write_text(
        'rounds = 1\n[data]\nname = "csv"\npath = "good.csv"\ntarget = "class"\nclient = "site"\n'
        "[methods.fedmap]\nsigma2 = 3.0\n[methods.fedavg]\n"
    )
    call.good("compare", "--config", "compare.toml", "--no-baselines", "--out", "out", "--quiet")
    assert {p.name for p in Path("out").iterdir() if p.is_dir()} == {"fedmap", "fedavg"}
    assert json.loads(Path("out/fedmap/summary.json").read_text())["method"]["sigma2"] == 3


def test_without_a_folder_a_run_finds_one(call: Call) -> None:
    args = ("run", "--method", "fedavg", *DATA, "--rounds", "1", "--seed", "4", "--quiet", "--no-local")
    for _ in range(2):
        call.good(*args)
    assert sorted(p.name for p in Path("runs").iterdir()) == ["fedavg-csv-seed4", "fedavg-csv-seed4-2"]


def test_a_config_file_and_flags(call: Call) -> None:
    Path("run.toml").write_text('rounds = 9\nseed = 5\n[method]\nname = "fedprox"\nstrength = 0.5\n')
    call.good("run", "--config", "run.toml", *DATA, "--rounds", "1", "--out", "out", "--quiet", "--no-local")
    found = json.loads(Path("out/summary.json").read_text())
    assert (found["rounds"], found["seed"], found["method"]) == (1, 5, {"name": "fedprox", "strength": 0.5})


def test_methods(call: Call) -> None:
    found = json.loads(call.good("methods", "--json").out)
    assert {m["name"] for m in found} == set(METHODS)
    linear = {m["name"] for m in found if m["most_coefficients"] is not None}  # too many inputs for them
    assert {m["name"] for m in found if m["bytes_up"] is None and m["bytes_down"] is None} == linear
    assert all(m["bytes_up"] >= 0 and m["bytes_down"] >= 0 for m in found if m["name"] not in linear)
    assert all(m["paper"] and m["group"] for m in found)
    assert "fedmap" in call.good("methods").out


def test_one_method(call: Call) -> None:
    """Its equations and options, and those of the wrappers that follow its name."""
    text = call.good("methods", "fedmap+ft").out
    assert "γ = Σ ω_k θ_k / Σ ω_k" in text
    assert "variance σ² of the prior" in text
    assert "ft.steps" in text
    found = json.loads(call.good("methods", "fedavg+am", "--json").out)
    options = {option["name"]: option for option in found["options"]}
    assert (options["server_step.step"]["default"], options["server_step.step"]["range"]) == ("2.0", "> 0")
    refused(call("methods", "fedmp"), "did you mean 'fedmap'?")
    refused(call("methods", "fedmap+fx"), "did you mean 'ft'?")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_can_be_described(call: Call, name: str) -> None:
    assert "Personal: " in call.good("methods", name).out


def test_data_list(call: Call) -> None:
    found = json.loads(call.good("data", "list", "--json").out)
    entries = {entry["name"]: entry for entry in found}
    assert set(DATASETS) <= set(entries)
    assert "alpha" in entries["partition=dirichlet"]["options"]
    assert all(entry["about"] for entry in found)
    text = call.good("data", "list").out
    assert all(name in text for name in DATASETS)


def test_data_describe(call: Call) -> None:
    """Sizes and labels of every client: 60 rows, 20 a site, split 14 / 2 / 4."""
    args = ("data", "describe", "csv", *DATA[2:])
    found = json.loads(call.good(*args, "--json").out)
    assert {row["client"] for row in found["clients"]} == CLIENTS
    assert {(row["train"], row["validation"], row["test"]) for row in found["clients"]} == {(14, 2, 4)}
    assert all(row["label n"] + row["label y"] == row["train"] for row in found["clients"])
    assert found["heterogeneity"]["size_max"] == 14
    text = call.good(*args).out
    assert all(client in text for client in CLIENTS)
    assert "size_max" in text


def test_the_partition_follows_the_seed(call: Call) -> None:
    args = ("data", "describe", "digits", "data.clients=4", "--json")
    one, again, other = (call.good(*args, "--seed", seed).out for seed in ("1", "1", "2"))
    assert one == again
    assert one != other


def test_the_package_is_the_command() -> None:
    said = subprocess.run([sys.executable, "-m", "fedprior", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"fedprior {__version__}\n"


def test_version_and_help(call: Call) -> None:
    assert call.good("--version").out == f"fedprior {__version__}\n"
    text = call.good("--help").out
    assert all(name in text for name in ("run", "compare", "resume", "methods", "data"))
    assert command.app.info.name == "fedprior"


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_and_comes_once(call: Call) -> None:
    """FedBN without a norm: personalised in two stacks and at two evaluations, and said once; nothing about files."""
    options = ("data.clients=4", "chunk=2", "eval_every=1", "train.epochs=1", "--rounds", "2", "--workers", "1")
    found = call.good("run", "--method", "fedbn", "--data", "digits", *options, "--out", "x")
    told = [line for line in found.err.splitlines() if "FedBN" in line]
    assert told == [line for line in told if line.startswith("warning: FedBN has nothing to keep personal")]
    assert len(told) == 1
    assert "fedbn.py" not in found.err


# The command and the library are one


TIMES = ("timing", "seconds")


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a run or a comparison; of events and summaries, all but times."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            lines = path.read_text().splitlines() if path.name == "events.jsonl" else [path.read_bytes()]
            if path.suffix in (".json", ".jsonl"):
                documents = [json.loads(line) for line in lines]
                if path.name == "manifest.json":
                    del documents[0]["journals"]["events.jsonl"]
                lines = [json.dumps({k: v for k, v in d.items() if k not in TIMES}) for d in documents]
            found[str(path.relative_to(folder))] = lines
    return found


def from_python(out: str, **more: Any) -> fedprior.Result:
    data = fedprior.data.load("csv", path="good.csv", target="class", client="site")
    train = fedprior.Train(**{**data.recipe["train"], "epochs": 1})
    return fedprior.run(build("fedmap", {}, train), data, out=out, rounds=2, reference="local", **more)


def test_the_command_leaves_what_the_library_leaves(call: Call) -> None:
    """The same files with the same bytes, Local's among them."""
    call.good(*RUN, "--quiet")
    from_python("mine")
    theirs, ours = contents(Path("out")), contents(Path("mine"))
    assert theirs.keys() == ours.keys()
    assert {"config.toml", "local/config.toml", "logs.csv", "models/west.safetensors"} <= ours.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_what_one_began_the_other_continues(call: Call) -> None:
    """A run that the library began and lost in round 2 is resumed by the command."""

    def stop(event: Event) -> None:
        if event["kind"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_python("mine", observers=lambda name, rounds: stop if name == "fedmap" else None)
    call.good("resume", "mine", "--quiet", "--no-report")
    call.good(*RUN, "--quiet")
    assert contents(Path("mine")) == contents(Path("out"))


def test_the_comparison_of_the_command_is_that_of_the_library(call: Call) -> None:
    call.good("compare", "--methods", "fedmap", *DATA, "--rounds", "1", "--out", "out", "--no-report", "--quiet")
    data = fedprior.data.load("csv", path="good.csv", target="class", client="site")
    found = fedprior.compare([build("fedmap")], data, rounds=1, out="mine")
    assert contents(Path("mine")) == contents(Path("out"))
    again = call.good("resume", "mine").out
    assert found.verdict in " ".join(again.split())


def test_the_config_of_a_run_runs_again(call: Call) -> None:
    """With nothing but `--config`: the same folder again."""
    call.good(
        *RUN, "--quiet", "method.sigma2=3", "participation.least=2", "participation.rule=bernoulli", "--seed", "4"
    )
    assert "min_reporters = 2" in Path("out/config.toml").read_text()
    call.good("run", "--config", "out/config.toml", "--out", "again", "--no-report", "--quiet")
    assert contents(Path("again")) == contents(Path("out"))


def test_what_came_from_python_cannot_be_resumed_by_name(call: Call) -> None:
    rng = np.random.default_rng(0)
    data = fedprior.data.from_arrays({k: (rng.normal(size=(20, 3)), np.arange(20) % 2) for k in "ab"})
    fedprior.run(build("fedavg"), data, rounds=1, out="mine")
    refused(call("resume", "mine"), "came from Python", "fedprior.run")


def test_progress_shows_validation_and_never_test(call: Call) -> None:
    """The last line of each run has the validation NLL of its last evaluation; no test number is among the lines."""
    found = call.good(*RUN)
    for name, folder in (("local", Path("out/local")), ("fedmap", Path("out"))):
        last = json.loads((folder / "events.jsonl").read_text().splitlines()[-1])
        line = next(line for line in found.err.splitlines() if line.startswith(f"{name}: round 2/2"))
        personal = last["personal"]
        assert line.endswith(f"validation NLL {personal['validation']['nll']['mean']:.3f}")
        assert "accuracy" not in line
        assert "test" not in line


def test_progress_looks_at_validation_alone() -> None:
    """An event whose test numbers are another: the text is the same. Without validation examples there is none."""
    event = {"personal": {"validation": {"nll": {"mean": 0.25}, "evaluated": 3}, "test": {"nll": {"mean": 7.0}}}}
    assert _validation(event) == "  validation NLL 0.250"
    event["personal"]["validation"] = {"nll": {"mean": float("nan")}, "evaluated": 0}
    assert _validation(event) == ""


# The page


def test_a_report_is_left_unless_it_is_declined(call: Call) -> None:
    """By run, by resume, and by the command for folders that exist; it needs the data, which it loads."""
    found = call.good(*RUN, "--report")
    assert f"report: {Path('out/report.html')}" in found.out
    page = Path("out/report.html")
    first = page.read_text()
    assert "FedMAP on good.csv" in first
    page.unlink()
    call.good("resume", "out", "--quiet", "--no-report")
    assert not page.exists()
    assert call.good("report", "out").out == f"report: {page}\n"
    assert page.read_text() == first
    call.good("report", "out", "--out", "else/where.html")
    assert Path("else/where.html").read_text() == first
    refused(call("report", "nowhere"), "'nowhere' holds no run")
