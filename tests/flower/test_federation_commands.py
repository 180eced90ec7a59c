"""What the commands say and refuse, without a network and without Flower."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprior.cli.federation import _told
from fedprior.cli.main import app
from fedprior.data.schema import Schema
from fedprior.errors import FedpriorError
from fedprior.flower.audit import MEANING, audited, lines, meaning
from fedprior.flower.place import Place, check_names, default_listen
from fedprior.flower.serve import serve
from fedprior.flower.small_counts import FEW
from fedprior.flower.status import read_status, reported
from fedprior.protocol import METHODS, types_of
from flower.test_agreement import nodes, plan, tables


def test_a_schema_is_made_without_rows(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    out = tmp_path / "schema.toml"
    told = CliRunner().invoke(
        app, ["federation", "schema", str(paths["bonn"]), "--target", "outcome", "--out", str(out)]
    )
    assert told.exit_code == 0, told.output
    assert "3 columns make 4 inputs" in told.output
    found = Schema.read(out)
    assert len(found.inputs) == 4
    assert not any(cell in out.read_text() for cell in paths["bonn"].read_text().splitlines()[1].split(",")[:1])


def test_an_audit_says_what_left_and_warns_of_few_rows(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    frame = paths["bonn"].read_text().splitlines()
    ill = [line for line in frame[1:] if line.endswith("ill")]
    paths["bonn"].write_text("\n".join([frame[0], *ill[:4], *(x for x in frame[1:] if x.endswith("well"))]) + "\n")
    given = plan(paths, method={"name": "fedpac"}, rounds=1)
    serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    found = {entry["site"]: entry for entry in audited(tmp_path / "state")}
    assert set(found["bonn"]["fields"]) == {"base", "head", "n", "counts", "means", "scaled", "variance"}
    assert found["bonn"]["fields"]["counts"]["meaning"] == "number of training rows of each class"
    assert f"fewer than {FEW}" in found["bonn"]["warnings"][0]
    assert found["aachen"]["warnings"] == []
    told = CliRunner().invoke(app, ["federation", "audit", str(tmp_path / "state")])
    assert "counts: number of training rows of each class; 1 messages" in told.output
    assert "round 1: " not in told.output
    told = CliRunner().invoke(app, ["federation", "audit", str(tmp_path / "state"), "--messages"])
    of_bonn = told.output.split("bonn, experiment")[1].split("cologne, experiment")[0]
    listed = [line for line in of_bonn.splitlines() if re.match(r"  \d{4}-", line)]
    assert [line.split("  ")[2].partition(":")[0] for line in listed] == [
        "agreement",
        "round 1",
        "after round 1",
        "the end",
    ]
    assert [message["fields"].keys() == found["bonn"]["fields"].keys() for message in found["bonn"]["messages"]] == [
        False,
        True,
        False,
        False,
    ]
    with pytest.raises(FedpriorError, match="nothing has left"):
        audited(tmp_path / "nowhere")


@pytest.mark.parametrize("number", [False, True])
def test_an_audit_tells_sums_for_scaling_from_a_methods_fields(number: bool, tmp_path: Path) -> None:
    """Both have an `n`; and pFedFDA's `mean` is one of classes, that of shared scaling one of inputs."""
    paths = tables(tmp_path, number=number)
    method = {"name": "fedavg" if number else "pfedfda"}
    given = plan(paths, method=method, rounds=1, data={"scaling": "shared"})
    serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    found = next(entry for entry in audited(tmp_path / "state") if entry["site"] == "bonn")
    inputs = len(given.schema.inputs)
    assert found["fields"]["scaling.mean"] == {"messages": 1, "bytes": 8 * inputs, "meaning": "mean of each input"}
    assert found["fields"]["n"]["meaning"] == "number of training rows"
    assert found["fields"]["n"]["bytes"] == 8
    assert number or found["fields"]["mean"]["meaning"] == "mean features of each class"
    sums = ["number and sum of the target's values", "sum of squares of the target around the mean of all sites"]
    assert found["agreed"] == sorted(["numbers of rows", *(sums if number else [])])
    told = "\n".join(lines([found], each=True))
    assert told.count("agreement: whether the table fits, num") == 2, "in the list of fields, and as a message"
    assert f", scaling.mean {8 * inputs} bytes" in told
    assert told.count("  agreement: sum of squares of the target around") == number


def test_a_line_that_was_cut_off_does_not_hide_the_others(tmp_path: Path) -> None:
    """The power fails while a site writes down what it sends or how good it is; later lines are lines of their own."""
    paths = tables(tmp_path)
    given = plan(paths, rounds=1)
    serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    folder = tmp_path / "state" / "trial" / "bonn"
    for name in ("sent.jsonl", "scores.jsonl"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + content.splitlines()[-1][:30])
    serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")  # again: it finishes, and writes the report
    (found,) = [entry for entry in audited(tmp_path / "state") if entry["site"] == "bonn"]
    assert [message["kind"] for message in found["messages"]] == ["check", "round", "round", "finish", "finish"]
    assert "1 of its messages cannot be read" in found["warnings"][0]
    assert json.loads((folder / "summary.json").read_text())["evaluations"]
    (folder / "sent.jsonl").write_bytes(b"\xff\n{}\n[1]\n")
    with pytest.raises(FedpriorError, match="has no message that can be read"):
        audited(tmp_path / "state")


