"""What a run writes down: exact numbers, and no trace of rounds that will run again."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprior.data.target import Classes
from fedprior.experiment.checkpoint import EMPTY
from fedprior.experiment.journal import Event, Journal, jsonable
from fedprior.experiment.seal import CLIENTS, JOURNALS, Running, Seal
from fedprior.metrics import Cohort, cohort_metrics, metrics_of

METRICS = metrics_of(Classes.numbered(3))
NAMES = ("site-0", 'St. Mary, "North"', "Zürich\nWest")


def cohort(seed: int) -> Cohort:
    """Random predictions of three clients, the last without examples, who has no metrics."""
    rng = np.random.default_rng(seed)
    sizes = (7, 5, 0)
    logits = [rng.normal(size=(n, 3)).astype(np.float32) for n in sizes]
    log_p = [z - np.log(np.exp(z).sum(1, keepdims=True)) for z in logits]
    return cohort_metrics(METRICS, [(p, rng.integers(0, 3, n)) for p, n in zip(log_p, sizes, strict=True)])


def write(folder: Path, rounds: int = 6, every: int = 2) -> Journal:
    """A run of `rounds`, evaluated `every` so many, the last included."""
    journal = Journal(folder)
    for done in range(1, rounds + 1):
        journal.event({"kind": "round", "round": done, "logs": {"loss": 1 / (3 * done)}})
        if done % every == 0:
            journal.evaluation(done, "personal", "test", NAMES, cohort(done))
            journal.event({"kind": "evaluation", "round": done, "score": math.pi / done})
    return journal


def sealed(folder: Path, done: int, *, evaluated: bool = True) -> dict[str, Seal]:
    """What the checkpoint after `done` rounds of `write` covers; with or without the evaluation of the last of them."""
    journal = write(folder, done - 1 if not evaluated else done)
    if not evaluated:
        journal.event({"kind": "round", "round": done, "logs": {"loss": 1 / (3 * done)}})
    return journal.seals()


def load(folder: Path) -> Journal:
    journal = Journal(folder)
    journal.load()
    return journal


def equal(a: list[Event], b: list[Event]) -> bool:
    """Bit for bit, where nan equals nan."""
    return repr(a) == repr(b)


def test_floats_come_back_exactly(tmp_path: Path) -> None:
    """Every metric of every client, among them those that a client cannot have, and names that need quotes."""
    written = write(tmp_path)
    found = load(tmp_path)
    assert equal(found.events, written.events)
    assert equal(found.rows, written.rows)
    assert found.rows[2]["accuracy"] is None
    assert [row["client"] for row in found.rows[:3]] == list(NAMES)


def test_infinite_metrics_come_back(tmp_path: Path) -> None:
    """A label of probability zero has an infinite NLL."""
    journal = Journal(tmp_path)
    with np.errstate(divide="ignore"):
        log_p = np.log(np.array([[1.0, 0.0]], dtype=np.float32))
    journal.evaluation(1, "personal", "test", ("a",), cohort_metrics(METRICS, [(log_p, np.array([1]))]))
    assert load(tmp_path).rows[0]["nll"] == math.inf


def test_the_csv_has_one_header(tmp_path: Path) -> None:
    write(tmp_path)
    text = (tmp_path / "clients.csv").read_text()
    assert text.startswith("round,model,split,client,examples,accuracy,")
    assert text.count("round,model") == 1


def test_rewind_drops_later_rounds(tmp_path: Path) -> None:
    """Back to 3 of 6: rounds 1 to 3 and the evaluation after 2 stay."""
    write(tmp_path)
    journal = Journal(tmp_path)
    journal.rewind(sealed(tmp_path / "part", 3))
    kinds = [(e["kind"], e["round"]) for e in journal.events]
    assert kinds == [("round", 1), ("round", 2), ("evaluation", 2), ("round", 3)]
    assert {row["round"] for row in journal.rows} == {2}
    again = load(tmp_path)
    assert equal(again.events, journal.events)
    assert equal(again.rows, journal.rows)


def test_rewind_drops_the_last_evaluation(tmp_path: Path) -> None:
    """All 6 rounds are done and stay; the final evaluation, which comes after the last checkpoint, runs again."""
    write(tmp_path)
    journal = Journal(tmp_path)
    journal.rewind(sealed(tmp_path / "part", 6, evaluated=False))
    assert [e["round"] for e in journal.events if e["kind"] == "round"] == [1, 2, 3, 4, 5, 6]
    assert [e["round"] for e in journal.events if e["kind"] == "evaluation"] == [2, 4]
    assert {row["round"] for row in journal.rows} == {2, 4}


@pytest.mark.parametrize("done", [0, 1, 2, 4, 5])
def test_rewound_and_written_again_equals_uninterrupted(done: int, tmp_path: Path) -> None:
    """Byte for byte; also when nothing was left, so that the header is written once more."""
    write(tmp_path / "whole")
    write(tmp_path / "cut")
    journal = Journal(tmp_path / "cut")
    journal.rewind(sealed(tmp_path / "part", done) if done else None)
    for r in range(done + 1, 7):
        journal.event({"kind": "round", "round": r, "logs": {"loss": 1 / (3 * r)}})
        if r % 2 == 0:
            journal.evaluation(r, "personal", "test", NAMES, cohort(r))
            journal.event({"kind": "evaluation", "round": r, "score": math.pi / r})
    for name in ("events.jsonl", "clients.csv"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_rewind_of_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new")
    journal.rewind()
    assert (journal.events, journal.rows) == ([], [])


def test_a_cut_off_event_is_dropped(tmp_path: Path) -> None:
    """Cut anywhere in its last line, the file gives the lines before; only a lost newline may leave the line whole."""
    events = write(tmp_path).events
    path = tmp_path / "events.jsonl"
    content = path.read_bytes()
    last = len(content.splitlines(keepends=True)[-1])
    for lost in range(1, last + 1):
        path.write_bytes(content[:-lost])
        found = load(tmp_path).events
        assert len(found) >= len(events) - 1, lost
        assert equal(found, events[: len(found)]), lost


def test_a_cut_off_row_is_dropped(tmp_path: Path) -> None:
    """Cut anywhere in its last line, the file gives the rows before, and never a number with digits missing."""
    journal = Journal(tmp_path)
    journal.evaluation(1, "personal", "test", ("a", "b"), cohort_metrics(METRICS, [_row(0), _row(1)]))
    rows = journal.rows
    path = tmp_path / "clients.csv"
    content = path.read_bytes()
    last = len(content.splitlines(keepends=True)[-1])
    wrong = []
    for lost in range(1, last + 1):
        path.write_bytes(content[:-lost])
        try:
            found = load(tmp_path).rows
        except Exception as error:
            wrong.append((content[-last:-lost], error))
            continue
        if len(found) < len(rows) - 1 or not equal(found, rows[: len(found)]):
            wrong.append((content[-last:-lost], found[-1]["ece"]))
    assert wrong == []


def _row(seed: int) -> Any:
    found = np.random.default_rng(seed).dirichlet(np.ones(3), size=11)
    return np.log(found), np.arange(11) % 3


@pytest.mark.parametrize("numbers", ["", "0.5", "0.5,0.5,0.25,0.1,", "0.5,0.5,0.25,0.1,na", "0.5,0.5,0.25,0.1,2e-"])
def test_a_run_killed_while_it_wrote_goes_on(numbers: str, tmp_path: Path) -> None:
    """The rows of a round without a checkpoint are half there: the rewind forgets them, whatever they look like."""
    write(tmp_path)
    path = tmp_path / "clients.csv"
    text = path.read_text()
    path.write_text(text[: text.index("\n6,personal") + 1] + f"6,personal,test,site-0,7,{numbers}")
    journal = Journal(tmp_path)
    journal.rewind(sealed(tmp_path / "part", 4))
    assert {row["round"] for row in journal.rows} == {2, 4}
    assert len(journal.rows) == 6


def test_the_observer_sees_every_event(tmp_path: Path) -> None:
    seen: list[Event] = []
    journal = Journal(None, seen.append)
    journal.event({"kind": "round", "round": 1})
    journal.event({"kind": "evaluation", "round": 1})
    assert seen == journal.events
    assert list(tmp_path.iterdir()) == []


def test_jsonable() -> None:
    """nan and infinities become null, at any depth and of any kind; the rest stays what it is."""
    value = {
        "a": [float("nan"), 1.5, (float("inf"), -float("inf"))],
        "b": np.array([1.0, np.nan]),
        "c": np.float32(0.5),
        "d": np.int64(3),
        "e": np.bool_(True),
        "f": Path("x") / "y",
        "g": {"h": None, "i": "text", "j": True, "k": 2},
    }
    expected = {
        "a": [None, 1.5, [None, None]],
        "b": [1.0, None],
        "c": 0.5,
        "d": 3,
        "e": True,
        "f": "x/y",
        "g": {"h": None, "i": "text", "j": True, "k": 2},
    }
    assert jsonable(value) == expected
    assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == expected


def test_events_are_strict_json(tmp_path: Path) -> None:
    Journal(tmp_path).event({"kind": "round", "round": 1, "logs": {"loss": float("nan")}})
    text = (tmp_path / "events.jsonl").read_text()
    assert text == '{"kind": "round", "round": 1, "logs": {"loss": null}}\n'


def header(folder: Path, name: str = "clients.csv") -> list[str]:
    return (folder / name).read_text().splitlines()[0].split(",")


def test_every_metric_has_a_column(tmp_path: Path) -> None:
    write(tmp_path)
    assert header(tmp_path) == ["round", "model", "split", "client", "examples", *METRICS]


# What a client cannot have, and what diverged


def test_undefined_is_an_empty_cell_and_diverged_is_nan(tmp_path: Path) -> None:
    """Client a is fine, b's model is not finite, c has no examples: a number, `nan` and nothing, before and after."""
    good, bad = (np.log(np.full((2, 3), 1 / 3)), np.full((2, 3), np.nan))
    three = [(good, np.array([0, 1])), (bad, np.array([0, 1])), (np.empty((0, 3)), np.empty(0, np.int64))]
    journal = Journal(tmp_path)
    journal.evaluation(1, "personal", "test", ("a", "b", "c"), cohort_metrics(METRICS, three))
    lines = [line.split(",") for line in (tmp_path / "clients.csv").read_text().splitlines()]
    nll = lines[0].index("nll")
    assert float(lines[1][nll]) == pytest.approx(math.log(3))
    assert lines[2][nll] == "nan"
    assert lines[3][nll] == ""
    again = load(tmp_path)
    for found in (journal.values(1, "test"), again.values(1, "test")):
        assert math.isnan(found["b"]["nll"] or 0.0)
        assert found["c"]["nll"] is None
    again.rewind(journal.seals())
    assert (tmp_path / "clients.csv").read_text().splitlines() == [",".join(line) for line in lines]


