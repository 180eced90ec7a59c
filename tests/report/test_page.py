"""Reports: what they tell, that names and texts stay text, and that nothing is loaded from anywhere."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import altair as alt
import numpy as np
import pandas as pd
import pytest

import fedprior
from fedprior.data.federation import Federation, from_arrays
from fedprior.data.target import Number
from fedprior.errors import FedpriorError
from fedprior.experiment import Comparison, Result
from fedprior.experiment.assessment import LEAST
from fedprior.experiment.repeated import assess
from fedprior.methods import build
from fedprior.metrics import metrics_of
from fedprior.report.charts import outcomes, spec
from fedprior.report.page import folder as folders
from fedprior.report.page import learned, sections
from fedprior.report.page.blocks import Block, Choice, Code, Column, Details, Figure, Prose, Section, Side, Store, Table
from fedprior.report.page.document import Page, document, main
from fedprior.report.page.facts import RunFacts, data_name, story
from fedprior.report.page.repeated import assessed
from fedprior.report.page.sections import _within, report
from support import TRAIN, regression

NASTY = '</script><img src=x onerror="bad()">'


def sites(count: int = 3, rows: int = 80) -> Federation:
    """Sites whose second class lies at different places; one has a name that would like to be a script."""
    return from_arrays(raw(count, rows), name="three")


def raw(count: int = 3, rows: int = 80) -> dict[str, tuple[Any, Any]]:
    names = [NASTY, *(f"site {k}" for k in range(1, count))]
    clients: dict[str, tuple[Any, Any]] = {}
    for k, name in enumerate(names):
        rng = np.random.default_rng(k)
        y = np.arange(rows) % 2
        clients[name] = (rng.normal(size=(rows, 2)) + y[:, None] * [1.5, 0.3 * k], y)
    return clients


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Local, FedAvg-FT and pFedVEM, which logs what it learns, in a folder."""
    out = tmp_path_factory.mktemp("report") / "out"
    return fedprior.compare([build("pfedvem", train=TRAIN)], sites(), rounds=4, out=out, eval_every=2)


@pytest.fixture(scope="module")
def page(compared: Comparison) -> str:
    return document(report(story(compared)))


def documents(text: str) -> list[Any]:
    """The data of a page's charts and tables."""
    [found] = re.findall(r'<script type="application/json" id="documents">(.*?)</script>', text, re.DOTALL)
    return list(json.loads(found))


def headings(text: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", text.partition("<script>")[0])


def rows_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for rows in chart["datasets"].values() for row in rows]


# What it tells


def test_the_verdict_comes_first_and_counts_sites(compared: Comparison, page: str) -> None:
    best = compared[compared.best or ""]
    lead = page.index('class="lead"')
    assert lead < page.index("<figure>")
    told = story(compared)
    assert told.text.startswith(f"{best.method.about.title} has the lowest validation NLL of 3 methods.")
    assert told.recommended == compared.best


def test_gains_are_those_of_the_result(compared: Comparison) -> None:
    """In nats, with the bootstrap's interval; helps and harms where it does not reach zero."""
    facts, gain = story(compared).runs["pfedvem"], compared["pfedvem"].gain("nll")
    assert [own.gain_nll.mean for own in facts.sites.values()] == gain.clients.tolist()
    for own in facts.sites.values():
        assert own.n_test >= LEAST
        expected = "helps" if own.gain_nll.low > 0 else "harms" if own.gain_nll.high < 0 else "no difference"
        assert own.verdict == expected
    assert facts.mean["nll"].mean == pytest.approx(gain.clients.mean())


def test_few_test_examples_tell_nothing() -> None:
    small = fedprior.compare([build("fedavg", train=TRAIN)], sites(rows=30), rounds=1)
    told = story(small)
    assert {own.verdict for own in told.runs["fedavg"].sites.values()} == {"cannot tell"}
    assert all(own.n_test < LEAST for own in told.runs["fedavg"].sites.values())


