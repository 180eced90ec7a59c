"""Tables that are run: numbers by hand from made-up folders, and miniature runs that are cut off and continued."""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fedprior import __version__
from fedprior.errors import FedpriorError
from fedprior.experiment import folder as folders
from fedprior.experiment.config import Config, Setup, parse
from fedprior.experiment.journal import Event, Observer
from fedprior.metrics.classes import METRICS
from fedprior.papers import Outcome, Scale, Table, reproduce
from fedprior.papers.definition import read
from fedprior.papers.outcome import Kind
from fedprior.papers.reproduce import Left, left
from fedprior.papers.saved import together
from fedprior.rng import Key

NAN = float("nan")
TABLE = """
title = "Table 0, a miniature"
paper = "Somebody (2024)"
HEAD

[run]
rounds = 2
eval_every = 1
checkpoint_every = 1
RUN

[run.data]
name = "synthetic"
skew = "quantity"
clients = 4
samples = 40

[run.train]
epochs = 1
lr = 0.01

[columns.all]
COLUMN

[rows.A]
paper = {all = 80.0}
method = {name = "fedavg"}
ROW

[rows.B]
paper = {all = 70.0}
method = {name = "local"}

[quick]
run.rounds = 1
QUICK
"""


def table(tmp_path: Path, **places: str) -> Table:
    """The miniature with lines put in its places."""
    text = TABLE
    for place in ("HEAD", "RUN", "COLUMN", "ROW", "QUICK"):
        text = text.replace(place, places.get(place, ""))
    path = tmp_path / "papers" / "small" / "table0.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return read(path)


def nobody(method: str, rounds: int) -> Observer | None:
    return None


def never(method: str, rounds: int) -> Observer | None:
    raise AssertionError("this run is finished")


BEGUN: list[int] = []
"""Seeds of the runs, as they begin: an observer is not told them."""


@pytest.fixture(autouse=True)
def _seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(setup: Setup, folder: Path) -> None:
        BEGUN.append(setup.settings.seed)
        folders.begin(setup, folder)

    monkeypatch.setattr(sys.modules[reproduce.__module__], "begin", begin)


class Started:
    """Notes which methods and seeds are run; interrupts the run `stop` when it has done a round."""

    def __init__(self, stop: tuple[str, int] | None = None, event: str = "round", round: int = 1) -> None:
        self.stop, self.event, self.round = stop, event, round
        self.runs: list[tuple[str, int]] = []

    def __call__(self, method: str, rounds: int) -> Observer:
        run = (method, BEGUN[-1])
        self.runs.append(run)

        def observe(event: Event) -> None:
            if run == self.stop and (event["kind"], event["round"]) == (self.event, self.round):
                raise KeyboardInterrupt

        return observe


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file with its content, when it was written and which one it is."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_ino)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def without_times(outcome: Outcome) -> dict[str, Any]:
    return {k: v for k, v in outcome.document().items() if k != "about"}


# Numbers from folders that were made up


Line = tuple[int, str, str, str, float | None]  # round, model, split, client, metric


