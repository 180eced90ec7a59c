"""`fedprior data`: list, fetch, import and describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.test_cli import Call, call, refused
from data.store.miniature import FILES, Server, idx_files, use, write
from fedprior.cli import data as command
from fedprior.data import store
from fedprior.data.store import RECORDS

__all__ = ["call"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path / "data"))


def entries(call: Call) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads(call.good("data", "list", "--json").out)}


def test_list_tells_what_is_stored(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    found = entries(call)
    assert "state" not in found["digits"]
    assert found["mnist"]["state"] == "absent"
    assert set(RECORDS) <= set(found)
    assert found["digit_domains"]["missing"] == ["mnist", "mnist_m", "usps"]
    text = call.good("data", "list").out
    assert "`fedprior data fetch cifar10`" in text
    assert "`fedprior data import mnist_m FILE...`" in text
    assert {line.split()[0] for line in text.splitlines() if not line.startswith(" ")} == set(found), "hanging lines"
    store.import_files("mnist", write(tmp_path / "mine", FILES))
    found = entries(call)
    assert (found["mnist"]["state"], found["mnist"]["examples"]) == ("stored", {"train": 6, "test": 4})
    assert found["mnist"]["bytes"] > 0
    assert found["digit_domains"]["missing"] == ["mnist_m", "usps"]
    assert "6 + 4 examples" in call.good("data", "list").out
    (tmp_path / "data" / "mnist" / "manifest.json").unlink()
    assert entries(call)["mnist"]["state"] == "damaged"
    assert "damaged" in call.good("data", "list").out


def test_import(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    paths = [str(path) for path in write(tmp_path / "mine", FILES)]
    found = call.good("data", "import", "mnist", *paths)
    assert found.out.startswith("mnist: ")
    assert str(tmp_path / "data" / "mnist") in found.out
    refused(call("data", "import", "mnist", *paths), "already stored", "--force")
    call.good("data", "import", "mnist", *paths, "--force")
    refused(call("data", "import", "mnits", *paths), "did you mean 'mnist'?")
    refused(call("data", "import", "mnist", "nowhere", "--force"), "nowhere")


def test_fetch(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(idx_files()) as server:
        use(monkeypatch, server.source())
        found = call.good("data", "fetch", "mnist")
        assert server.base in found.out
        assert found.err == ""
        asked = len(server.asked)
        call.good("data", "fetch", "mnist")  # it is there
        assert len(server.asked) == asked
        call.good("data", "fetch", "mnist", "--force")
        assert len(server.asked) > asked
    refused(call("data", "fetch", "mnist_m"), "mnist_m cannot be fetched", "fedprior data import mnist_m")
    refused(call("data", "fetch", "mnits"), "did you mean 'mnist'?")


def test_progress_without_a_terminal(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line now and then, with bytes."""
    monkeypatch.setattr(command, "LINES", -1.0)
    with command._bar() as tell:
        tell(0, 4_000_000, "a.gz")
        tell(2_000_000, 4_000_000, "a.gz")
        tell(5, None, "reading")
    assert capsys.readouterr().err.splitlines() == [
        "a.gz: 0.0 of 4.0 MB",
        "a.gz: 2.0 of 4.0 MB",
        "reading: 0.0 MB",
    ]


@pytest.mark.parametrize("args", [("fetch", "mnist"), ("import", "mnist", "file")])
def test_an_interruption_says_how_to_go_on(args: tuple[str, ...], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "fetch", interrupted)
    monkeypatch.setattr(store, "import_files", interrupted)
    found = call("data", *args)
    assert (found.code, found.out) == (130, "")
    assert found.err == "interrupted: run it again to continue\n"


def test_describe_what_is_not_stored(call: Call) -> None:
    refused(call("data", "describe", "cifar10"), "cifar10 is not stored", "fedprior data fetch cifar10")


def test_describe_draws(call: Call) -> None:
    found = call.good("data", "describe", "digits", "data.clients=40", "--html", "out/a.html")
    assert "clients by size" in found.out
    assert max(len(line) for line in found.out.splitlines()) <= 100
    page = Path("out/a.html").read_text()
    assert page.count('class="chart"') == 3
    assert "client-39" in page
    rows = json.loads(call.good("data", "describe", "digits", "--json").out)["clients"]
    assert all(0 <= row["divergence"] <= 1 for row in rows)


def test_describe_into_pictures(call: Call) -> None:
    call.good("data", "describe", "digits", "data.clients=3", "--png", "a.png", "--svg", "a.svg")
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert "client-2" in Path("a.svg").read_text()


def test_a_stored_data_set_runs(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an imported file to personal models."""
    from data.stock import images, keep

    keep(monkeypatch, tmp_path / "stock", "usps", images("usps", 200, 100))
    args = ("--method", "fedavg", "--data", "usps", "data.clients=2", "data.test=official", "train.epochs=1")
    call.good("run", *args, "--rounds", "1", "--out", "out", "--quiet", "--no-local")
    summary = json.loads(Path("out/summary.json").read_text())
    assert np.isfinite(summary["last"]["personal"]["test"]["accuracy"]["mean"])