def test_every_section_is_there(page: str) -> None:
    titles = headings(page)
    assert titles == [
        "What to make of it",
        "What each site gains",
        "Learning curves",
        "Are the predictions as sure as they should be?",
        "How the sites differ",
        "What the method learned about each site",
        "What was sent",
        "How it was run",
    ]
    assert "rounds = 4" in page
    assert "fedprior.run" not in page
    assert "the same calls" in page, "its data came from Python"


def test_curves_mark_the_selected_round(compared: Comparison, page: str) -> None:
    """Two evaluations, two splits and three methods; of each method's rounds one is selected."""
    [nll] = [d for d in documents(page) if "layer" in d and _title(d, "y") == "NLL"]
    rows = rows_of(nll)
    assert len(rows) == 2 * 2 * 3
    chosen = {(row["series"], row["round"]) for row in rows if row["selected"]}
    assert chosen == {(result.method.about.title, result.selected) for result in compared.values()}
    assert {row["split"] for row in rows} == {"validation", "test"}


def _title(chart: dict[str, Any], axis: str) -> Any:
    return chart["layer"][0].get("encoding", {}).get(axis, {}).get("title")


def test_what_a_method_logs_is_drawn(page: str) -> None:
    found = [d["encoding"]["x"]["title"] for d in documents(page) if "encoding" in d]
    assert {"tau", "rho", "deviation"} <= set(found)


def test_what_a_method_says_of_itself_is_shown() -> None:
    """The stack's weights: a bar per site that adds up to one, and its sentences."""
    result = fedprior.run(build("stack", train=TRAIN), sites(), rounds=2)
    text = main(report(story(result)))
    assert "For all sites together:" in text
    [chart] = [d for d in documents(text) if d.get("encoding", {}).get("x", {}).get("title") == "weight"]
    rows = rows_of(chart)
    names = list(dict.fromkeys(row["site"] for row in rows))
    assert names == ["all sites together", NASTY, "site 1", "site 2"]
    for name in names:
        assert sum(row["value"] for row in rows if row["site"] == name) == pytest.approx(1, abs=1e-3)


def test_effects_are_drawn_with_their_intervals() -> None:
    """Those of a mixed model: per input, and per site and input; the intercept has another scale."""
    result = fedprior.run(build("mixed", train=TRAIN), regression(), rounds=3)
    found = documents(main(report(story(result))))
    charts = [d for d in found if "layer" in d and _title_of(d) == "estimate, 95 % interval"]
    assert len(charts) >= 1
    for chart in charts:
        rows = [row for row in rows_of(chart) if "site" in row]
        assert rows
        assert all(row["low"] <= row["value"] <= row["high"] for row in rows if row["low"] is not None)
        assert not any("intercept" in row["site"] for row in rows)


def _title_of(chart: dict[str, Any]) -> Any:
    return chart["layer"][1].get("encoding", {}).get("x", {}).get("title")


def test_a_curve_is_not_squeezed_by_what_went_astray() -> None:
    """Three quarters lie within 1 of the least, 1: beyond 2 + 10 nothing is drawn, which is said."""
    rows = [{"value": float(v)} for v in (1, 2, 2, 2, 2, 2, 11, 1e26)]
    kept, told = _within(rows)
    assert [row["value"] for row in kept] == [1, 2, 2, 2, 2, 2, 11]
    assert told == "1 values above 12 are not drawn."
    assert _within(rows[1:4]) == (rows[1:4], "")


def test_calibration_before_and_after(compared: Comparison) -> None:
    told = story(compared)
    plain = told.runs["pfedvem"]
    other = RunFacts("pfedvem+cal", "pFedVEM+cal", plain.journal, 4, reliability=plain.reliability)
    runs = {**told.runs, "pfedvem+cal": other}
    found = documents(main(report(type(told)(**{**vars(told), "runs": runs, "recommended": "local"}))))
    [chart] = [d for d in found if "layer" in d and _title(d, "x") is None and "claimed" in json.dumps(d)]
    series = chart["layer"][1]["encoding"]["color"]["scale"]["domain"]
    assert series == ["Local", "pFedVEM", "pFedVEM+cal"]


