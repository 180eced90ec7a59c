"""Run folders: whole or not there, bound to their configuration and their journals, and never silently wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedprior
from fedprior.data.federation import Federation, from_arrays
from fedprior.errors import FedpriorError
from fedprior.experiment import placing
from fedprior.experiment.journal import Event, Observer
from fedprior.files import write_text
from fedprior.methods import build
from fedprior.training import Train

SETTINGS: dict[str, Any] = {"rounds": 4, "checkpoint_every": 1, "eval_every": 1, "workers": 1}


def data() -> Federation:
    rng = np.random.default_rng(0)
    return from_arrays({k: (rng.normal(size=(20, 3)), np.arange(20) % 2) for k in "abc"})


def go(out: Path, name: str = "fedmap", **more: Any) -> fedprior.Result:
    return fedprior.run(build(name, {}, Train(epochs=1)), data(), out=out, **(SETTINGS | more))


def named(out: Path, **more: Any) -> fedprior.Result:
    """A run that `resume` can take up by its folder alone."""
    csv = out.parent / "data.csv"
    rows = [f"{'abc'[i % 3]},{(7 * i) % 11},{(5 * i) % 7},{'yn'[(i * i) % 5 > 1]}\n" for i in range(60)]
    csv.write_text("site,age,dose,class\n" + "".join(rows))
    loaded = fedprior.data.load("csv", path=str(csv), target="class", client="site")
    return fedprior.run(build("fedmap", {}, Train(epochs=1)), loaded, out=out, **(SETTINGS | more))


def compared(out: Path, **more: Any) -> fedprior.Comparison:
    methods = [build(name, {}, Train(epochs=1)) for name in ("fedmap", "fedavg")]
    return fedprior.compare(methods, data(), out=out, **(SETTINGS | more))


def stop_at(round: int, method: str = "fedmap") -> Callable[[str, int], Observer]:
    def observer(name: str, rounds: int) -> Observer:
        def observe(event: Event) -> None:
            if name == method and (event["kind"], event["round"]) == ("round", round):
                raise KeyboardInterrupt

        return observe

    return observer


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def timeless(folder: Path) -> dict[str, Any]:
    """Every file but for times."""
    found: dict[str, Any] = everything(folder)
    for name, content in found.items():
        if name.endswith("events.jsonl"):
            found[name] = [
                {k: v for k, v in json.loads(line).items() if k != "seconds"} for line in content.splitlines()
            ]
        elif name.endswith("summary.json"):
            found[name] = {k: v for k, v in json.loads(content).items() if k != "timing"}
        elif name.endswith("manifest.json"):
            found[name] = json.loads(content)
            del found[name]["journals"]["events.jsonl"]
    return found


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(FedpriorError) as error:
        call()
    said = str(error.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


# Whole or not at all


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "an empty one"])
@pytest.mark.parametrize("start", [go, compared], ids=["run", "compare"])
def test_killed_at_any_write_of_the_beginning_the_same_call_starts(
    start: Callable[..., Any], there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the k-th file is written, for every k: the folder is no run yet, or it is a whole one."""
    write, count = write_text, 0

    def dying(path: Path, content: str) -> None:
        nonlocal count
        count -= 1
        if count < 0:
            raise SystemExit  # as a kill does, it is no refusal: nothing is cleared on the way out
        write(path, content)

    more = {"reference": "local"} if start is go else {}
    for k in range(0, 20, 2):
        out = tmp_path / f"{k}"
        if there:
            out.mkdir()
        count = k
        monkeypatch.setattr(placing, "write_text", dying)
        try:
            start(out, rounds=1, **more)
        except SystemExit:
            monkeypatch.undo()
            begun = [out / name for name in ("config.toml", "comparison.toml") if (out / name).exists()]
            assert begun == []
            start(out, rounds=1, **more)
        else:
            break
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
        assert [p for p in out.rglob("*") if p.name.startswith(".")] == []
    assert k >= 2 * (1 + there)


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "an empty one"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"participation": {"rule": "bernoulli", "rate": 1e-9}},
        {"workers": 10_000},
        {"engine": "ray", "ray_address": "127.0.0.1:1"},
    ],
    ids=["rate", "workers", "ray"],
)
def test_a_refusal_leaves_no_folder(wrong: dict[str, Any], there: bool, tmp_path: Path) -> None:
    """Neither the folder nor its parents; one that was there stays, empty."""
    if "engine" in wrong:
        pytest.importorskip("ray")
    out = tmp_path / "runs" / "out"
    if there:
        out.mkdir(parents=True)
    for start in (go, compared):
        refusal(lambda start=start: start(out, **wrong))  # type: ignore[misc]
        assert list(tmp_path.rglob("*")) == ([out.parent, out] if there else [])