def test_every_field_of_every_uplink_has_a_meaning() -> None:
    for name, method in METHODS.items():
        up = types_of(method)[3]
        for field in getattr(up, "_fields", ()):
            assert field in MEANING, f"{name}: {field}"
    assert {key.split("/")[0] for key in MEANING if "/" in key} <= METHODS.keys()
    assert meaning("v", "fedbps") != meaning("v", "pfedme")


def test_a_status_tells_how_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) == {"state": "not started"}
    with reported(path) as observe:
        assert read_status(path)["state"] == "waiting for the sites"
        observe({"kind": "waiting", "missing": ["bonn", "cologne"]})
        assert _told(read_status(path)) == "waiting for the sites: bonn, cologne"
        observe({"kind": "round", "round": 3})
        assert (read_status(path)["state"], read_status(path)["round"]) == ("training", 3)
        assert _told(read_status(path)) == "training, round 3"
        observe({"kind": "finished", "sites": ["aachen"], "unfinished": ["bonn"]})
    assert _told(read_status(path)) == "finished, round 3, but not at bonn"
    with reported(path) as observe:
        observe({"kind": "round", "round": 3})
    assert read_status(path)["state"] == "finished"
    with pytest.raises(FedpriorError), reported(path):
        raise FedpriorError("no node of bonn is online.")
    assert read_status(path)["why"] == "no node of bonn is online."
    with pytest.raises(KeyError), reported(path):
        raise KeyError("patient 4711")
    assert "4711" not in path.read_text()
    with pytest.raises(SystemExit), reported(path):
        raise SystemExit(3)
    assert read_status(path)["why"] == "it was stopped: resume the experiment"
    path.write_text(json.dumps({"state": "training", "pid": 2**22 + 1}))
    assert read_status(path)["state"] == "failed", "nobody reports any more"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_died_and_was_not_asked_about_is_gone(tmp_path: Path) -> None:
    """A killed child that nobody waits for still has a number."""
    path = tmp_path / "status.json"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path.write_text(json.dumps({"state": "training", "pid": child.pid}))
    assert read_status(path)["state"] == "training"
    os.kill(child.pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while read_status(path)["state"] == "training" and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(child.pid, 0)
    assert read_status(path)["state"] == "failed"
    child.communicate()


@pytest.mark.parametrize("names", [["a/b"], ["../x"], [""], ["a" * 41], ["a b"], ["-x"], ["bonn", "Bonn"]])
def test_names_that_could_lead_elsewhere_are_refused(names: list[str]) -> None:
    with pytest.raises(FedpriorError):
        check_names(names)


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match="is not the server's folder"):
        Place.read(tmp_path)
    (tmp_path / "federation.toml").write_text('experiment = "e"\nhost = "h"\nport = 1\nsites = ["a", "b"]\n')
    with pytest.raises(FedpriorError, match="is not complete or not valid"):
        Place.read(tmp_path)
    (tmp_path / "federation.toml").write_text("prot = 1\n")
    with pytest.raises(FedpriorError, match="there is no option 'prot'"):
        Place.read(tmp_path)


def test_a_server_listens_on_this_machine_alone(tmp_path: Path) -> None:
    """By default at the sites' port if they are here too, else behind a proxy."""
    assert default_listen("127.0.0.1", 8000) == "127.0.0.1:8000"
    assert default_listen("federation.example.org", 8000) == "127.0.0.1:18000"
    plan = 'experiment = "e"\nhost = "h"\nport = 8000\nsites = ["a", "b"]\n[run]\nrounds = 1\nmethod.name = "fedavg"\n'
    (tmp_path / "federation.toml").write_text(plan)
    place = Place.read(tmp_path)
    assert (place.local, place.proxied) == (("127.0.0.1", 18000), True)
    (tmp_path / "federation.toml").write_text(f'listen = "0.0.0.0:8000"\n{plan}')
    place = Place.read(tmp_path)
    assert (place.listening, place.local, place.proxied) == (("0.0.0.0", 8000), ("127.0.0.1", 8000), False)
    for wrong in ("everywhere", "localhost:8000", "127.0.0.1:http", ":8000", "127.0.0.1"):
        (tmp_path / "federation.toml").write_text(f'listen = "{wrong}"\n{plan}')
        with pytest.raises(FedpriorError, match="it must be like"):
            Place.read(tmp_path)


def test_without_flower_the_commands_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedprior.flower import processes

    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(FedpriorError, match=r"install fedprior\[flower\]"):
        processes.program("flower-superlink")
