"""Faults for real, with Flower's own time limits: kill -9, a site that lies in every round, a site that is silent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from federation.lies import FAULTS, LATE, WHY, lie
from federation.real import assert_identical, finish, made, offspring, wait_for
from fedprior import load_model
from fedprior.files import read_tensors
from fedprior.flower import trial
from fedprior.flower.here import Here
from fedprior.flower.link import follow, launch_link, submit
from fedprior.flower.node import Node
from fedprior.flower.orders import Order, Reply
from fedprior.flower.place import Place
from fedprior.flower.processes import Process, end, environment, free_port, start, supernode
from fedprior.flower.serve import serve
from fedprior.flower.status import read_status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
TESTS = Path(__file__).parents[1]


def wait_for_process(ancestor: int, program: str, seconds: float = 300) -> int:
    """A process of a program that another has started, once there is one."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for child, words in offspring(ancestor):
            if any(Path(word).name == program for word in words):
                return int(child.pid)
        time.sleep(0.05)
    raise AssertionError(f"no {program} was ever seen")


def wait_until_working(node: int) -> int:
    """The ClientApp of a node, in the middle of its work."""
    return wait_for_process(node, "flwr-clientapp")


def kept(place: Place, site: str, table: Path, state: Path) -> Process:
    """A site as people run it: the command keeps its node running."""
    command = [sys.executable, "-m", "fedprior", "federation", "site", str(place.site(site)), "--table", str(table)]
    command += ["--state", str(state / site), "--port", str(free_port())]
    return start(command, state / f"{site}.log", environment(state / site / ".flwr"))


def test_kill_nine_of_a_node_in_mid_round(tmp_path: Path) -> None:
    """All processes of a SuperNode die while it trains; the site's command starts it again, and nothing is lost."""
    place, paths = made(tmp_path, "pfedvem", rounds=3, timeout=600)
    others = {site: path for site, path in paths.items() if site != "south"}
    with trial.server(place), trial.nodes(place, others, tmp_path / "sites"):
        south = kept(place, "south", paths["south"], tmp_path / "sites")
        try:
            submit(place)
            wait_for(place, "training", 1)
            node = wait_for_process(south.pid, "flower-supernode")
            wait_until_working(node)
            victims = [psutil.Process(node), *(child for child, _ in offspring(node))]
            for process in victims:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            assert follow(place, lambda found: None)["state"] == "finished"
        finally:
            end(south)
    events = [json.loads(line) for line in (place.run / "events.jsonl").read_text().splitlines()]
    assert all(not event["left_out"] for event in events if event["kind"] == "round")
    assert_identical(place, paths, tmp_path)


@pytest.mark.parametrize("victim", ["app", "link"])
def test_kill_nine_at_the_server(victim: str, tmp_path: Path) -> None:
    """The ServerApp or the whole SuperLink dies while sites train: resumed, the same prior and the same models."""
    place, paths = made(tmp_path, "pfedvem", rounds=3)
    with trial.server(place) as link, trial.nodes(place, paths, tmp_path / "sites") as nodes:
        submit(place)
        wait_for(place, "training", 1)
        wait_until_working(nodes["north"].pid)
        if victim == "app":
            os.kill(int(read_status(place.status)["pid"]), signal.SIGKILL)
        else:
            link.kill()
            link.wait()
        time.sleep(1)
        assert (read_status(place.status)["state"] == "failed") == (victim == "app"), "the ServerApp outlives its link"
        again = launch_link(place) if victim == "link" else None
        try:
            assert finish(place)["state"] == "finished"
        finally:
            if again is not None:
                end(again)
    assert_identical(place, paths, tmp_path)


VICTIM = "south"


class Unheard:
    """A link on which the late answer does not arrive, although the site has done the work."""

    def __init__(self, link: Here) -> None:
        self.link = link

    def exchange(self, orders: Sequence[Order]) -> Mapping[str, Reply | str]:
        late = [o for o in orders if o.site == VICTIM and o.document.get("train")]
        silent = {o.site for o in late if FAULTS.get(o.document["round"]) == LATE}
        return {site: reply for site, reply in self.link.exchange(orders).items() if site not in silent}