def test_temporary_files_go_on_resume(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        go(out, observers=stop_at(3))
    left = [out / ".config.toml.7.tmp", out / "checkpoint" / ".manifest.json.7.tmp", out / "models" / ".a.7.tmp"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    go(out)
    assert [path for path in left if path.exists()] == []


# Journals


def flipped(path: Path) -> None:
    """The first digit of the bytes sent, or of the first metric, is another."""
    text = path.read_text()
    where = text.index('"bytes_up": ') + 12 if path.suffix == ".jsonl" else text.index("\n1,") + 1
    path.write_text(text[:where] + str((int(text[where]) + 1) % 10) + text[where + 1 :])


def shortened(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-8]))


def doubled(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], *lines[1:]]))


def other(path: Path) -> None:
    path.write_text("{}\n" * 12)


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
@pytest.mark.parametrize("name", ["events.jsonl", "clients.csv", "logs.csv"])
@pytest.mark.parametrize("damage", [flipped, shortened, doubled, other, Path.unlink])
def test_a_damaged_journal_is_told_and_left(
    damage: Callable[[Path], None], name: str, finished: bool, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if finished:
        go(out)
    else:
        with pytest.raises(KeyboardInterrupt):
            go(out, observers=stop_at(4))
    damage(out / name)
    before = everything(tmp_path)
    assert str(out / name) in refusal(lambda: go(out))
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["predictions.safetensors", "models/a.safetensors"])
def test_a_flipped_bit_in_a_finished_run_is_told(name: str, tmp_path: Path) -> None:
    go(tmp_path / "out")
    content = bytearray((tmp_path / "out" / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / "out" / name).write_bytes(bytes(content))
    assert name in refusal(lambda: go(tmp_path / "out"))


def test_lines_behind_the_checkpoint_do_not_matter(tmp_path: Path) -> None:
    """Whatever a crash left there, half a line or a table with more columns, those rounds run again."""
    go(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", observers=stop_at(4))
    for name in ("events.jsonl", "clients.csv"):
        with (tmp_path / "cut" / name).open("ab") as file:
            file.write(b'4,"\xff\n{"kind')
    path = tmp_path / "cut" / "logs.csv"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},more", *(f"{line}," for line in lines), "4,a,4,,1.0"]) + "\n")
    go(tmp_path / "cut")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


# Configurations


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("seed = 0", "seed = 1", "seed is 0, not 1"),
        ("sigma2 = 15.0", "sigma2 = 3.0", "method.sigma2 is 15.0, not 3.0"),
        ("rounds = 4", "rounds = 3", "rounds is 4, not 3"),
        ('chunk = "auto"', "chunk = 2", "chunk is 'auto', not 2"),
        (r"lr = [\d.]+", "lr = 0.33", "train.lr is"),
        (r"\[method\]\n(.+\n)*", '[method]\nname = "fedavg"\n', "method.name is 'fedmap', not 'fedavg'"),
    ],
)
def test_an_edited_config_is_another_run(old: str, new: str, told: str, finished: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if finished:
        named(out)
    else:
        with pytest.raises(KeyboardInterrupt):
            named(out, observers=stop_at(4))
    config = out / "config.toml"
    text, changes = re.subn(old, new, config.read_text(), count=1)
    assert changes == 1
    config.write_text(text)
    before = everything(tmp_path)
    said = refusal(lambda: fedprior.resume(out))
    assert told in said or "data differ" in said
    assert everything(tmp_path) == before


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """Copied from the folder of another seed, on the same data."""
    for seed in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / f"{seed}", seed=seed, observers=stop_at(4))
    for path in (tmp_path / "1" / "checkpoint").iterdir():
        (tmp_path / "0" / "checkpoint" / path.name).write_bytes(path.read_bytes())
    assert "seed is 1, not 0" in refusal(lambda: go(tmp_path / "0"))


