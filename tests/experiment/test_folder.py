"""Runs in folders: nothing is overwritten, an interruption leaves no trace, and what is finished stays as it is."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedprior.errors import FedpriorError
from fedprior.experiment import folder as folders
from fedprior.experiment.config import Config, parse
from fedprior.experiment.journal import Event, Observer
from fedprior.experiment.result import Result
from fedprior.report import tables

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


def config(csv: Path, *overrides: str, method: str | None = "fedmap") -> Config:
    base = ["data.name=csv", f"data.path={csv}", "data.target=class", "data.client=site", "rounds=4"]
    base += ["checkpoint_every=1", "eval_every=2", "train.epochs=1"]
    sections = {} if method is None else {"method": {"name": method}}
    return parse(sections, overrides=[*base, *overrides], several=method is None)


def nobody(config: Config) -> None:
    return None


def stop_at(method: str, round: int) -> Callable[[Config], Observer]:
    """Interrupts a method in a round, before its checkpoint."""

    def observer(config: Config) -> Observer:
        def observe(event: Event) -> None:
            if config.method["name"] == method and event["kind"] == "round" and event["round"] == round:
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
    """What must not depend on an interruption: models, predictions, metrics and the newest checkpoint."""
    kept = [p for p in folder.rglob("*") if p.suffix == ".safetensors" or p.name in ("clients.csv", "config.toml")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


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
        folders.start(config(csv), used, nobody, reference=True)
    with pytest.raises(FedpriorError, match="already in use"):
        folders.compare(config(csv, method=None), {"fedmap": {}}, used, nobody, baselines=True)
    assert snapshot(tmp_path) == before


def test_a_file_is_no_folder(csv: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError, match="is a file"):
        folders.start(config(csv), tmp_path / "file", nobody, reference=False)
    assert snapshot(tmp_path) == before


def test_an_empty_folder_is_welcome(csv: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    folders.start(config(csv), tmp_path / "empty", nobody, reference=False)
    assert (tmp_path / "empty" / "summary.json").exists()


@pytest.mark.parametrize("override", ["method.sigma2=-1", "train.lr=0", "model.name=resnet", "data.target=dose2"])
def test_a_wrong_config_writes_nothing(override: str, csv: Path, tmp_path: Path) -> None:
    with pytest.raises(FedpriorError):
        folders.start(config(csv, override), tmp_path / "new", nobody, reference=True)
    assert not (tmp_path / "new").exists()


# One run


def test_local_runs_beside_as_the_reference(csv: Path, tmp_path: Path) -> None:
    """In `local/`, with the same settings, data and training; the summary has the gain over it."""
    result = folders.start(config(csv, "train.lr=0.2"), tmp_path / "run", nobody, reference=True)
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
    result = folders.start(config(csv), tmp_path / "run", nobody, reference=False)
    assert result.reference is None
    assert not (tmp_path / "run" / "local").exists()
    assert "gain" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_local_is_not_compared_with_itself(csv: Path, tmp_path: Path) -> None:
    assert folders.start(config(csv, method="local"), tmp_path / "run", nobody, reference=True).reference is None
    assert not (tmp_path / "run" / "local").exists()


def test_the_written_config_runs_again_to_the_same(csv: Path, tmp_path: Path) -> None:
    folders.start(config(csv, "seed=6"), tmp_path / "first", nobody, reference=False)
    again = parse({}, file=tmp_path / "first" / "config.toml")
    folders.start(again, tmp_path / "second", nobody, reference=False)
    assert artefacts(tmp_path / "first") == artefacts(tmp_path / "second")


@pytest.mark.parametrize(("method", "round"), [("local", 2), ("fedmap", 1), ("fedmap", 3), ("fedmap", 4)])
def test_an_interrupted_run_resumes_to_the_same(method: str, round: int, csv: Path, tmp_path: Path) -> None:
    """Stopped in the reference or in the method itself, at the start, in the middle or in the last round."""
    whole = folders.start(config(csv), tmp_path / "whole", nobody, reference=True)
    with pytest.raises(KeyboardInterrupt):
        folders.start(config(csv), tmp_path / "cut", stop_at(method, round), reference=True)
    assert not (tmp_path / "cut" / "summary.json").exists()
    resumed = folders.resume(tmp_path / "cut", nobody)
    assert list(resumed) == ["fedmap"]
    assert artefacts(tmp_path / "cut") == artefacts(tmp_path / "whole")
    assert text(resumed["fedmap"]) == text(whole)


def test_resuming_what_is_finished_changes_nothing(csv: Path, tmp_path: Path) -> None:
    """No file is even written again, no round runs, and the table is the same."""
    whole = folders.start(config(csv), tmp_path / "run", nobody, reference=True)
    before = snapshot(tmp_path)
    resumed = folders.resume(tmp_path / "run", stop_at("fedmap", 1))
    assert snapshot(tmp_path) == before
    assert text(resumed["fedmap"]) == text(whole)
    assert resumed["fedmap"].reference is not None


@pytest.mark.parametrize("sub", ["nowhere", "."])
def test_what_is_no_run_cannot_be_resumed(sub: str, csv: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError, match="no run to resume"):
        folders.resume(tmp_path / sub, nobody)
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
        folders.start(config(csv), tmp_path / "run", nobody, reference=False)
    else:
        with pytest.raises(KeyboardInterrupt):
            folders.start(config(csv), tmp_path / "run", stop_at("fedmap", 3), reference=False)
    csv.write_text(change(CSV))
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError, match="data differ"):
        folders.resume(tmp_path / "run", nobody)
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
    folders.start(config(csv), tmp_path / "run", nobody, reference=False)
    if content is None:
        (tmp_path / "run" / name).unlink()
    else:
        (tmp_path / "run" / name).write_text(content)
    before = snapshot(tmp_path)
    with pytest.raises(FedpriorError) as error:
        folders.resume(tmp_path / "run", nobody)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
    assert snapshot(tmp_path) == before


# Comparisons


def compare(csv: Path, folder: Path, *names: str, baselines: bool = True, **options: object) -> dict[str, Result]:
    wanted = {name: dict(options.get(name, {})) for name in names}  # type: ignore[call-overload]
    observers = options.get("observers", nobody)
    assert callable(observers)
    return folders.compare(config(csv, method=None), wanted, folder, observers, baselines=baselines)


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
    found = compare(csv, tmp_path / "ft", "fedavg_ft", fedavg_ft={"ft_epochs": 2})
    assert found["fedavg_ft"].method.hyperparameters() == {"ft_epochs": 2}


def test_all_start_from_the_same_weights(csv: Path, tmp_path: Path) -> None:
    """Without a single step every method's every client still has the initial weights, and they are all equal."""
    shared = config(csv, "train.steps=0", method=None)
    wanted: dict[str, dict[str, object]] = {"fedavg": {}, "fedmap": {}, "fedavg_ft": {"ft_epochs": 0}}
    found = folders.compare(shared, wanted, tmp_path / "still", nobody, baselines=True)
    vectors = [np.concatenate([model[k].ravel() for k in sorted(model)]) for r in found.values() for model in r.models]
    assert len(vectors) == 12
    assert vectors[0].std() > 0
    for vector in vectors[1:]:
        np.testing.assert_allclose(vector, vectors[0], rtol=1e-6)


