"""Runs in folders: nothing is overwritten, an interruption leaves no trace, and what is finished stays as it is."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from torch import nn

import fedprior
from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError
from fedprior.experiment.config import parse
from fedprior.experiment.journal import Event, Observer
from fedprior.experiment.result import Result
from fedprior.methods import build
from fedprior.report import tables
from fedprior.training import Train
from support import same

CSV = "site,age,dose,class\n" + "".join(
    f"{('north', 'south', 'west')[i % 3]},{(7 * i) % 11},{(5 * i) % 7 + 0.5},{'yn'[(i * i) % 5 > 1]}\n"
    for i in range(60)
)


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """Three sites of 20 rows with two numbers and two classes."""
    path = tmp_path / "data.csv"
    path.write_text(CSV)
    return path


SETTINGS: dict[str, Any] = {"rounds": 4, "checkpoint_every": 1, "eval_every": 2}


def load(csv: Path) -> Federation:
    loaded: Federation = fedprior.data.load("csv", path=str(csv), target="class", client="site")
    return loaded


def method(name: str, **options: Any) -> AnyMethod:
    return build(name, options, Train(epochs=1))


def start(csv: Path, folder: Path, *, name: str = "fedmap", reference: bool = True, **more: Any) -> Result:
    """A run in a folder: FedMAP, unless told otherwise, with Local beside it."""
    own = more.pop("options", {})
    beside: Any = "local" if reference else None
    return fedprior.run(method(name, **own), load(csv), out=folder, reference=beside, **(SETTINGS | more))


def compare(csv: Path, folder: Path, *names: str, baselines: bool = True, **more: Any) -> fedprior.Comparison:
    options = more.pop("options", {})
    chosen = [method(name, **options.get(name, {})) for name in names]
    return fedprior.compare(chosen, load(csv), out=folder, baselines=baselines, **(SETTINGS | more))


def single(found: object) -> Result:
    assert isinstance(found, Result)
    return found


def several(found: object) -> fedprior.Comparison:
    assert isinstance(found, fedprior.Comparison)
    return found


def stop_at(method: str, round: int, kind: str = "round") -> Callable[[str, int], Observer]:
    """Interrupts a method in a round, before its checkpoint."""

    def observer(name: str, rounds: int) -> Observer:
        def observe(event: Event) -> None:
            if name == method and event["kind"] == kind and event["round"] == round:
                raise KeyboardInterrupt

        return observe

    return observer


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its content and the time it was last written."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def artefacts(folder: Path) -> dict[str, bytes]:
    """What must not depend on an interruption: all but times."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    for name in [name for name in files if name.endswith(("summary.json", "events.jsonl"))]:
        documents = [json.loads(line) for line in files[name].splitlines()] if "jsonl" in name else []
        documents = documents or [json.loads(files[name])]
        timeless = [{k: v for k, v in d.items() if k not in ("timing", "seconds")} for d in documents]
        files[name] = json.dumps(timeless).encode()
    for name in [name for name in files if name.endswith("manifest.json")]:
        document = json.loads(files[name])
        del document["journals"]["events.jsonl"]  # whose lines have times in them
        files[name] = json.dumps(document).encode()
    return files


def text(result: Result) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(tables.clients(result))
    return console.export_text()


# New folders


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "summary.json"])
def test_a_used_folder_is_refused_and_left_alone(name: str, csv: Path, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / name).write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError, match="already in use"):
        start(csv, used)
    with pytest.raises(FedpriorError, match="already in use"):
        compare(csv, used, "fedmap")
    assert snapshot(tmp_path) == before


def test_a_file_is_no_folder(csv: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError, match="is a file"):
        start(csv, tmp_path / "file", reference=False)
    assert snapshot(tmp_path) == before