def pretend(
    table: Table,
    out: Path,
    lines: Mapping[int, Iterable[Line]] | Iterable[Line],
    *,
    sizes: Mapping[str, int] | None = None,
    newcomers: Iterable[str] = (),
    metric: str = "accuracy",
    examples: Mapping[str, int] | None = None,
    seconds: Iterable[float] = (),
    scale: Scale = "paper",
) -> None:
    """Finished folders for all cells, by seed or all alike; the metrics that are not asked for are -1."""
    for cell in table.cells(scale, *table.limited(scale, None, None), table.seeds):
        folder = out / cell.folder
        folder.mkdir(parents=True, exist_ok=True)
        clients = [{"client": name, "train": n} for name, n in (sizes or {"a": 10, "b": 20}).items()]
        told = list(lines[cell.seed] if isinstance(lines, Mapping) else lines)
        summary: dict[str, Any] = {"timing": {"seconds": 30.0}, "clients": clients, "newcomers": list(newcomers)}
        summary["rounds"] = max(line[0] for line in told)
        (folder / "summary.json").write_text(json.dumps(summary))
        with (folder / "clients.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["round", "model", "split", "client", "examples", *(m.name for m in METRICS)])
            writer.writeheader()
            for number, model, split, client, value in told:
                row: dict[str, Any] = {m.name: -1.0 for m in METRICS} | {metric: value}
                row["examples"] = (examples or {}).get(client, 5)
                writer.writerow(row | {"round": number, "model": model, "split": split, "client": client})
        events: list[dict[str, Any]] = [{"kind": "evaluation", "round": 1, "seconds": 1000.0}]
        events += [{"kind": "round", "round": k + 1, "seconds": s} for k, s in enumerate(seconds)]
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def values(outcome: Outcome, column: str = "all", kind: Kind = "personal", row: str = "A") -> Any:
    number = outcome.number(kind, row, column)
    return None if number is None else number.values


def beside(outcome: Outcome, kind: Kind, row: str, column: str) -> Any:
    number = outcome.number(kind, row, column)
    return None if number is None else (number.paper, number.values)


def personal(found: Mapping[str, float | None], number: int = 1) -> list[Line]:
    return [(number, "personal", "test", client, value) for client, value in found.items()]


@pytest.mark.parametrize(
    ("among", "expected"),
    [
        ("all", 50.0),
        ("smallest tenth", 45.0),
        ("newcomers", 85.0),
        ("original", 380 / 9),
        ("c01", 10.0),
        ("c00, c02 ,c10", 40.0),
    ],
)
def test_among(among: str, expected: float, tmp_path: Path) -> None:
    """Eleven clients c00 … c10 with an accuracy of 0, 10 … 100 %.

    A tenth of eleven, rounded up, is two: c09 has the fewest examples (90 %), and of c00 and c04, which have as many as
    each other, the first by name is next (0 %): 45 % in the mean. Newcomers are c07 and c10; the others sum up to
    550 - 170. Three by name: 0, 20, 100.
    """
    names = [f"c{k:02d}" for k in range(11)]
    sizes = dict.fromkeys(reversed(names), 30) | {"c09": 5, "c00": 7, "c04": 7}
    small = table(tmp_path, COLUMN=f'[columns.some]\namong = "{among}"')
    lines = personal({name: k / 10 for k, name in enumerate(names)})
    pretend(small, tmp_path / "out", lines, sizes=sizes, newcomers=["c07", "c10"])
    found = reproduce(small, tmp_path / "out", never)
    assert values(found, "some") == [pytest.approx(expected)]
    assert values(found, "all") == [pytest.approx(50)]


def test_a_tenth_of_ten_is_one(tmp_path: Path) -> None:
    sizes = {f"c{k}": 10 - k for k in range(10)}
    small = table(tmp_path, COLUMN='among = "smallest tenth"')
    pretend(small, tmp_path / "out", personal({f"c{k}": k / 10 for k in range(10)}), sizes=sizes)
    assert values(reproduce(small, tmp_path / "out", never)) == [pytest.approx(90)]


@pytest.mark.parametrize(("at", "expected"), [("last", 60.0), ("best", 80.0)])
def test_at(at: str, expected: float, tmp_path: Path) -> None:
    """Means of the rounds 2, 9 and 10: 0.5, 0.8 and 0.6. The best of each client would be 0.95; 9 > 10 as text."""
    lines = personal({"a": 0.9, "b": 0.1}, 2) + personal({"a": 0.8, "b": 0.8}, 9) + personal({"a": 0.2, "b": 1.0}, 10)
    small = table(tmp_path, HEAD=f'at = "{at}"')
    pretend(small, tmp_path / "out", [*reversed(lines)])
    outcome = reproduce(small, tmp_path / "out", never)
    assert values(outcome) == [pytest.approx(expected)]
    assert outcome.at == at


def test_the_best_round_is_that_of_the_columns_clients(tmp_path: Path) -> None:
    """For a alone the first round is the best: 0.9."""
    lines = personal({"a": 0.9, "b": 0.1}, 1) + personal({"a": 0.8, "b": 0.8}, 2)
    small = table(tmp_path, HEAD='at = "best"', COLUMN='[columns.some]\namong = "a"')
    pretend(small, tmp_path / "out", lines)
    found = reproduce(small, tmp_path / "out", never)
    assert (values(found, "all"), values(found, "some")) == ([pytest.approx(80)], [pytest.approx(90)])


def test_validation_is_not_test(tmp_path: Path) -> None:
    lines = [
        *personal({"a": 0.4, "b": 0.6}),
        *((1, "personal", "validation", client, 1.0) for client in "ab"),
        *((2, "personal", "train", client, 0.9) for client in "ab"),
    ]
    small = table(tmp_path)
    pretend(small, tmp_path / "out", lines)
    assert values(reproduce(small, tmp_path / "out", never)) == [pytest.approx(50)]


def test_per_example(tmp_path: Path) -> None:
    """Clients with 0.4 of 30 test examples right and 0.8 of 10: 20 of 40; the mean over clients, 0.6, stands beside.

    The best round by examples is the first (0.5, then 18 of 40), by clients both are 0.6.
    """
    best = table(tmp_path, HEAD='per = "example"\nat = "best"')
    lines = personal({"a": 0.4, "b": 0.8, "c": None}) + personal({"a": 0.3, "b": 0.9, "c": None}, number=2)
    pretend(best, tmp_path / "out", lines, sizes={"a": 1, "b": 1, "c": 1}, examples={"a": 30, "b": 10, "c": 0})
    found = reproduce(best, tmp_path / "out", never)
    number = found.number("personal", "A", "all")
    assert number is not None
    assert number.values == pytest.approx([50.0])
    assert number.by_client == pytest.approx([60.0])
    assert found.document()["cells"]["personal"]["A"]["all"]["by_client"] == pytest.approx([60.0])
    alike = reproduce(table(tmp_path, HEAD='at = "best"'), tmp_path / "out", never)
    assert values(alike) == pytest.approx([60.0])
    assert "by_client" not in alike.document()["cells"]["personal"]["A"]["all"]


def test_clients_without_a_metric_do_not_count(tmp_path: Path) -> None:
    """Their cells are empty; a round where all are is none."""
    lines = personal({"a": None, "b": 0.6}, 1) + personal({"a": None, "b": None}, 2)
    small = table(tmp_path)
    pretend(small, tmp_path / "out", lines)
    assert values(reproduce(small, tmp_path / "out", never)) == [pytest.approx(60)]


def test_older_files_have_nan_where_there_are_no_examples(tmp_path: Path) -> None:
    """`a` never had a test example: its nan is that of nobody, not of a model that diverged."""
    small = table(tmp_path)
    pretend(small, tmp_path / "out", personal({"a": NAN, "b": 0.6}), examples={"a": 0})
    assert values(reproduce(small, tmp_path / "out", never)) == [pytest.approx(60)]


def test_where_nobody_has_test_examples_there_is_no_number(tmp_path: Path) -> None:
    small = table(tmp_path)
    pretend(small, tmp_path / "out", personal({"a": None, "b": None}))
    assert values(reproduce(small, tmp_path / "out", never)) is None


def test_a_client_that_diverged_leaves_no_mean(tmp_path: Path) -> None:
    """0.9, nan and 0.7 are not 0.8. Beside it, 0.9, nothing and 0.7 are; among those who are fine there is a number."""
    small = table(tmp_path, COLUMN='[columns.some]\namong = "a,c"')
    for b, mean in ((NAN, NAN), (None, 80.0)):
        pretend(small, tmp_path / "out", personal({"a": 0.9, "b": b, "c": 0.7}), sizes=dict.fromkeys("abc", 5))
        found = reproduce(small, tmp_path / "out", never)
        assert values(found) == [pytest.approx(mean, nan_ok=True)]
        assert values(found, "some") == [pytest.approx(80)]


def test_a_client_that_diverged_leaves_no_mean_over_examples(tmp_path: Path) -> None:
    small = table(tmp_path, HEAD='per = "example"')
    pretend(small, tmp_path / "out", personal({"a": 0.9, "b": NAN}), examples={"a": 1000, "b": 1})
    number = reproduce(small, tmp_path / "out", never).number("personal", "A", "all")
    assert number is not None
    assert math.isnan(number.values[0])
    assert math.isnan(number.by_client[0])


@pytest.mark.parametrize(("at", "expected"), [("best", 60.0), ("last", NAN)])
def test_a_round_that_diverged_is_not_the_best_but_may_be_the_last(at: str, expected: float, tmp_path: Path) -> None:
    """Means 0.5, 0.6 and, as `b` diverges in the third round, none: what is left of it, 1.0, would be the best."""
    lines = personal({"a": 0.6, "b": 0.4}, 1) + personal({"a": 0.7, "b": 0.5}, 2) + personal({"a": 1.0, "b": NAN}, 3)
    small = table(tmp_path, HEAD=f'at = "{at}"')
    pretend(small, tmp_path / "out", lines)
    assert values(reproduce(small, tmp_path / "out", never)) == [pytest.approx(expected, nan_ok=True)]


def test_the_best_of_rounds_that_all_diverged(tmp_path: Path) -> None:
    small = table(tmp_path, HEAD='at = "best"')
    pretend(small, tmp_path / "out", personal({"a": NAN, "b": 0.4}, 1) + personal({"a": NAN, "b": 0.5}, 2))
    assert values(reproduce(small, tmp_path / "out", never)) == [pytest.approx(NAN, nan_ok=True)]


def test_the_shared_model_where_the_paper_has_it(tmp_path: Path) -> None:
    """A has a published global number, B has none: only A's is shown."""
    lines = [*personal({"a": 0.4, "b": 0.6}), (1, "global", "test", "a", 0.1), (1, "global", "test", "b", 0.3)]
    small = table(tmp_path, ROW="paper_global = {all = 25.0}")
    pretend(small, tmp_path / "out", lines)
    outcome = reproduce(small, tmp_path / "out", never)
    assert beside(outcome, "global", "A", "all") == (25.0, [pytest.approx(20)])
    assert beside(outcome, "personal", "A", "all") == (80.0, [pytest.approx(50)])
    assert list(outcome.cells["global"]) == ["A"]
    assert list(outcome.cells["personal"]) == ["A", "B"]


def test_a_method_without_a_shared_model_has_no_such_number(tmp_path: Path) -> None:
    small = table(tmp_path, ROW="paper_global = {all = 25.0}")
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    assert values(reproduce(small, tmp_path / "out", never), kind="global") is None


@pytest.mark.parametrize("metric", [m.name for m in METRICS])
def test_every_metric_of_classes(metric: str, tmp_path: Path) -> None:
    """Rounds with means of 0.3 and 0.5: the best is the least where less is better. So is the order of the methods.

    The paper has 80 for A and 70 for B; ours are equal here, so the order that it is asked for is seen in the pair.
    """
    less = metric in {"nll", "brier", "ece"}
    small = table(tmp_path, HEAD=f'metric = "{metric}"\nat = "best"\nunit = 1')
    pretend(
        small, tmp_path / "out", personal({"a": 0.2, "b": 0.4}, 1) + personal({"a": 0.6, "b": 0.4}, 2), metric=metric
    )
    outcome = reproduce(small, tmp_path / "out", never)
    assert values(outcome) == [pytest.approx(0.3 if less else 0.5)]
    assert [(pair.better, pair.worse) for pair in outcome.ranking("personal", "all")] == [
        ("B", "A") if less else ("A", "B")
    ]


def test_another_metric(tmp_path: Path) -> None:
    small = table(tmp_path, HEAD='metric = "balanced_accuracy"')
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}), metric="balanced_accuracy")
    outcome = reproduce(small, tmp_path / "out", never)
    assert values(outcome) == [pytest.approx(50)]
    assert outcome.metric == "balanced_accuracy"