def test_equal_methods_are_equal(csv: Path, tmp_path: Path) -> None:
    """FedProx with μ = 0 is FedAvg: the same weights, data, cohorts and batches give the same bits."""
    found = compare(csv, tmp_path / "twins", "fedavg", "fedprox", fedprox={"mu": 0.0}, baselines=False)
    for ours, theirs in zip(found["fedprox"].models, found["fedavg"].models, strict=True):
        assert all((ours[k] == theirs[k]).all() for k in theirs)
    manifests = [json.loads((tmp_path / "twins" / n / "checkpoint" / "manifest.json").read_text()) for n in found]
    assert manifests[0]["federation"] == manifests[1]["federation"]


def test_a_wrong_option_of_one_method_writes_nothing(csv: Path, tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match="mu"):
        compare(csv, tmp_path / "wrong", "fedavg", "fedprox", fedprox={"mu": -1})
    assert not (tmp_path / "wrong").exists()


def test_a_comparison_resumes_where_it_stopped(csv: Path, tmp_path: Path) -> None:
    """Local and FedAvg-FT are finished and stay untouched, FedMAP has two rounds, FedProx has not begun."""
    whole = compare(csv, tmp_path / "whole", "fedmap", "fedprox")
    with pytest.raises(KeyboardInterrupt):
        compare(csv, tmp_path / "cut", "fedmap", "fedprox", observers=stop_at("fedmap", 3))
    cut = tmp_path / "cut"
    assert [(cut / name / "summary.json").exists() for name in whole] == [True, True, False, False]
    assert (cut / "fedmap" / "checkpoint" / "round-00002.safetensors").exists()
    assert not (cut / "fedprox" / "checkpoint").exists()
    finished = {name: snapshot(cut / name) for name in ("local", "fedavg_ft")}
    resumed = folders.resume(cut, nobody)
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
    resumed = folders.resume(tmp_path / "all", stop_at("fedmap", 1))
    assert snapshot(tmp_path) == before
    assert [text(r) for r in resumed.values()] == [text(r) for r in whole.values()]


@pytest.mark.parametrize("content", ["garbage", "", "methods = 5\n", "methods = []\n", 'methods = ["fedmap", "x"]\n'])
def test_a_damaged_comparison_is_told(content: str, csv: Path, tmp_path: Path) -> None:
    compare(csv, tmp_path / "all", "fedmap", baselines=False)
    (tmp_path / "all" / "comparison.toml").write_text(content)
    with pytest.raises(FedpriorError) as error:
        folders.resume(tmp_path / "all", nobody)
    assert "\n" not in str(error.value)


def test_two_at_once_are_refused(csv: Path, tmp_path: Path) -> None:
    """While a run is at work its folder cannot be resumed, and the run comes to no harm."""
    out, said = tmp_path / "out", []

    def observer(config: Config) -> Observer:
        def observe(event: Event) -> None:
            if (event["kind"], event["round"]) == ("round", 2):
                with pytest.raises(FedpriorError, match="another process is at work") as refused:
                    folders.resume(out, nobody)
                said.append(str(refused.value))

        return observe

    folders.start(config(csv), out, observer, reference=False)
    assert len(said) == 1
    folders.start(config(csv), tmp_path / "quiet", nobody, reference=False)
    assert (out / "clients.csv").read_text() == (tmp_path / "quiet" / "clients.csv").read_text()