def test_a_regression_has_intervals_instead_of_probabilities() -> None:
    result = fedprior.run(build("fedavg", train=TRAIN), regression(), rounds=2, reference="local")
    text = main(report(story(result)))
    assert "level of the interval" in text
    assert "RMSE" in text
    assert "Accuracy" not in text


def test_a_run_without_local_has_no_gains(tmp_path: Path) -> None:
    result = fedprior.run(build("fedavg", train=TRAIN), sites(1), rounds=1)
    text = result.report(tmp_path / "a.html").read_text()
    assert "Without Local beside it" in text
    assert "gain over Local" not in text
    assert "1 site · 1 rounds" in text


def test_many_sites_are_listed_and_some_are_drawn() -> None:
    rows = [{"site": f"s{k}", "gain": k, "low": k - 1, "high": k + 1, "series": "helps", "n": 9} for k in range(1000)]
    drawn = [row["site"] for row in rows_of(spec(outcomes.gains(rows, "nats"))) if "site" in row]
    assert len(drawn) == outcomes.DRAWN
    assert (drawn[0], drawn[19], drawn[20], drawn[-1]) == ("s999", "s980", "s19", "s0")
    assert outcomes.cut(rows, "gain") == "40 of 1,000 sites are drawn, half from each end, by gain."


def test_every_chart_is_valid_vega_lite(compared: Comparison) -> None:
    """Pages are written without this check, which takes seconds."""

    def figures(block: Any) -> list[alt.TopLevelMixin]:
        if isinstance(block, Figure):
            return [block.chart]
        inner = getattr(block, "blocks", [])
        inner = [b for blocks in block.options.values() for b in blocks] if isinstance(block, Choice) else inner
        return [chart for b in inner for chart in figures(b)]

    charts = figures(report(story(compared)))
    assert len(charts) >= 10
    for chart in charts:
        chart.to_dict(validate=True)


def test_a_method_has_one_colour(page: str) -> None:
    """In the curves and in the reliability; Local's is grey."""
    scales = [d["layer"][1]["encoding"]["color"]["scale"] for d in documents(page) if "layer" in d]
    found: dict[str, set[str]] = {}
    for scale in scales:
        for name, colour in zip(scale["domain"], scale["range"], strict=True):
            found.setdefault(name, set()).add(colour)
    assert found["Local"] == {"#8c8c8c"}
    assert all(len(colours) == 1 for colours in found.values())


# Repeated splits


def test_repeated_splits_are_told_together(tmp_path: Path) -> None:
    """Means over both splits in the tables, gains with the verdicts' intervals for every method."""
    frames = [pd.DataFrame({"site": name, "a": x[:, 0], "b": x[:, 1], "y": y}) for name, (x, y) in raw().items()]
    found = assess(
        pd.concat(frames), site="site", target="y", methods=["local", "fedavg"], splits=2, rounds=2, train={"epochs": 1}
    )
    told = assessed(found)
    assert told.splits == 2
    assert told.text == found.verdict.text
    nll = [split["fedavg"].mean("nll") for split in found.values()]
    assert told.runs["fedavg"].score("nll") == pytest.approx(sum(nll) / 2)
    assert told.runs["fedavg"].sites == found.gains("fedavg")
    assert told.runs["fedavg"].mean["nll"].mean == pytest.approx(found.methods["local"]["nll"] - sum(nll) / 2)
    tested = sum(split["fedavg"].federation.test.size[1] for split in found.values())
    assert told.runs["fedavg"].values()["site 1"]["examples"] == tested
    assert sum(point.n for point in told.runs["local"].reliability) == 3 * tested
    text = found.report(tmp_path / "a.html").read_text()
    assert "Benjamini-Hochberg" in text
    assert "Pooled rows with site effects (reference)" in text


def test_r2_is_for_a_single_split() -> None:
    """Two test rows of a site can make it -100, and a mean over sites and splits says nothing."""
    stories = [SimpleNamespace(metrics=metrics_of(Number()), splits=splits) for splits in (1, 5)]
    once, often = ([metric.name for metric in sections._shown(cast(Any, story))] for story in stories)
    assert "r2" in once
    assert often == [name for name in once if name != "r2"]