def test_an_empty_folder_is_welcome(csv: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    start(csv, tmp_path / "empty", reference=False)
    assert (tmp_path / "empty" / "summary.json").exists()


@pytest.mark.parametrize("wrong", [{"model": {"name": "resnet"}}, {"rounds": 0}, {"participation": {"newcomers": 3}}])
def test_a_wrong_setting_writes_nothing(wrong: dict[str, Any], csv: Path, tmp_path: Path) -> None:
    with pytest.raises(FedpriorError):
        start(csv, tmp_path / "new", **wrong)
    with pytest.raises(FedpriorError):
        compare(csv, tmp_path / "new", "fedmap", **wrong)
    assert not (tmp_path / "new").exists()


# One run


def test_local_runs_beside_as_the_reference(csv: Path, tmp_path: Path) -> None:
    """In `local/`, with the same settings, data and training; the summary has the gain over it."""
    ours_only = build("fedmap", {}, Train(lr=0.2, epochs=1))
    result = fedprior.run(ours_only, load(csv), out=tmp_path / "run", reference="local", **SETTINGS)
    assert result.reference is not None
    assert result.reference.name == "local"
    ours, theirs = (parse({}, file=tmp_path / "run" / sub / "config.toml") for sub in (".", "local"))
    assert (ours.method["name"], theirs.method["name"]) == ("fedmap", "local")
    assert ours.settings() == theirs.settings()
    assert (ours.data, ours.model, ours.train) == (theirs.data, theirs.model, theirs.train)
    assert ours.train["lr"] == 0.2
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["gain"]["mean"] == result.gain().mean
    assert not (tmp_path / "run" / "local" / "local").exists()


def test_without_a_reference_nothing_runs_beside(csv: Path, tmp_path: Path) -> None:
    result = start(csv, tmp_path / "run", reference=False)
    assert result.reference is None
    assert not (tmp_path / "run" / "local").exists()
    assert "gain" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_local_is_not_compared_with_itself(csv: Path, tmp_path: Path) -> None:
    assert start(csv, tmp_path / "run", name="local").reference is None
    assert not (tmp_path / "run" / "local").exists()


def test_the_written_config_runs_again_to_the_same(csv: Path, tmp_path: Path) -> None:
    start(csv, tmp_path / "first", reference=False, seed=6)
    again = parse({}, file=tmp_path / "first" / "config.toml")
    setup = again.setup(again.load_data())
    fedprior.run(setup.method, setup.federation, model=setup.model, out=tmp_path / "second", **dict(again.settings()))
    assert artefacts(tmp_path / "first") == artefacts(tmp_path / "second")


@pytest.mark.parametrize("by_name", [True, False], ids=["resume", "the same call"])
@pytest.mark.parametrize(
    ("name", "round", "kind"),
    [("local", 2, "round"), ("fedmap", 1, "round"), ("fedmap", 2, "evaluation"), ("fedmap", 4, "round")],
)
def test_an_interrupted_run_resumes_to_the_same(
    name: str, round: int, kind: str, by_name: bool, csv: Path, tmp_path: Path
) -> None:
    """Stopped in the reference or in the method itself: at the start, in an evaluation or in the last round."""
    whole = start(csv, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start(csv, tmp_path / "cut", observers=stop_at(name, round, kind))
    assert not (tmp_path / "cut" / "summary.json").exists()
    resumed = single(fedprior.resume(tmp_path / "cut")) if by_name else start(csv, tmp_path / "cut")
    assert resumed.name == "fedmap"
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")
    assert text(resumed) == text(whole)
    first = resumed.summary["timing"]["first_round"]
    assert first == {"local": 0, "fedmap": round - 1}[name]


def test_only_what_is_left_is_observed(csv: Path, tmp_path: Path) -> None:
    """Local is finished and gets no progress bar; FedMAP is not, and gets one."""
    with pytest.raises(KeyboardInterrupt):
        start(csv, tmp_path / "run", observers=stop_at("fedmap", 2))
    asked = []
    fedprior.resume(tmp_path / "run", observers=lambda name, rounds: asked.append((name, rounds)))
    assert asked == [("fedmap", 4)]
    fedprior.resume(tmp_path / "run", observers=lambda name, rounds: asked.append((name, rounds)))
    assert len(asked) == 1


def test_resuming_what_is_finished_changes_nothing(csv: Path, tmp_path: Path) -> None:
    """No file is even written again, no round runs, and the table is the same."""
    whole = start(csv, tmp_path / "run")
    before = snapshot(tmp_path)
    for again in (
        single(fedprior.resume(tmp_path / "run", observers=stop_at("fedmap", 1))),
        start(csv, tmp_path / "run", observers=stop_at("fedmap", 1)),
    ):
        assert snapshot(tmp_path) == before
        assert text(again) == text(whole)
        assert again.reference is not None
        pd.testing.assert_frame_equal(again.table, whole.table)


@pytest.mark.parametrize("sub", ["nowhere", "."])
def test_what_is_no_run_cannot_be_resumed(sub: str, csv: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError, match="no run to resume"):
        fedprior.resume(tmp_path / sub)
    assert snapshot(tmp_path) == before
    assert csv.exists()


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: t.replace(",y\n", ",n\n", 1), id="a label"),
        pytest.param(lambda t: t + "north,1,2,y\n", id="a row"),
        pytest.param(lambda t: t + "east,1,2,y\neast,3,4,n\n", id="a site"),
    ],
)
def test_resuming_with_other_data_is_refused(
    change: Callable[[str], str], finished: bool, csv: Path, tmp_path: Path
) -> None:
    """Finished or not: numbers of one data set must not be shown beside labels of another."""
    if finished:
        start(csv, tmp_path / "run", reference=False)
    else:
        with pytest.raises(KeyboardInterrupt):
            start(csv, tmp_path / "run", reference=False, observers=stop_at("fedmap", 3))
    csv.write_text(change(CSV))
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError, match="data differ"):
        fedprior.resume(tmp_path / "run")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "garbage"),
        ("summary.json", "{}"),
        ("config.toml", "garbage"),
        ("predictions.safetensors", "garbage"),
        ("models/south.safetensors", "garbage"),
        ("models/south.safetensors", None),
    ],
)
def test_a_finished_run_with_a_damaged_file_is_told(name: str, content: str | None, csv: Path, tmp_path: Path) -> None:
    start(csv, tmp_path / "run", reference=False)
    if content is None:
        (tmp_path / "run" / name).unlink()
    else:
        (tmp_path / "run" / name).write_text(content)
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError) as error:
        fedprior.resume(tmp_path / "run")
    assert name in str(error.value)
    assert "\n" not in str(error.value)
    assert snapshot(tmp_path) == before