# Files of other versions


OLD = (
    "round,model,split,client,examples,accuracy,balanced_accuracy,f1,nll,ece\n"
    "2,personal,test,site-0,4,0.75,0.5,0.5,0.9,0.1\n"
    "2,personal,test,b,0,nan,nan,nan,nan,nan\n"
    "2,personal,test,c,3,nan,nan,nan,nan,nan\n"
)


def test_the_file_of_an_older_run_is_read(tmp_path: Path) -> None:
    """It lacks the newer metrics, and has nan for a client without examples as for one that diverged."""
    (tmp_path / "clients.csv").write_text(OLD)
    found = load(tmp_path).values(2, "test")
    assert found["site-0"] == {"accuracy": 0.75, "balanced_accuracy": 0.5, "f1": 0.5, "nll": 0.9, "ece": 0.1}
    assert set(found["b"].values()) == {None}
    assert math.isnan(found["c"]["nll"] or 0.0)


def test_the_file_of_an_older_run_goes_on(tmp_path: Path) -> None:
    """Rounds that come have all metrics; those of before keep theirs, and empty cells for the others."""
    (tmp_path / "clients.csv").write_text(OLD)
    journal = Journal(tmp_path)
    journal.rewind(dict.fromkeys(JOURNALS, EMPTY) | {CLIENTS: Running(OLD.encode()).seal(10)})
    journal.evaluation(4, "personal", "test", NAMES, cohort(4))
    journal.evaluation(6, "personal", "test", NAMES, cohort(6))
    assert set(header(tmp_path)) == {"round", "model", "split", "client", "examples", "f1", *METRICS}
    again = load(tmp_path)
    assert again.values(2, "test")["site-0"]["accuracy"] == 0.75
    assert again.values(2, "test")["site-0"]["brier"] is None
    for done in (4, 6):
        assert again.values(done, "test") == {
            name: values | {"f1": None} for name, values in zip(NAMES, cohort(done).clients, strict=True)
        }