@pytest.mark.parametrize(("unit", "expected"), [("0.01", 50.0), ("1", 0.5), ("0.001", 500.0)])
def test_unit(unit: str, expected: float, tmp_path: Path) -> None:
    small = table(tmp_path, HEAD=f"unit = {unit}")
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    assert values(reproduce(small, tmp_path / "out", never)) == [pytest.approx(expected)]


@pytest.mark.parametrize(("unit", "expected"), [("1", 2.0), ("0.5", 4.0)])
def test_seconds(unit: str, expected: float, tmp_path: Path) -> None:
    """The median round of 1, 9 and 2 s, not the evaluation; there is one number, whatever the model. Less is better."""
    small = table(tmp_path, HEAD=f'metric = "seconds"\nunit = {unit}', ROW="paper_global = {all = 25.0}")
    lines = [*personal({"a": 0.4}), (1, "global", "test", "a", 0.1)]
    pretend(small, tmp_path / "out", lines, seconds=[1.0, 9.0, 2.0])
    outcome = reproduce(small, tmp_path / "out", never)
    assert values(outcome) == [pytest.approx(expected)]
    assert "global" not in outcome.cells
    assert [(pair.better, pair.worse) for pair in outcome.ranking("personal", "all")] == [("B", "A")]


def test_parameters(tmp_path: Path) -> None:
    """FedAvg sends softmax regression on 20 inputs to 10 classes, 20 · 10 + 10 = 210 numbers; Local sends nothing.

    Nothing is run. Less is better, so the paper's 300 is behind its 100; ours agree.
    """
    small = table(tmp_path, HEAD='metric = "parameters"\nunit = 10')
    text = small.path.read_text().replace('name = "synthetic"\nskew = "quantity"\nclients = 4\nsamples = 40', DATA)
    small.path.write_text(text)
    outcome = reproduce(read(small.path), tmp_path / "out", never)
    assert (values(outcome), values(outcome, row="B")) == ([21.0], [0.0])
    assert [tuple(pair) for pair in outcome.ranking("personal", "all")] == [("B", "A", "holds")]
    assert not (tmp_path / "out").exists()


