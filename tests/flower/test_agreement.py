"""From the first question to every site's model: agreement by schema and sums, equal to the simulator on the tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

import fedprior
from fedprior.cli.main import app
from fedprior.data.schema import Schema
from fedprior.data.site_table import Reading, SiteTable, pooled
from fedprior.errors import FedpriorError
from fedprior.experiment.loop import execute
from fedprior.experiment.result import Result
from fedprior.experiment.wording import privacy
from fedprior.flower.agreement import configured
from fedprior.flower.here import Here
from fedprior.flower.node import Node
from fedprior.flower.orders import Reply
from fedprior.flower.serve import Plan, serve

SITES = ("aachen", "bonn", "cologne")


def table(
    site: str, *, number: bool = False, count: bool = False, gaps: bool = False, rare: bool = False
) -> pd.DataFrame:
    rng = np.random.default_rng(SITES.index(site))
    n = 30 + 7 * SITES.index(site)
    age, stage = rng.normal(60, 10, n).round(1), rng.choice(["I", "II", "III"], n)
    risk = 0.05 * (age - 60) + (stage == "III") + rng.normal(0, 0.5, n)
    frame = pd.DataFrame({"age": age, "stage": stage, "smoker": rng.choice(["no", "yes"], n)})
    frame["outcome"] = (50 + 10 * risk).round(3) if number else np.where(risk > 0, "ill", "well")
    if count:
        frame["outcome"] = np.floor(np.exp(risk / 2)).astype(int)
    if gaps:
        frame.loc[::9, "age"] = np.nan
    if rare and site == "bonn":
        frame.loc[4:, "age"] = np.nan
    return frame


def tables(folder: Path, **options: bool) -> dict[str, Path]:
    found = {}
    for site in SITES:
        found[site] = folder / f"{site}.csv"
        table(site, **options).to_csv(found[site], index=False)
    return found


def nodes(paths: Mapping[str, Path], state: Path) -> Here:
    def answer(site: str, document: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Reply:
        return Node(site, paths[site], state).answer(document, arrays)

    return Here(answer)


def schema(paths: Mapping[str, Path]) -> Schema:
    frame = pd.concat([pd.read_csv(path) for path in paths.values()])
    kinds = {"outcome": "count"} if pd.api.types.is_integer_dtype(frame["outcome"]) else {}
    return Schema.inferred(frame, target="outcome", kinds=kinds)


def plan(paths: Mapping[str, Path], **sections: Any) -> Plan:
    config = {"rounds": 2, "eval_every": 1, "method": {"name": "fedmap"}, **sections}
    return Plan("trial", tuple(paths), schema(paths), config)


def simulated(given: Plan, paths: Mapping[str, Path]) -> Result:
    config = configured(given.config)
    reading = Reading.of(config.data)
    data = pooled({s: SiteTable.read(s, p, given.schema, reading, config.seed) for s, p in paths.items()})
    setup = config.setup(data)
    return execute(setup.method, setup.federation, setup.settings, model=setup.model)


@pytest.mark.parametrize(
    ("options", "data"),
    [
        ({}, {}),
        ({}, {"scaling": "shared"}),
        ({"gaps": True}, {"scaling": "shared", "missing": "median"}),
        ({"rare": True}, {"scaling": "shared", "missing": "median"}),
        ({"gaps": True}, {"missing": "median", "validation": 0.2}),
        ({"number": True}, {"scaling": "shared"}),
        ({"count": True}, {"scaling": "shared"}),
    ],
)
def test_tables_at_their_sites_equal_the_simulator(options: Any, data: Any, tmp_path: Path) -> None:
    paths = tables(tmp_path, **options)
    given = plan(paths, data=data)
    found = serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    expected = simulated(given, paths)
    assert found.values == expected.values
    assert found.selected == expected.selected
    for site, path in paths.items():
        own = fedprior.load_model(tmp_path / "state" / "trial" / site / "model.safetensors")
        for name, values in expected.arrays(site).items():
            assert np.array_equal(own.arrays[name], values), (site, name)
        rows = pd.read_csv(path).drop(columns="outcome")
        assert np.array_equal(own.predict(rows), expected.predict(site, rows))
        assert_kept(tmp_path / "state" / "trial" / site, expected, site)


@pytest.mark.parametrize("scaling", ["own", "shared"])
def test_a_site_that_comes_later_joins_from_its_table(scaling: str, tmp_path: Path) -> None:
    """The server's prior says how inputs are prepared, as the simulator's does; the model is the same."""
    paths = tables(tmp_path, gaps=True)
    late = paths.pop("cologne")
    given = plan(paths, data={"scaling": scaling, "missing": "median"})
    serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    prior = fedprior.load_prior(tmp_path / "run" / "prior.safetensors")
    rows = pd.read_csv(late)
    found = fedprior.join(prior, rows, "cologne", draws=0).model
    expected = fedprior.join(simulated(given, paths).prior, rows, "cologne", draws=0).model
    assert np.array_equal(found.predict(rows), expected.predict(rows))
    (tmp_path / "received").mkdir()
    received = shutil.copy(tmp_path / "run" / "prior.safetensors", tmp_path / "received")
    for place in (tmp_path / "run", received):
        told = CliRunner().invoke(app, ["join", str(place), str(late), "--draws", "0"])
        assert told.exit_code == 0, told.output
    both = [(tmp_path / place / "joined" / "cologne.safetensors").read_bytes() for place in ("run", "received")]
    assert both[0] == both[1]


def assert_kept(folder: Path, expected: Result, site: str) -> None:
    """What a site has at the end: its metrics are the simulator's, and people can read them."""
    summary = json.loads((folder / "summary.json").read_text())
    own = next(row for row in summary["clients"] if row["client"] == site)
    assert {name: own[name] for name in expected.values[site]} == expected.values[site]
    others = [row for row in summary["clients"] if row["client"] != site]
    assert all(row.keys() == {"client", "train", "validation", "test"} for row in others), "nobody else's metrics"
    assert [entry["round"] for entry in summary["evaluations"]] == [1, 2]
    assert (summary["selected"]["round"], summary["rounds"]) == (expected.selected, 2)
    card = (folder / "model-card.md").read_text()
    assert card.startswith(f"# Model of {site}\n")
    assert "## Quality on the site's test rows" in card
    page = (folder / "report.html").read_text()
    assert f"<h1>{site}, experiment trial</h1>" in page
    assert "weights of the local model" in page