def test_the_logs_of_an_expert_are_named_as_people_name_it() -> None:
    assert learned._title("fedavg_ft.temperature") == "FedAvg-FT: temperature of the predictions"
    assert learned._title("mask_share") == "share of the parameters that are personal"


# Text stays text


def test_nothing_in_a_name_is_markup(page: str) -> None:
    """The name is in the data, spelled so that no parser sees it; elsewhere it is escaped."""
    assert page.lower().count("<script") == 3
    assert "<img" not in page.partition("<script>")[0]
    shown = [d for d in documents(page) if "rows" in d and any(NASTY in map(str, row) for row in d["rows"])]
    assert shown, "and the script gets it as it is"


@pytest.mark.parametrize("told", [NASTY, "<b>", "a&b", '"x"', "\x1b[31m", "\u202e"])
def test_texts_are_escaped(told: str) -> None:
    store = Store()
    blocks: list[Block] = [Prose(told), Code(told), Section(told, [Prose("x")]), Details(told, []), Side([Prose(told)])]
    text = "".join(block.html(store) for block in blocks) + Choice(told, {told: [], "b": []}, told).html(store)
    assert not re.search(r"<(?!/?(?:p|pre|code|section|h2|details|summary|div|label|select|option)[ >])", text)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_what_is_not_finite_is_an_empty_cell() -> None:
    store = Store()
    Table([Column("a", 1)], [[float("nan")], [float("inf")], [1.0]]).html(store)
    assert store.documents[0]["rows"] == [[None], [None], [1.0]]


# One file


def test_only_the_pages_own_scripts_may_run(page: str) -> None:
    """Their checksums are in the policy, which forbids everything else, connections too."""
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert not re.search(r'(?:src|href)="', page.partition("<script>")[0])
    assert len(page) < 1.3e6


def test_watched_pages_may_ask_their_server() -> None:
    assert "connect-src 'self'" in document(Page("x"), watched=True)


# Files and folders


def test_a_folder_is_not_a_page(compared: Comparison, tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match="is a folder: give the path of the page"):
        compared.report(tmp_path)


def test_a_result_writes_its_page(compared: Comparison, tmp_path: Path) -> None:
    result: Result = compared["pfedvem"]
    path = result.report(tmp_path / "new" / "page.html")
    assert path.read_text().startswith("<!doctype html>")


def test_a_folder_whose_data_came_from_python(compared: Comparison, tmp_path: Path) -> None:
    """The journals tell what they can: metrics, curves, logs and bytes, but neither labels nor reliability."""
    place = compared["local"].journal.folder
    assert place is not None
    text = folders.write(place.parent, tmp_path / "a.html").read_text()
    titles = headings(text)
    assert "Learning curves" in titles
    assert "How the sites differ" not in titles
    assert "Finished. This page has what the journals tell" in text


def test_a_run_under_way_tells_how_far_it_is(compared: Comparison, tmp_path: Path) -> None:
    """A journal of two of four rounds, as it is after an interruption."""
    source = compared["pfedvem"].journal.folder
    assert source is not None
    for name in ("config.toml", "clients.csv", "logs.csv"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    lines = (source / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["round"] <= 2]
    (tmp_path / "events.jsonl").write_text("".join(kept) + '{"kind": "rou')
    told = folders.from_files(tmp_path)
    assert not told.finished
    text = main(report(told))
    assert "Still running. pFedVEM: round 2 of 4, best so far on validation: round 2." in text
    assert "Learning curves" in text


def test_a_folder_that_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match="holds no run: give the output folder"):
        folders.write(tmp_path, tmp_path / "a.html")


def test_a_table_is_called_by_its_file() -> None:
    assert data_name("csv", {"path": "a/hospitals.csv"}) == "hospitals.csv"
    assert data_name("digits", {"path": "x"}) == "digits"