DATA = 'name = "noise"\npartition = "iid"\nclients = 2'


def test_seeds_are_values(tmp_path: Path) -> None:
    """Each seed's own folder, in the order of the seeds; the paper's number stands beside, or None does."""
    small = table(tmp_path, HEAD="seeds = 3", COLUMN='[columns.some]\namong = "a"')
    lines = {seed: personal({"a": 0.1 * seed, "b": 0.5}) for seed in range(3)}
    pretend(small, tmp_path / "out", lines)
    outcome = reproduce(small, tmp_path / "out", never)
    assert outcome.seeds == 3
    assert beside(outcome, "personal", "A", "all") == (80.0, [pytest.approx(25), pytest.approx(30), pytest.approx(35)])
    assert beside(outcome, "personal", "B", "some") == (None, [pytest.approx(0), pytest.approx(10), pytest.approx(20)])
    fewer = reproduce(small, tmp_path / "out", never, seeds=2)
    assert (fewer.seeds, values(fewer)) == (2, [pytest.approx(25), pytest.approx(30)])


def test_what_an_outcome_says_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of half a minute each."""
    small = table(tmp_path, HEAD='unknown = ["the learning rate"]\nstand_in = "synthetic data"')
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    outcome = reproduce(small, tmp_path / "out", never)
    assert (outcome.name, outcome.title, outcome.paper) == ("small/table0", "Table 0, a miniature", "Somebody (2024)")
    assert (outcome.scale, outcome.columns, outcome.rows) == ("paper", ["all"], ["A", "B"])
    assert (outcome.unknown, outcome.stand_in) == (["the learning rate"], "synthetic data")
    assert outcome.about["seconds"] == 60.0
    assert outcome.about["version"] == __version__
    assert abs((date.today() - date.fromisoformat(outcome.about["date"])).days) <= 1

    def no_git(*args: Any, **options: Any) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    assert reproduce(small, tmp_path / "out", never).about["commit"] is None


def test_left(tmp_path: Path) -> None:
    """Two methods and two seeds, whose runs two columns share, are four runs in 6 minutes; later there are none."""
    small = table(tmp_path, HEAD="seeds = 2\nminutes = 6", COLUMN='[columns.some]\namong = "a"')
    out = tmp_path / "out"
    assert left(small, out) == Left(4, 6.0)
    assert left(small, out, rows=["B"], seeds=3) == Left(3, 4.5)
    assert left(small, out, columns=["some"]) == Left(4, 6.0), "they are the same runs"
    assert left(small, out, scale="quick") == Left(2, 0.0), "the file does not say how long it takes"
    pretend(small, out, personal({"a": 0.4, "b": 0.6}))
    assert left(small, out) == Left(0, 0.0)
    assert left(small, out, seeds=3) == Left(2, 3.0)


def test_the_time_of_shared_runs_is_counted_once(tmp_path: Path) -> None:
    """Two runs of 30 s, each read by two columns: 60 s of runs."""
    small = table(tmp_path, COLUMN='[columns.some]\namong = "a"')
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    assert reproduce(small, tmp_path / "out", never).about["seconds"] == 60.0


@pytest.mark.parametrize(("among", "wrong"), [("a,c", "'c'"), ("smalest tenth", "smalest tenth")])
def test_clients_that_are_not_there_are_refused(among: str, wrong: str, tmp_path: Path) -> None:
    """Else the number is the mean of others than the paper's."""
    small = table(tmp_path, COLUMN=f'among = "{among}"')
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    with pytest.raises(FedpriorError, match=wrong):
        reproduce(small, tmp_path / "out", never)


