"""Figures: what is drawn of miniature runs, by hand from their history, and how it is drawn and kept."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from fedprior.errors import FedpriorError
from fedprior.experiment.journal import Journal, Observer
from fedprior.papers import Outcome, Table, reproduce, saved
from fedprior.papers.definition import read
from fedprior.report import papers as report
from fedprior.report.charts import palette, spec
from fedprior.report.papers import words
from fedprior.report.papers.drawings import figures

TEXT = """
title = "Figure 0, a miniature"
paper = "Somebody (2024)"
unknown = ["everything"]

[figure]
FIGURE

[run]
rounds = 2
eval_every = 1

[run.data]
name = "synthetic"
skew = "quantity"
clients = 4
samples = 40
DATA

[run.train]
epochs = 1
lr = 0.01

[columns.first]

[columns.second]
run.train.lr = 0.02

[rows.A]
method = {name = "METHOD"}

[rows.B]
method = {name = "local"}
"""


def nobody(method: str, rounds: int) -> Observer | None:
    return None


def make(tmp_path: Path, figure: str, data: str = "", method: str = "fedmap", name: str = "figure0") -> Table:
    path = tmp_path / "papers" / "small" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT.replace("FIGURE", figure).replace("DATA", data).replace("METHOD", method))
    return read(path)


def run(table: Table, tmp_path: Path, **options: Any) -> Outcome:
    return reproduce(table, tmp_path / "runs", nobody, **options)


def history(table: Table, tmp_path: Path, row: str, column: str) -> list[dict[str, Any]]:
    (cell,) = table.cells("paper", [column], [row], 1)
    lines = Journal(tmp_path / "runs" / cell.folder).rows
    return [line for line in lines if line["model"] == "personal" and line["split"] == "test"]


def test_curves_are_means_over_clients(tmp_path: Path) -> None:
    """One value for each method, column and evaluated round: the plain mean of clients.csv, in %."""
    table = make(tmp_path, 'draw = "curves"')
    found = run(table, tmp_path)
    assert len(found.drawn) == 2 * 2 * 2
    lines = [line for line in history(table, tmp_path, "A", "second") if line["round"] == 1]
    (drawn,) = (d for d in found.drawn if (d["row"], d["column"], d["round"]) == ("A", "second", 1))
    assert drawn["value"] == pytest.approx(100 * statistics.fmean(line["accuracy"] for line in lines))
    assert drawn["seed"] == 0


def test_client_curves_have_a_line_per_client(tmp_path: Path) -> None:
    table = make(tmp_path, 'draw = "client curves"')
    found = run(table, tmp_path, rows=["A"], columns=["first"])
    seen = {(d["client"], d["round"]): d["value"] for d in found.drawn}
    lines = history(table, tmp_path, "A", "first")
    assert seen == {(line["client"], line["round"]): pytest.approx(100 * line["accuracy"]) for line in lines}
    assert len(seen) == 4 * 2


def test_clients_by_their_examples(tmp_path: Path) -> None:
    """A metric in the table's unit and a logged quantity as it is, both of the last round, beside the training size."""
    table = make(tmp_path, 'draw = "clients"\nshow = ["accuracy", "log_omega"]')
    found = run(table, tmp_path, rows=["A"], columns=["first"])
    (cell,) = table.cells("paper", ["first"], ["A"], 1)
    logs = {line["client"]: line for line in Journal(tmp_path / "runs" / cell.folder).logs if line["round"] == 2}
    omega = {d["client"]: d for d in found.drawn if d["quantity"] == "log_omega"}
    assert {name: d["value"] for name, d in omega.items()} == {n: line["log_omega"] for n, line in logs.items()}
    assert [omega[f"client-{k}"]["examples"] for k in (1, 4)] == [28, 7]  # 70 % of 40 and of a quarter of that


def test_what_nobody_has_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path, 'draw = "clients"\nshow = ["tau"]')
    with pytest.raises(FedpriorError, match="shows 'tau', which 'A' neither logs nor is judged by"):
        run(table, tmp_path, rows=["A"], columns=["first"])