# Comparisons


def test_local_comes_first_then_fine_tuning_then_the_wish(csv: Path, tmp_path: Path) -> None:
    """Local is everyone's reference; each method has a folder; the others keep the order they were asked in."""
    found = compare(csv, tmp_path / "all", "fedprox", "fedmap", "fedavg")
    assert list(found) == ["local", "fedavg_ft", "fedprox", "fedmap", "fedavg"]
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == sorted([*found, "comparison.toml"])
    for name, result in found.items():
        assert (tmp_path / "all" / name / "summary.json").exists()
        assert result.reference is (None if name == "local" else found["local"])


def test_without_baselines_only_the_wish(csv: Path, tmp_path: Path) -> None:
    found = compare(csv, tmp_path / "some", "fedprox", "local", baselines=False)
    assert list(found) == ["local", "fedprox"]
    assert found["fedprox"].reference is found["local"]
    alone = compare(csv, tmp_path / "alone", "fedprox", baselines=False)
    assert alone["fedprox"].reference is None


def test_options_of_a_baseline_are_heard(csv: Path, tmp_path: Path) -> None:
    found = compare(csv, tmp_path / "ft", "fedavg_ft", options={"fedavg_ft": {"ft_epochs": 2}})
    assert found["fedavg_ft"].method.hyperparameters() == {"ft_epochs": 2}


def test_all_start_from_the_same_weights(csv: Path, tmp_path: Path) -> None:
    """Without a single step every method's every client still has the initial weights, and they are all equal."""
    still = Train(steps=0)
    wanted = [build("fedavg", {}, still), build("fedmap", {}, still), build("fedavg_ft", {"ft_epochs": 0}, still)]
    found = fedprior.compare(wanted, load(csv), out=tmp_path / "still", **SETTINGS)
    models = [result.arrays(client) for result in found.values() for client in result.federation.clients]
    vectors = [np.concatenate([model[k].ravel() for k in sorted(model)]) for model in models]
    assert len(vectors) == 12
    assert vectors[0].std() > 0
    for vector in vectors[1:]:
        np.testing.assert_allclose(vector, vectors[0], rtol=1e-6)


def test_equal_methods_are_equal(csv: Path, tmp_path: Path) -> None:
    """FedProx with μ = 0 is FedAvg: the same weights, data, cohorts and batches give the same bits."""
    found = compare(
        csv, tmp_path / "twins", "fedavg", "fedprox", options={"fedprox": {"strength": 0.0}}, baselines=False
    )
    assert same(found["fedprox"].models, found["fedavg"].models)
    manifests = [json.loads((tmp_path / "twins" / n / "checkpoint" / "manifest.json").read_text()) for n in found]
    assert manifests[0]["federation"] == manifests[1]["federation"]