# Damage


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"timing": {"sec',
        b"\xff\xfe",
        pytest.param("{}"),
        pytest.param("[]"),
    ],
)
def test_a_damaged_summary_is_told(content: str | bytes, tmp_path: Path) -> None:
    small = table(tmp_path)
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    first = next(small.cells("paper", ["all"], ["A"], 1))
    path = tmp_path / "out" / first.folder / "summary.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FedpriorError) as error:
        reproduce(small, tmp_path / "out", never)
    text = str(error.value)
    assert f"{path.parent}' is damaged" in text
    assert "delete" in text
    assert "\n" not in text


def test_a_lost_history_is_told(tmp_path: Path) -> None:
    """Two seeds, and the metrics of one are gone: a mean over one seed must not pass for one over two."""
    small = table(tmp_path, HEAD="seeds = 2")
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    first = next(small.cells("paper", ["all"], ["A"], 1))
    (tmp_path / "out" / first.folder / "clients.csv").unlink()
    with pytest.raises(FedpriorError, match=first.folder):
        reproduce(small, tmp_path / "out", never)


def test_missing_data_are_told_before_anything_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path / "data"))
    small = table(tmp_path, COLUMN='[columns.more]\nrun.data.name = "digit_domains"')
    with pytest.raises(FedpriorError) as error:
        reproduce(small, tmp_path / "out", never)
    text = str(error.value)
    assert text.startswith("small/table0 needs data")
    for words in ("fetch mnist", "import mnist_m FILE...", "fetch usps"):  # MNIST-M has no source to fetch it from
        assert f"`fedprior data {words}`" in text
    assert "\n" not in text
    assert text.endswith(".")
    assert not (tmp_path / "out").exists()