def lying(paths: Mapping[str, Path], state: Path) -> Unheard:
    """The same sites in this process."""

    def answer(site: str, document: dict[str, Any], arrays: Any) -> Reply:
        reply = Node(site, paths[site], state / site).answer(document, arrays)
        return lie(document, reply) if site == VICTIM else reply

    return Unheard(Here(answer))


def test_a_site_that_lies_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN, wrong shape, wrong type, too large, truncated, replayed, late: each is rejected with its reason.

    The others train on, and in the last round the site is back from the only state that counted. Prior and models are
    those of the same lies without a network.
    """
    rounds, timeout = len(FAULTS) + 2, 120  # after its late answer a site on a busy machine must be back within that
    place, paths = made(tmp_path, "ditto", rounds=rounds, timeout=timeout, more={"eval_every": rounds})
    honest = {site: path for site, path in paths.items() if site != VICTIM}
    with trial.server(place), trial.nodes(place, honest, tmp_path / "sites"):
        python = [TESTS / "federation" / "liar", TESTS, os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, python)))
        monkeypatch.setenv("LATE_BY", str(timeout + 15))
        with trial.nodes(place, {VICTIM: paths[VICTIM]}, tmp_path / "sites"):
            assert finish(place)["state"] == "finished"
    events = [json.loads(line) for line in (place.run / "events.jsonl").read_text().splitlines()]
    left_out = {event["round"] - 1: event["left_out"] for event in events if event["kind"] == "round"}
    assert {number for number, found in left_out.items() if found} == set(FAULTS)
    for number in FAULTS:
        assert list(left_out[number]) == [VICTIM]
        assert WHY[number] in left_out[number][VICTIM]
    expected = tmp_path / "expected"
    serve(lying(paths, expected / "sites"), place.plan, expected / "run")
    for site in paths:
        models = [load_model(of / "sites" / site / "trial" / site / "model.safetensors") for of in (tmp_path, expected)]
        for name, values in models[1].arrays.items():
            assert np.array_equal(models[0].arrays[name], values), (site, name)
    ours, theirs = (read_tensors(run / "prior.safetensors")[0] for run in (place.run, expected / "run"))
    assert all(np.array_equal(ours[name].numpy(), values.numpy()) for name, values in theirs.items())


def test_a_site_that_never_answers_ends_the_round_at_the_timeout(tmp_path: Path) -> None:
    """A node that is stopped, not killed: connected, and silent."""
    place, paths = made(tmp_path, "fedavg", rounds=2, timeout=60, more={"eval_every": 2})
    with trial.server(place), trial.nodes(place, paths, tmp_path / "sites") as nodes:
        submit(place)
        wait_for(place, "training", 1)
        stopped = [psutil.Process(nodes["west"].pid), *(child for child, _ in offspring(nodes["west"].pid))]
        for process in stopped:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        try:
            began = time.monotonic()
            found = follow(place, lambda found: None)
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.Error):
                    process.resume()
    assert found["state"] == "finished"
    assert found["unfinished"] == ["west"]
    assert time.monotonic() - began < 4 * 60 + 60, "round, evaluation and the end each wait once"
    events = [json.loads(line) for line in (place.run / "events.jsonl").read_text().splitlines()]
    rounds = [event for event in events if event["kind"] == "round"]
    assert rounds[-1]["left_out"] == {"west": "no answer within 60 s"}


def test_a_site_that_never_comes_ends_the_wait(tmp_path: Path) -> None:
    place, paths = made(tmp_path, patience=5)
    with trial.server(place), trial.nodes(place, {s: p for s, p in paths.items() if s != "west"}, tmp_path / "sites"):
        found = finish(place)
    assert found["state"] == "failed"
    assert "no node of west is online" in found["why"]


def test_a_kept_node_gives_up_in_the_end(tmp_path: Path) -> None:
    """A port where nobody listens is waited for; a command that cannot start is not tried for ever."""
    from fedprior.errors import FedpriorError
    from fedprior.flower import keep

    told: list[str] = []
    command = [*supernode(tmp_path, "127.0.0.1:1", "north", tmp_path, tmp_path, free_port()), "--no-such-option"]
    with pytest.raises(FedpriorError, match="12 times in a row"):
        keep.keep_running(command, environment(tmp_path), told.append, pause=0)
    assert len(told) == keep.TRIES - 1