@pytest.mark.parametrize("by_name", [True, False], ids=["resume", "the same call"])
def test_a_comparison_resumes_where_it_stopped(by_name: bool, csv: Path, tmp_path: Path) -> None:
    """Local and FedAvg-FT are finished and stay untouched, FedMAP has two rounds, FedProx has not begun."""
    whole = compare(csv, tmp_path / "whole", "fedmap", "fedprox")
    with pytest.raises(KeyboardInterrupt):
        compare(csv, tmp_path / "cut", "fedmap", "fedprox", observers=stop_at("fedmap", 3))
    cut = tmp_path / "cut"
    assert [(cut / name / "summary.json").exists() for name in whole] == [True, True, False, False]
    assert (cut / "fedmap" / "checkpoint" / "round-00002.safetensors").exists()
    assert not (cut / "fedprox" / "checkpoint").exists()
    finished = {name: snapshot(cut / name) for name in ("local", "fedavg_ft")}
    resumed = several(fedprior.resume(cut)) if by_name else compare(csv, cut, "fedmap", "fedprox")
    assert list(resumed) == list(whole)
    assert artefacts(cut) == artefacts(tmp_path / "whole")
    assert {name: snapshot(cut / name) for name in finished} == finished
    firsts = {name: r.summary["timing"]["first_round"] for name, r in resumed.items()}
    assert firsts == {"local": 0, "fedavg_ft": 0, "fedmap": 2, "fedprox": 0}
    for name in whole:
        assert text(resumed[name]) == text(whole[name])


def test_a_finished_comparison_resumes_to_the_same(csv: Path, tmp_path: Path) -> None:
    whole = compare(csv, tmp_path / "all", "fedmap")
    before = snapshot(tmp_path)
    resumed = several(fedprior.resume(tmp_path / "all", observers=stop_at("fedmap", 1)))
    assert snapshot(tmp_path) == before
    assert [text(r) for r in resumed.values()] == [text(r) for r in whole.values()]


@pytest.mark.parametrize("content", ["garbage", "", "methods = 5\n", "methods = []\n", 'methods = ["fedmap", "x"]\n'])
def test_a_damaged_comparison_is_told(content: str, csv: Path, tmp_path: Path) -> None:
    compare(csv, tmp_path / "all", "fedmap", baselines=False)
    (tmp_path / "all" / "comparison.toml").write_text(content)
    with pytest.raises(FedpriorError) as error:
        fedprior.resume(tmp_path / "all")
    assert "\n" not in str(error.value)


def test_two_at_once_are_refused(csv: Path, tmp_path: Path) -> None:
    """While a run is at work its folder cannot be resumed, and the run comes to no harm."""
    out, said = tmp_path / "out", []

    def observe(event: Event) -> None:
        if (event["kind"], event["round"]) == ("round", 2):
            with pytest.raises(FedpriorError, match="another process is at work") as refused:
                fedprior.resume(out)
            said.append(str(refused.value))

    start(csv, out, reference=False, observe=observe)
    assert len(said) == 1
    start(csv, tmp_path / "quiet", reference=False)
    assert (out / "clients.csv").read_text() == (tmp_path / "quiet" / "clients.csv").read_text()


# Another run


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seed": 1}, "seed is 0, not 1"),
        ({"rounds": 3}, "rounds is 4, not 3"),
        ({"select": "last"}, "select is 'validation', not 'last'"),
        ({"options": {"sigma2": 3.0}}, "method.sigma2 is 15.0, not 3.0"),
        ({"name": "fedprox"}, "method.name is 'fedmap', not 'fedprox'"),
        ({"model": "mlp"}, "model.hidden is [16], not [100]"),
        ({"participation": {"rate": 0.5}}, "participation.rate is 1.0, not 0.5"),
    ],
    ids=str,
)
def test_another_run_is_refused_by_what_differs(changed: dict[str, Any], told: str, csv: Path, tmp_path: Path) -> None:
    """In one sentence, whether the first run is finished or not, and without touching it."""
    start(csv, tmp_path / "run", reference=False)
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError) as error:
        start(csv, tmp_path / "run", **({"reference": False} | changed))
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
    assert snapshot(tmp_path) == before


def test_what_changes_no_result_may_change(csv: Path, tmp_path: Path) -> None:
    """The number of workers is free; so are settings that an older file did not have, at their defaults."""
    with pytest.raises(KeyboardInterrupt):
        start(csv, tmp_path / "run", reference=False, observers=stop_at("fedmap", 3))
    path = tmp_path / "run" / "config.toml"
    kept = [line for line in path.read_text().splitlines() if not line.startswith(("select", "min_answers"))]
    path.write_text("\n".join(kept).replace("min_reporters", "least") + "\n")
    start(csv, tmp_path / "run", reference=False, workers=2)
    start(csv, tmp_path / "whole", reference=False)
    ours, theirs = artefacts(tmp_path / "run"), artefacts(tmp_path / "whole")
    assert {k: v for k, v in ours.items() if k != "config.toml"} == {
        k: v for k, v in theirs.items() if k != "config.toml"
    }