def test_columns_that_do_not_need_missing_data_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path / "data"))
    small = table(tmp_path, COLUMN='[columns.more]\nrun.data.name = "mnist"')
    assert small.needs == ["mnist"]
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    assert values(reproduce(small, tmp_path / "out", never, columns=["all"])) == [pytest.approx(50)]


@pytest.mark.parametrize("kept", [2, 3], ids=["without the last round", "with a part of it"])
def test_a_run_that_was_cut_short_is_told(kept: int, tmp_path: Path) -> None:
    """It says that it is complete, but of its two rounds and two clients some lines are gone: no number for that."""
    small = table(tmp_path)
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}) + personal({"a": 0.5, "b": 0.7}, number=2))
    for path in (tmp_path / "out").glob("*/clients.csv"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[: 1 + kept]))
    with pytest.raises(FedpriorError, match="is damaged: delete that folder"):
        reproduce(small, tmp_path / "out", never)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"rows": ["C"]}, "unknown row 'C'"), ({"columns": ["al"]}, "'al' in small/table0: did you mean 'all'?")],
)
def test_a_wrong_limit_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(FedpriorError) as error:
        reproduce(table(tmp_path), tmp_path / "out", never, **options)
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


# Runs


FEW = 'among = "newcomers"\n[columns.everyone]'
LATE = "participation.newcomers = 1"


def test_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    """Beside the same configs run one by one: the last round's mean, and the mean of the one newcomer."""
    small = table(tmp_path, HEAD="seeds = 2", RUN=LATE, COLUMN=FEW)
    outcome = reproduce(small, tmp_path / "out", nobody, settings={"workers": 1})
    for row, method in (("A", "fedavg"), ("B", "local")):
        for seed in range(2):
            sections = {**small.run, "method": {"name": method}, "seed": seed, "workers": 1}
            config = parse(sections)
            alone = folders.carry_out(config.setup(config.load_data()), None, None, None)
            test = alone.summary["last"]["personal"]["test"]["accuracy"]["mean"]
            names = alone.federation.clients
            late = names[min(range(4), key=lambda i: Key.from_seed(seed).fold("newcomers", names[i]).word)]
            assert alone.summary["newcomers"] == [late]
            newcomer = alone.journal.values(2, "test")[late]["accuracy"]
            assert newcomer is not None
            assert values(outcome, "everyone", row=row)[seed] == pytest.approx(100 * test)
            assert values(outcome, "all", row=row)[seed] == pytest.approx(100 * newcomer)


