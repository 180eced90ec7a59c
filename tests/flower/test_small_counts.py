"""A class of few rows: the site learns of it before anything leaves, and may decline; the server is told no number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from fedprior.engine.rehearsal import rehearsed
from fedprior.engine.stack import Context
from fedprior.errors import FedpriorError
from fedprior.flower.audit import audited
from fedprior.flower.node import Node
from fedprior.flower.orders import Reply
from fedprior.flower.serve import Plan, serve
from fedprior.flower.small_counts import small_classes
from fedprior.methods import build
from fedprior.protocol import METHODS
from fedprior.rng import Key
from flower.test_agreement import nodes, plan, tables
from support import CLASSES, bound, federation

STACKED = {"name": "stack", "experts": ["local", "pfedfda"]}
SENDING = [{"name": "fedpac"}, {"name": "pfedfda"}, {"name": "fedpac+cal"}, STACKED]


def few_ill(path: Path, count: int = 4) -> None:
    """Leave only so many ill people in a table."""
    frame = pd.read_csv(path)
    ill = frame["outcome"] == "ill"
    pd.concat([frame[ill].head(count), frame[~ill]]).to_csv(path, index=False)


def asked(given: Plan, site: str = "bonn") -> dict[str, Any]:
    document = {"kind": "check", "site": site, "experiment": given.experiment, "config": dict(given.config)}
    return {**document, "schema": given.schema.document()}


def test_methods_that_send_class_means_say_so() -> None:
    """An uplink with a statistic [C, K, d] beside the weights, on data with K classes."""
    data = federation((20, 20))
    found = set()
    for name in METHODS:
        method = bound(name, data)
        server = method.init_server(Key.from_seed(0), 2)
        up = rehearsed(Context(method, data, Key.from_seed(0)), server, torch.arange(2)).up
        if any(isinstance(part, Tensor) and part.dim() == 3 and part.shape[1] == CLASSES for part in up):
            found.add(name)
    assert found == {"fedpac", "pfedfda"} == {name for name, method in METHODS.items() if method.about.class_means}


@pytest.mark.parametrize("method", SENDING, ids=lambda of: of["name"])
def test_a_site_is_warned_before_anything_leaves(
    method: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said at the site when it agrees; in its audit later; and in no message."""
    paths = tables(tmp_path)
    few_ill(paths["bonn"])
    given = plan(paths, method=method, rounds=1)
    reply = Node("bonn", paths["bonn"], tmp_path / "first").answer(asked(given), {})
    said = capsys.readouterr().err
    assert "warning: " in said
    assert "your smallest class has 3 training rows: a mean over fewer than 5" in said
    assert reply.document.keys() == {"version", "problems", "sizes"}
    Node("aachen", paths["aachen"], tmp_path / "first").answer(asked(given, "aachen"), {})
    assert capsys.readouterr().err == ""
    serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    told = {entry["site"]: entry["warnings"] for entry in audited(tmp_path / "state")}
    assert {site: len(warnings) for site, warnings in told.items()} == {"aachen": 0, "bonn": 1, "cologne": 0}


def test_methods_without_class_means_warn_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = tables(tmp_path)
    few_ill(paths["bonn"])
    Node("bonn", paths["bonn"], tmp_path / "state", min_class_rows=50).answer(asked(plan(paths)), {})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("method", SENDING, ids=lambda of: of["name"])
def test_a_site_may_decline_and_does_not_say_why(
    method: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = tables(tmp_path)
    few_ill(paths["bonn"])
    given = plan(paths, method=method)
    link = nodes(paths, tmp_path / "state")
    honest, replies = link.answer, []

    def answer(site: str, document: dict[str, Any], arrays: Any) -> Reply:
        if site != "bonn":
            return honest(site, document, arrays)
        replies.append(Node(site, paths[site], tmp_path / "state", min_class_rows=5).answer(document, arrays))
        return replies[-1]

    link.answer = answer
    with pytest.raises(FedpriorError, match="1 of 3 sites cannot take part: 'bonn': it declines"):
        serve(link, given, tmp_path / "run")
    assert replies == [Reply({"refused": "declined"})]
    assert "your smallest class has 3 training rows" in capsys.readouterr().err
    assert json.loads((tmp_path / "state" / "trial" / "bonn" / "sent.jsonl").read_text())["told"] == {
        "refused": "declined"
    }


def test_a_server_that_skips_the_agreement_gets_nothing(tmp_path: Path) -> None:
    """The rule holds for every message that would train."""
    paths = tables(tmp_path)
    few_ill(paths["bonn"])
    given = plan(paths, method={"name": "fedpac"}, rounds=1)
    serve(nodes(paths, tmp_path / "state"), given, tmp_path / "run")
    agreement = json.loads((tmp_path / "run.agreement.json").read_text())
    order = {"kind": "round", "site": "bonn", "round": 0, "counted": 0, "train": True, "report": True}
    node = Node("bonn", paths["bonn"], tmp_path / "other", min_class_rows=5)
    assert node.answer({**order, "experiment": "trial", "agreement": agreement}, {}) == Reply({"refused": "declined"})


def test_a_numeric_target_has_no_classes(tmp_path: Path) -> None:
    paths = tables(tmp_path, number=True)
    given = plan(paths)
    node = Node("bonn", paths["bonn"], tmp_path / "state")
    assert node._table(asked(given)).smallest_class() is None
    assert small_classes(build("fedpac"), node._table(asked(given))) is None