def test_nothing_but_what_was_asked_for_leaves_a_site(tmp_path: Path) -> None:
    """Every message of a whole run: no value of the table is in any of them."""
    paths = tables(tmp_path)
    link, seen = nodes(paths, tmp_path / "state"), []
    honest = link.answer

    def listening(site: str, document: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Reply:
        reply = honest(site, document, arrays)
        seen.append((document["kind"], reply))
        return reply

    link.answer = listening
    serve(link, plan(paths), tmp_path / "run")
    assert [kind for kind, _ in seen] == ["check"] * 3 + ["round"] * 9 + ["finish"] * 3
    for kind, reply in seen:
        keys = set(reply.document)
        assert keys <= {"version", "problems", "sizes", "round", "refused", "logs", "scores", "finished"}, kind
    lines = (tmp_path / "state" / "trial" / "bonn" / "sent.jsonl").read_text().splitlines()
    audit = [json.loads(line) for line in lines]
    assert [entry["kind"] for entry in audit] == ["check", "round", "round", "round", "finish"]
    counted = sum(field["bytes"] for entry in audit for field in entry["fields"])
    assert counted == sum(int(v.nbytes) for kind, reply in seen[4::3] for v in reply.arrays.values())


def test_of_an_input_with_few_known_values_no_sum_leaves(tmp_path: Path) -> None:
    """The mean of one value is the value. Where no site may say anything, there is nothing to scale by."""
    paths = tables(tmp_path, rare=True)
    given = plan(paths, data={"scaling": "shared", "missing": "median"})
    asked = {"kind": "check", "experiment": "trial", "site": "bonn", "config": dict(given.config)}
    asked["schema"] = given.schema.document()
    reply = Node("bonn", paths["bonn"], tmp_path / "state").answer(asked, {})
    age = list(given.schema.inputs).index("age")
    assert [float(values[age]) for values in reply.arrays.values()] == [0.0, 0.0, 0.0, 0.0]
    assert all(values[age + 1] > 0 for name, values in reply.arrays.items() if name == "n")
    for path in paths.values():
        pd.read_csv(path).head(6).to_csv(path, index=False)
    with pytest.raises(FedpriorError, match="has 5 training"):
        serve(nodes(paths, tmp_path / "fewer"), given, tmp_path / "run")


def test_a_table_that_does_not_fit_is_told_by_columns_and_never_by_values(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    given = plan(paths)
    frame = table("bonn")
    frame["age"] = frame["age"].astype(object)
    frame.loc[0, "age"] = "patient 4711"
    frame.loc[1, "stage"] = "secret level"
    frame.drop(columns="smoker").to_csv(paths["bonn"], index=False)
    with pytest.raises(FedpriorError) as told:
        serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    message = str(told.value)
    assert message.startswith("1 of 3 sites cannot take part: 'bonn': ")
    assert "column 'age' (number): 1 rows hold something else" in message
    assert "there is no column 'smoker'" in message
    assert "4711" not in message
    assert "secret" not in message
    assert not (tmp_path / "run").exists()


def test_an_exception_at_a_site_is_a_code(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    (tmp_path / "bonn.csv").write_bytes(b"\xff\xfe patient 4711")
    order = {"kind": "check", "experiment": "trial", "site": "bonn"}
    reply = Node("bonn", paths["bonn"], tmp_path / "state").answer(
        {**order, "config": {"method": {"name": "fedavg"}}, "schema": {"patient": 4711}},
        {},
    )
    assert reply == Reply({"refused": "order"})
    given = plan({s: p for s, p in paths.items() if s != "bonn"})
    lacking = {**order, "config": {"method": {"name": "of a newer version"}}, "schema": given.schema.document()}
    assert Node("bonn", paths["bonn"], tmp_path / "state").answer(lacking, {}) == Reply({"refused": "order"})
    asked = {**order, "config": dict(given.config), "schema": given.schema.document()}
    assert Node("bonn", paths["bonn"], tmp_path / "state").answer(asked, {}) == Reply({"refused": "table"})
    log = (tmp_path / "state" / "trial" / "bonn" / "errors.log").read_text()
    assert "is not UTF-8 text" in log, "the site's own log has it all"


def test_a_table_that_changes_under_way_is_refused(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    given = plan(paths, rounds=1)
    serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    frame = pd.read_csv(paths["bonn"])
    frame["age"] = frame["age"] ** 2
    frame.to_csv(paths["bonn"], index=False)
    again = nodes(paths, tmp_path / "state")
    agreement = json.loads((tmp_path / "run.agreement.json").read_text())
    finish = {"kind": "finish", "selected": 1, "experiment": "trial", "agreement": agreement}
    assert again.answer("bonn", {**finish, "site": "bonn"}, {}) == Reply({"refused": "changed"})
    assert again.answer("aachen", {**finish, "site": "aachen"}, {}) == Reply({"finished": True})


@pytest.mark.parametrize("method", [{"name": "fedavg+dp"}, {"name": "stack", "experts": ["local", "fedavg+dp"]}])
def test_a_real_federation_hides_its_noise(
    method: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites know the seed, so the server keeps a secret that only it can read, also if the noise is a part of a mix."""
    monkeypatch.setenv("FEDPRIOR_DP_SECRET", "")
    paths = tables(tmp_path)
    serve(nodes(paths, tmp_path / "state"), plan(paths, rounds=1, method=method), tmp_path / "run")
    kept = tmp_path / "run.dp-secret"
    assert kept.stat().st_mode & 0o077 == 0
    assert len(kept.read_text()) == 64
    sent = "".join(path.read_text() for path in (tmp_path / "state").rglob("agreement.json"))
    assert kept.read_text() not in sent


@pytest.mark.parametrize(
    ("number", "change", "why"),
    [
        (False, lambda r: r._replace(arrays={}), "'bonn': its sums were rejected: it lacks 'mean' and 3 more"),
        (
            False,
            lambda r: r._replace(arrays={k: v * np.nan for k, v in r.arrays.items()}),
            "'bonn': its sums were rejected: 'n' is not finite",
        ),
        (True, lambda r: r._replace(document={**r.document, "labels": "4711"}), "'bonn': its sums cannot be read"),
        (True, lambda r: r._replace(document={**r.document, "labels": [3, 1e999]}), "'bonn': its sums are not finite"),
    ],
)
def test_sums_that_make_no_sense_are_rejected_with_the_sites_name(
    number: bool, change: Any, why: str, tmp_path: Path
) -> None:
    paths = tables(tmp_path, number=number)
    link = nodes(paths, tmp_path / "state")
    honest = link.answer
    link.answer = lambda site, *asked: change(honest(site, *asked)) if site == "bonn" else honest(site, *asked)
    with pytest.raises(FedpriorError, match=why):
        serve(link, plan(paths, data={"scaling": "shared"}), tmp_path / "run")


def test_a_site_with_the_key_of_another_is_refused(tmp_path: Path) -> None:
    """The server knows sites by their keys: with swapped folders, each would be asked in the other's name."""
    paths = tables(tmp_path)
    swapped = {"aachen": "bonn", "bonn": "aachen", "cologne": "cologne"}

    def answer(site: str, document: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Reply:
        return Node(swapped[site], paths[swapped[site]], tmp_path / "state").answer(document, arrays)

    with pytest.raises(FedpriorError, match="2 of 3 sites cannot take part: 'aachen': its key is that of another site"):
        serve(Here(answer), plan(paths), tmp_path / "run")
    assert "this is 'bonn'" in (tmp_path / "state" / "trial" / "bonn" / "errors.log").read_text()


@pytest.mark.parametrize("rows", [None, 0, 1])
def test_a_table_with_next_to_nothing_is_refused(rows: int | None, tmp_path: Path) -> None:
    paths = tables(tmp_path)
    given = plan(paths)
    if rows is None:
        paths["bonn"].write_text("")
    else:
        pd.read_csv(paths["bonn"]).head(rows).to_csv(paths["bonn"], index=False)
    with pytest.raises(FedpriorError, match="1 of 3 sites cannot take part: 'bonn': "):
        serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")


def test_a_site_is_told_what_differential_privacy_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DP_SECRET", "")
    paths = tables(tmp_path)
    serve(nodes(paths, tmp_path / "state"), plan(paths, method={"name": "fedavg+dp"}), tmp_path / "run")
    folder = tmp_path / "state" / "trial" / "bonn"
    found, at_server = (json.loads((of / "summary.json").read_text())["privacy"] for of in (folder, tmp_path / "run"))
    assert found == at_server
    assert privacy({"privacy": found})[0] in (folder / "report.html").read_text()


def test_another_plan_does_not_continue_an_experiment(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    link = nodes(paths, tmp_path / "state")
    serve(link, plan(paths, rounds=1), tmp_path / "run")
    fewer = {s: p for s, p in paths.items() if s != "bonn"}
    with pytest.raises(FedpriorError, match="not those that the experiment began with"):
        serve(link, plan(fewer, rounds=1), tmp_path / "run")