def test_runs_are_done_once_and_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns, two seeds, two methods: four runs on two federations. A second time: nothing is run or loaded."""
    small = table(tmp_path, HEAD="seeds = 2", COLUMN='[columns.some]\namong = "client-1,client-2"')
    started, loaded = Started(), []
    load = Config.load_data

    def counted(self: Config) -> Any:
        loaded.append(self.seed)
        return load(self)

    monkeypatch.setattr(Config, "load_data", counted)
    outcome = reproduce(small, tmp_path / "out", started, settings={"workers": 1})
    assert started.runs == [("fedavg", 0), ("local", 0), ("fedavg", 1), ("local", 1)]
    assert loaded == [0, 1]
    assert len(list((tmp_path / "out").iterdir())) == 4
    before = snapshot(tmp_path / "out")
    again = reproduce(small, tmp_path / "out", never, settings={"workers": 2})
    assert again.cells == outcome.cells
    assert again.about["seconds"] == outcome.about["seconds"]
    assert loaded == [0, 1]
    assert snapshot(tmp_path / "out") == before


def test_the_partition_is_the_cells_own(tmp_path: Path) -> None:
    """Columns with other data, and back: what was loaded for one is not used for the next."""
    small = table(tmp_path, COLUMN="[columns.three]\nrun.data.clients = 3\n[columns.seeded]\nrun.data.seed = 5")
    reproduce(small, tmp_path / "out", nobody, rows=["A"], settings={"workers": 1})
    found = {}
    for cell in small.cells("paper", list(small.columns), ["A"], 1):
        summary = json.loads((tmp_path / "out" / cell.folder / "summary.json").read_text())
        found[cell.column] = (len(summary["clients"]), tuple(c["accuracy"] for c in summary["clients"]))
    assert [found[column][0] for column in ("all", "three", "seeded")] == [4, 3, 4]
    assert found["all"] != found["seeded"]


@pytest.mark.parametrize(
    ("stop", "done_before"),
    [
        pytest.param(Started(("local", 0)), 0, id="in the second run"),
        pytest.param(Started(("fedavg", 1), "round", 2), 1, id="after a checkpoint"),
        pytest.param(Started(("fedavg", 0), "evaluation", 2), 2, id="at the end of the first run"),
    ],
)
def test_an_interruption_leaves_no_trace(stop: Started, done_before: int, tmp_path: Path) -> None:
    """What was finished is not touched again; the rest is done; the numbers are those of a table left alone.

    The run that was cut off goes on from its checkpoint, which comes after the round and before the last evaluation.
    """
    small = table(tmp_path, HEAD="seeds = 2")
    whole = reproduce(small, tmp_path / "whole", nobody, settings={"workers": 1})
    stop.runs.clear()
    with pytest.raises(KeyboardInterrupt):
        reproduce(small, tmp_path / "cut", stop, settings={"workers": 1})
    done = [f for f in (tmp_path / "cut").iterdir() if (f / "summary.json").exists()]
    assert len(done) == len(stop.runs) - 1
    before = {f: snapshot(f) for f in done}
    rest = Started()
    resumed = reproduce(small, tmp_path / "cut", rest, settings={"workers": 1})
    assert rest.runs[0] == stop.runs[-1]
    assert len(rest.runs) == 4 - len(done)
    assert {f: snapshot(f) for f in done} == before
    method, seed = stop.runs[-1]
    [continued] = (tmp_path / "cut").glob(f"{method}-seed{seed}-*")
    assert json.loads((continued / "summary.json").read_text())["timing"]["first_round"] == done_before
    assert resumed.cells == whole.cells
    assert without_times(resumed) == without_times(whole)
    for folder in (tmp_path / "whole").iterdir():
        assert (tmp_path / "cut" / folder.name / "clients.csv").read_text() == (folder / "clients.csv").read_text()


def test_another_number_of_workers_goes_on_with_the_same_folders(tmp_path: Path) -> None:
    small = table(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        reproduce(small, tmp_path / "cut", Started(("local", 0)), settings={"workers": 1})
    rest = Started()
    resumed = reproduce(small, tmp_path / "cut", rest, settings={"workers": 2})
    assert rest.runs == [("local", 0)]
    assert resumed.cells == reproduce(small, tmp_path / "whole", nobody, settings={"workers": 1}).cells


@pytest.mark.parametrize("keep", [False, True])
def test_heavy_files(keep: bool, tmp_path: Path) -> None:
    small = table(tmp_path)
    reproduce(small, tmp_path / "out", nobody, keep_models=keep, settings={"workers": 1})
    light = {"config.toml", "events.jsonl", "clients.csv", "logs.csv", "summary.json"}
    heavy = {"models", "checkpoint", "predictions.safetensors", "prior.safetensors"} if keep else set()
    found = [{p.name for p in folder.iterdir()} for folder in (tmp_path / "out").iterdir()]
    assert found == [light | heavy] * 2


def test_heavy_files_go_even_when_their_removal_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, **options: Any) -> None:
        if not options:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reproduce(table(tmp_path), tmp_path / "out", nobody, settings={"workers": 1})
    reproduce(table(tmp_path), tmp_path / "out", nobody, settings={"workers": 1})
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_the_quick_version(tmp_path: Path) -> None:
    """Its own seeds, columns, rows and rounds, in folders of their own; `seeds` counts above all."""
    small = table(
        tmp_path, HEAD="seeds = 3", COLUMN="[columns.more]", QUICK='seeds = 2\nrows = ["B"]\ncolumns = ["all"]'
    )
    started = Started()
    outcome = reproduce(small, tmp_path / "out", started, scale="quick", settings={"workers": 1})
    assert started.runs == [("local", 0), ("local", 1)]
    assert (outcome.scale, outcome.seeds, outcome.rows, outcome.columns) == ("quick", 2, ["B"], ["all"])
    assert outcome.quick == {"rounds": 1}, "what it changes of a run is told"
    for folder in (tmp_path / "out").iterdir():
        assert json.loads((folder / "summary.json").read_text())["rounds"] == 1
    assert reproduce(small, tmp_path / "out", never, scale="quick", seeds=1).seeds == 1


def test_rows_and_columns_can_be_chosen(tmp_path: Path) -> None:
    small = table(tmp_path, COLUMN="[columns.more]\nrun.rounds = 1")
    started = Started()
    outcome = reproduce(small, tmp_path / "out", started, rows=["B"], columns=["more"], settings={"workers": 1})
    assert started.runs == [("local", 0)]
    assert (outcome.rows, outcome.columns) == (["B"], ["more"])
    assert {kind: {row: list(c) for row, c in rows.items()} for kind, rows in outcome.cells.items()} == {
        "personal": {"B": ["more"]}
    }


# What is done so far


def test_so_far(tmp_path: Path) -> None:
    """Of rows A, B, C, columns all, more, none and two seeds: C and `none` were never run, B only in `all`.

    The cell in between has the paper's number alone, and takes no part in the ranking; two commands give the rest.
    """
    columns = "[columns.more]\nrun.rounds = 3\n[columns.none]\nrun.rounds = 4"
    other = '[rows.C]\nmethod = {name = "fedprox"}\npaper = {all = 60.0}'
    small = table(tmp_path, HEAD="seeds = 2", COLUMN=columns, ROW=other)
    out = tmp_path / "out"
    pretend(small, out, personal({"a": 0.4, "b": 0.6}))
    done = {("A", "all"), ("A", "more"), ("B", "all")}
    for cell in small.cells("paper", *small.limited("paper", None, None), 2):
        if (cell.row, cell.column) not in done:
            shutil.rmtree(out / cell.folder, ignore_errors=True)
    before = snapshot(out)
    outcome = reproduce(small, out, never, so_far=True)
    assert snapshot(out) == before
    assert (outcome.rows, outcome.columns, outcome.seeds) == (["A", "B"], ["all", "more"], 2)
    assert outcome.missing == [("B", "more", 0), ("B", "more", 1)]
    assert values(outcome, "more") == [pytest.approx(50), pytest.approx(50)]
    assert beside(outcome, "personal", "B", "more") == (None, [])
    assert beside(outcome, "personal", "B", "all") == (70.0, [pytest.approx(50), pytest.approx(50)])
    assert outcome.ranking("personal", "more") == []
    assert outcome.about["part"] == "2 of 3 columns, 2 of 3 rows, 6 of these 8 runs"
    assert outcome.about["seconds"] == 6 * 30.0
    assert outcome.about["command"] == (
        "fedprior reproduce small/table0 --columns all --rows A,B && "
        "fedprior reproduce small/table0 --columns more --rows A && "
        "fedprior reproduce small/table0 --columns all,more --rows A,B --so-far"
    )


def test_so_far_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers lie in the folders: the data may be gone."""
    small = table(tmp_path)
    pretend(small, tmp_path / "out", personal({"a": 0.4, "b": 0.6}))

    def refuse(self: Table, columns: Iterable[str]) -> None:
        raise AssertionError("it asks for data")

    monkeypatch.setattr(Table, "refuse", refuse)
    outcome = reproduce(small, tmp_path / "out", never, so_far=True)
    assert (outcome.missing, outcome.about["part"]) == ([], "")
    assert outcome.about["command"] == "fedprior reproduce small/table0"