def test_clients_by_their_corruption(tmp_path: Path) -> None:
    """pFedFDA's rule: of four clients the first two are corrupted, by the first two kinds."""
    data = 'corruption = "published"\ncorrupted = 0.5'
    table = make(tmp_path, 'draw = "clients"\nby = "corruption"', data=data)
    (cell,) = table.cells("paper", ["first"], ["A"], 1)
    from fedprior.papers.figures import _places

    known = {"clients": [{"client": name, "train": 1} for name in "abcd"]}
    placed = {name: found["corruption"] for name, found in _places(table, cell, known).items()}
    assert placed == {"a": "motion_blur", "b": "defocus_blur", "c": "none", "d": "none"}


def test_a_partition_is_drawn_without_a_run(tmp_path: Path) -> None:
    table = make(tmp_path, 'draw = "partition"')
    found = run(table, tmp_path, rows=["B"], columns=["first"])
    assert not (tmp_path / "runs").exists()
    assert [sum(line["counts"].values()) for line in found.drawn] == [28, 28, 7, 7]
    assert set(found.drawn[0]["counts"]) == {"0", "1"}


KINDS = ("curves", "client curves", "clients", "settings", "partition")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_written_and_read_back(kind: str, tmp_path: Path) -> None:
    """Charts that Vega-Lite accepts, on a page that has no drawings of columns; the document is read back alike."""
    table = make(tmp_path, f'draw = "{kind}"')
    outcome = run(table, tmp_path)
    panels = {"curves": 2, "client curves": 4, "clients": 2, "settings": 1, "partition": 2}
    drawings = figures(outcome)
    assert len(drawings) == panels[kind]
    for drawing in drawings:
        drawing.chart.to_dict(validate=True)
        assert spec(drawing.chart)
    stem = tmp_path / "figure0"
    report.write(outcome, stem)
    page = stem.with_suffix(".html").read_text()
    assert page.count("<figure>") == panels[kind]
    assert "Ring: the paper" not in page
    assert "Drawn in [figure0.html](figure0.html)." in stem.with_suffix(".md").read_text()
    again = saved.read(stem.with_suffix(".json"))
    assert again.drawn == json.loads(json.dumps(outcome.drawn))
    assert again.figure == outcome.figure


def test_ten_clients_have_ten_colours() -> None:
    """FedMAP's Figure 1 has ten clients in a panel."""
    assert len(set(palette([f"client-{k}" for k in range(10)]).values())) == 10


@pytest.mark.parametrize(
    ("figure", "drawn"),
    [
        ('draw = "partition"', "examples by label"),
        ('draw = "clients"\nshow = ["accuracy", "log_omega"]', "accuracy in %, log_omega"),
        ('draw = "settings"', "accuracy in %, best round on test, as the paper reports it"),
    ],
)
def test_a_figure_says_what_it_shows(figure: str, drawn: str, tmp_path: Path) -> None:
    """Above it in full; beside the axis without how it was averaged, which is longer than the axis."""
    table = make(tmp_path, figure).model_copy(update={"at": "best"})
    outcome = run(table, tmp_path, rows=["A"])
    assert words.what(outcome) == drawn
    if "settings" in figure:
        (found,) = figures(outcome)
        assert '"title": "accuracy in %"' in json.dumps(spec(found.chart))


def test_parts_of_a_figure_are_merged(tmp_path: Path) -> None:
    """What was drawn before stays, unless it was run again."""
    table = make(tmp_path, 'draw = "curves"')
    first, second = (run(table, tmp_path, rows=[row]) for row in ("A", "B"))
    whole = saved.together(table, saved.together(table, first, second), first)
    key = lambda d: (d["row"], d["column"], d["round"])  # noqa: E731
    assert sorted(whole.drawn, key=key) == sorted(first.drawn + second.drawn, key=key)


def test_shares_of_time(tmp_path: Path) -> None:
    """Seconds in % of the row that is the whole; without such a row a table of shares is refused."""
    text = TEXT.replace("[figure]\nFIGURE\n", "").replace("DATA", "").replace("METHOD", "fedavg")
    path = tmp_path / "papers" / "small" / "table0.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace("unknown =", 'metric = "time_share"\nwhole = "A"\nunit = 1.0\nunknown ='))
    found = run(read(path), tmp_path)
    a, b = (found.cells["personal"][row]["first"].values for row in ("A", "B"))
    assert a == [100.0]
    assert b[0] > 0
    path.write_text(text.replace("unknown =", 'metric = "time_share"\nunknown ='))
    with pytest.raises(FedpriorError, match="give both or neither"):
        read(path)