def test_a_comparison_of_other_methods_is_refused(csv: Path, tmp_path: Path) -> None:
    compare(csv, tmp_path / "all", "fedmap", baselines=False)
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError) as error:
        compare(csv, tmp_path / "all", "fedprox", baselines=False)
    assert "\n" not in str(error.value)
    assert snapshot(tmp_path) == before


# Data and networks from Python


def arrays(name: str = "custom", seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    return from_arrays({k: (rng.normal(size=(20, 3)), np.arange(20) % 2) for k in "abc"}, name=name)


@pytest.mark.parametrize(
    ("data", "model"),
    [(arrays(), None), (arrays("our hospitals"), None), (None, nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2)))],
    ids=["arrays", "named arrays", "network"],
)
def test_what_came_from_python_is_continued_by_the_same_call(
    data: Federation | None, model: Any, csv: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"model": model, **SETTINGS}
    federation = data or load(csv)
    with pytest.raises(KeyboardInterrupt):
        fedprior.run(method("fedmap"), federation, out=tmp_path / "cut", observers=stop_at("fedmap", 3), **given)
    with pytest.raises(FedpriorError, match="came from Python") as error:
        fedprior.resume(tmp_path / "cut")
    assert "\n" not in str(error.value)
    fedprior.run(method("fedmap"), federation, out=tmp_path / "cut", **given)
    whole = fedprior.run(method("fedmap"), federation, out=tmp_path / "whole", **given)
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")
    assert same(fedprior.run(method("fedmap"), federation, **given).models, whole.models), "a folder changes nothing"


def test_other_arrays_are_refused(tmp_path: Path) -> None:
    fedprior.run(method("fedmap"), arrays(), out=tmp_path / "run", **SETTINGS)
    with pytest.raises(FedpriorError, match="data differ"):
        fedprior.run(method("fedmap"), arrays(seed=1), out=tmp_path / "run", **SETTINGS)


def test_another_network_is_refused(tmp_path: Path) -> None:
    """3-4-2 has 26 weights, 3-5-2 has 32."""
    nets = [nn.Sequential(nn.Linear(3, h), nn.Linear(h, 2)) for h in (4, 5)]
    fedprior.run(method("fedmap"), arrays(), model=nets[0], out=tmp_path / "run", **SETTINGS)
    with pytest.raises(FedpriorError, match=r"model\.parameters is 26, not 32"):
        fedprior.run(method("fedmap"), arrays(), model=nets[1], out=tmp_path / "run", **SETTINGS)


# Older runs


def test_a_finished_run_of_an_older_version_is_read(csv: Path, tmp_path: Path) -> None:
    """It kept the models of its last round, knew fewer metrics, and had another format of checkpoints."""
    whole = start(csv, tmp_path / "run", reference=False, select="last")
    summary_path = tmp_path / "run" / "summary.json"
    summary = json.loads(summary_path.read_text())
    for key in ("left_out", "target", "files"):
        del summary[key]
    del summary["timing"]["events"]
    del summary["last"]["personal"]["test"]["auroc"]
    summary["selected"] = {"round": 2, "by": "validation accuracy"}
    summary_path.write_text(json.dumps(summary))
    table = pd.read_csv(tmp_path / "run" / "clients.csv").drop(columns="auroc")
    table.to_csv(tmp_path / "run" / "clients.csv", index=False, na_rep="nan")
    (tmp_path / "run" / "logs.csv").unlink()
    manifest = tmp_path / "run" / "checkpoint" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 4', '"format": 1'))
    old = single(fedprior.resume(tmp_path / "run"))
    assert old.selected == 4
    assert old.mean("accuracy") == whole.mean("accuracy")
    assert old.table["auroc"].isna().all()
    assert old.clients["auroc"].isna().all()
    pd.testing.assert_series_equal(old.clients["nll"], whole.clients["nll"])
    assert len(repr(old)) < 400


def test_an_unfinished_run_of_an_older_version_is_refused(csv: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(csv, tmp_path / "run", reference=False, observers=stop_at("fedmap", 3))
    manifest = tmp_path / "run" / "checkpoint" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 4', '"format": 1'))
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError, match="format 1, this version reads 4"):
        fedprior.resume(tmp_path / "run")
    assert snapshot(tmp_path) == before