@pytest.mark.parametrize("seeds", [None, 2])
def test_seeds_so_far(seeds: int | None, tmp_path: Path) -> None:
    """One of three seeds: the command asks for that one."""
    small = table(tmp_path, HEAD="seeds = 3")
    pretend(small.model_copy(update={"seeds": 1}), tmp_path / "out", personal({"a": 0.4, "b": 0.6}))
    outcome = reproduce(small, tmp_path / "out", never, so_far=True, seeds=seeds)
    assert (outcome.seeds, outcome.about["part"]) == (1, "1 of 3 seeds")
    assert outcome.about["command"] == "fedprior reproduce small/table0 --seeds 1"


def test_nothing_so_far(tmp_path: Path) -> None:
    with pytest.raises(
        FedpriorError, match=r"nothing of small/table0 is finished in '.*out': run it without --so-far\."
    ):
        reproduce(table(tmp_path), tmp_path / "out", never, so_far=True)
    assert not (tmp_path / "out").exists()


def test_only_what_is_not_known_yet(tmp_path: Path) -> None:
    """One seed of A is known: both of B and the second of A are run, and all together are the whole table."""
    small = table(tmp_path, HEAD="seeds = 2")
    whole = reproduce(small, tmp_path / "whole", Started())
    first = reproduce(small, tmp_path / "first", Started(), seeds=1, rows=["A"])
    started = Started()
    rest = reproduce(small, tmp_path / "rest", started, known=first)
    assert started.runs == [("local", 0), ("fedavg", 1), ("local", 1)]
    assert left(small, tmp_path / "none", known=first).runs == 3
    found = together(small, first, rest, more=True)
    assert without_times(found) == without_times(whole)
    with pytest.raises(FedpriorError, match="have all of these runs: leave out --more"):
        reproduce(small, tmp_path / "rest", never, known=found)


def test_a_seed_waits_for_the_one_before(tmp_path: Path) -> None:
    """The folder has seeds 0 and 2 of a row: only the first is a part that more seeds can be added to."""
    small = table(tmp_path, HEAD="seeds = 3")
    reproduce(small, tmp_path / "out", Started(), rows=["A"])
    second = next(cell.folder for cell in small.cells("paper", ["all"], ["A"], 3) if cell.seed == 1)
    shutil.rmtree(tmp_path / "out" / second)
    found = reproduce(small, tmp_path / "out", never, rows=["A"], so_far=True)
    assert len(values(found)) == 1
    assert found.seeds == 1