def test_a_network_of_another_shape_is_told(tmp_path: Path) -> None:
    """As many weights (3·4+4+4·2 = 24 = 3·6+6), but others."""
    nets = [nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)), nn.Sequential(nn.Linear(3, 2), Extra())]
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "out", model=nets[0], observers=stop_at(4))
    assert sum(p.numel() for p in nets[1].parameters()) == 24
    assert "does not fit this run" in refusal(lambda: go(tmp_path / "out", model=nets[1]))


class Extra(nn.Module):
    """Two outputs as they are, and weights that make up the number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Linear(4, 2, bias=False))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


# More rounds


@pytest.mark.parametrize("method", ["fedmap", "fedavg_ft", "ditto"])
@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
def test_more_rounds_equal_as_many_from_the_start(method: str, finished: bool, tmp_path: Path) -> None:
    settings = {"eval_every": 2, "checkpoint_every": 1}
    go(tmp_path / "long", method, rounds=6, reference="local", **settings)
    if finished:
        go(tmp_path / "grown", method, rounds=4, reference="local", **settings)
    else:
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "grown", method, rounds=4, reference="local", observers=stop_at(3, method), **settings)
    go(tmp_path / "grown", method, rounds=6, reference="local", **settings)
    assert timeless(tmp_path / "grown") == timeless(tmp_path / "long")
    assert "rounds is 6, not 4" in refusal(lambda: go(tmp_path / "grown", method, rounds=4, **settings))


def test_more_rounds_by_editing_the_config(tmp_path: Path) -> None:
    """Local beside the run follows; stopped in between, it goes on; where no period is given, it is that of now."""
    out, settings = tmp_path / "out", {"eval_every": 0, "checkpoint_every": 1, "reference": "local"}
    named(out, rounds=10, **settings)
    config = out / "config.toml"
    config.write_text(config.read_text().replace("rounds = 10", "rounds = 20"))
    with pytest.raises(KeyboardInterrupt):
        fedprior.resume(out, observers=stop_at(13))
    assert not (out / "summary.json").exists()
    found = fedprior.resume(out)
    assert isinstance(found, fedprior.Result)
    assert (found.summary["rounds"], found.summary["timing"]["first_round"]) == (20, 12)
    assert found.reference is not None
    assert found.reference.summary["rounds"] == 20
    judged = [e["round"] for e in found.journal.events if e["kind"] == "evaluation"]
    assert judged == [*range(1, 11), 12, 14, 16, 18, 20], "every round of 10, every second of 20"


def test_a_comparison_grows_as_a_whole(tmp_path: Path) -> None:
    compared(tmp_path / "long", rounds=4)
    compared(tmp_path / "grown", rounds=2)
    compared(tmp_path / "grown", rounds=4)
    assert timeless(tmp_path / "grown") == timeless(tmp_path / "long")


def test_a_last_round_of_all_cannot_be_undone(tmp_path: Path) -> None:
    more: dict[str, Any] = {"participation": {"rule": "bernoulli", "rate": 0.5, "last_round_all": True}}
    go(tmp_path / "out", **more)
    assert "cannot have more rounds" in refusal(lambda: go(tmp_path / "out", **(more | {"rounds": 5})))