def test_a_metric_that_is_not_known_here_is_kept(tmp_path: Path) -> None:
    """A newer version's file: its column is read, and still there after a rewind."""
    write(tmp_path)
    path = tmp_path / "clients.csv"
    first, *rest = path.read_text().replace("\nWest", " West").splitlines()
    path.write_text("\n".join([f"{first},sharpness", *(f"{line},0.25" for line in rest)]) + "\n")
    assert {row["sharpness"] for row in load(tmp_path).rows if row["examples"]} == {0.25}
    lines = path.read_bytes().splitlines(keepends=True)
    covered = Running(b"".join(lines[:7])).seal(len(header(tmp_path)))
    journal = Journal(tmp_path)
    journal.rewind(dict.fromkeys(JOURNALS, EMPTY) | {CLIENTS: covered})
    journal.evaluation(6, "personal", "test", NAMES, cohort(6))
    assert header(tmp_path)[-1] == "sharpness"
    found = load(tmp_path)
    assert found.values(4, "test")["site-0"]["sharpness"] == 0.25
    assert found.values(6, "test")["site-0"]["sharpness"] is None


# Logs of clients


def test_logs_of_clients(tmp_path: Path) -> None:
    """A row for each client that has been updated, with the round of that; a client that never was has none."""
    journal = Journal(tmp_path)
    journal.client_logs(3, NAMES, np.array([3, 1, 0]), {"tau": np.array([0.1, np.nan, 7.0])})
    covered = journal.seals()
    journal.client_logs(6, NAMES, np.array([3, 5, 6]), {"tau": np.array([0.1, 2.5, 7.5]), "rho": np.arange(3.0)})
    expected = [
        {"round": 3, "client": NAMES[0], "updated": 3, "tau": 0.1, "rho": None},
        {"round": 3, "client": NAMES[1], "updated": 1, "tau": math.nan, "rho": None},
        {"round": 6, "client": NAMES[0], "updated": 3, "tau": 0.1, "rho": 0.0},
        {"round": 6, "client": NAMES[1], "updated": 5, "tau": 2.5, "rho": 1.0},
        {"round": 6, "client": NAMES[2], "updated": 6, "tau": 7.5, "rho": 2.0},
    ]
    assert equal(load(tmp_path).logs, expected)
    again = Journal(tmp_path)
    again.rewind(covered)
    assert equal(again.logs, [{k: v for k, v in row.items() if k != "rho"} for row in expected[:2]])
    assert again.seals() == covered, "the column that came later is gone too"


def test_a_journal_with_a_folder_takes_no_memory(tmp_path: Path) -> None:
    """A hundred evaluations of a hundred clients are a megabyte on disk, and nothing to remember."""
    journal, clients = Journal(tmp_path), [f"client-{k}" for k in range(100)]
    many = Cohort([{"nll": k / 7} for k in range(100)], np.arange(100), 100, 0, {})
    journal.evaluation(0, "personal", "test", clients, many)
    journal.event({"kind": "evaluation", "round": 0})
    tracemalloc.start()
    for done in range(1, 101):
        journal.evaluation(done, "personal", "test", clients, many)
        journal.event({"kind": "evaluation", "round": done, "scores": [0.5] * 1000})
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 10_000
    assert (len(journal.events), len(journal.rows)) == (101, 101 * 100)
    assert journal.values(57, "test")["client-7"] == {"nll": 1.0}
