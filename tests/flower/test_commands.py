"""What the commands say and refuse, without a network and without Flower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprior.cli.main import app
from fedprior.data.schema import Schema
from fedprior.errors import FedpriorError
from fedprior.flower.audit import FEW, MEANING, audited
from fedprior.flower.place import Place, check_names
from fedprior.flower.serve import serve
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
    with pytest.raises(FedpriorError, match="nothing has left"):
        audited(tmp_path / "nowhere")


def test_every_field_of_every_uplink_has_a_meaning() -> None:
    for name, method in METHODS.items():
        up = types_of(method)[3]
        for field in getattr(up, "_fields", ()):
            assert field in MEANING, f"{name}: {field}"


def test_a_status_tells_how_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) == {"state": "not started"}
    with reported(path) as observe:
        assert read_status(path)["state"] == "waiting for the sites"
        observe({"kind": "round", "round": 3})
        assert (read_status(path)["state"], read_status(path)["round"]) == ("training", 3)
    assert read_status(path)["state"] == "finished"
    with pytest.raises(FedpriorError), reported(path):
        raise FedpriorError("no node of bonn is online.")
    assert read_status(path)["why"] == "no node of bonn is online."
    with pytest.raises(KeyError), reported(path):
        raise KeyError("patient 4711")
    assert "4711" not in path.read_text()
    path.write_text(json.dumps({"state": "training", "pid": 2**22 + 1}))
    assert read_status(path)["state"] == "failed", "nobody reports any more"


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


def test_without_flower_the_commands_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedprior.flower import processes

    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(FedpriorError, match=r"install fedprior\[flower\]"):
        processes.program("flower-superlink")
