"""A federation of real sites gives what the simulator gives, bit for bit: every method, every wrapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprior.experiment.participation import Participation
from fedprior.flower.orders import may_tell
from fedprior.protocol import METHODS
from fedprior.wrappers import WRAPPERS
from flower.sites import deployed, linked, same_values, simulated
from support import bound, counting, federation, regression, same

SMALL = (12, 5, 9)
WRAPPED = (
    *(f"fedavg+{wrapper}" for wrapper in WRAPPERS),
    "pfedbred+ft+server_step",
    "mixed+cal",
    "mr_mtl+median+ft",
    "pfedme+dp",
)


def assert_equal(name: str, tmp_path: Path, **settings: Any) -> None:
    data = federation(SMALL)
    method = bound(name, data)
    expected = simulated(method, data, **settings)
    sites, link = linked(method, data, tmp_path)
    found = deployed(method, data, link, **settings)
    assert found.selected == expected.selected
    for split in ("validation", "test"):
        for number in {event["round"] for event in expected.journal.events if event["kind"] == "evaluation"}:
            ours, theirs = (run.journal.values(number, split) for run in (found, expected))
            assert same_values(ours, theirs), f"round {number}, {split}"
    assert same_values(found.journal.logs, expected.journal.logs)
    for client in data.clients:
        own = sites.personal(client, found.selected)
        for path, values in expected.arrays(client).items():
            assert np.array_equal(own[path][0], values, equal_nan=True), (client, path)
    sent = [event for event in found.journal.events if event["kind"] == "round"]
    assert link.bytes_up == sum(event["bytes_up"] for event in sent), "the network carries what the method counts"


@pytest.mark.parametrize("name", [*sorted(METHODS), *WRAPPED])
def test_every_method_equals_the_simulator(name: str, tmp_path: Path) -> None:
    assert_equal(name, tmp_path)


@pytest.mark.parametrize("name", ["fedavg", "fedavg_ft", "pfedvem", "fedamp", "fedmap"])
def test_partial_participation_equals_the_simulator(name: str, tmp_path: Path) -> None:
    """With one site that joins when all is over, and evaluations that ride on messages to those that do not train."""
    part = Participation(rule="fraction", rate=0.5, newcomers=1)
    assert_equal(name, tmp_path, rounds=4, participation=part, eval_every=2)


@pytest.mark.parametrize("made", [regression, counting])
@pytest.mark.parametrize("name", ["fedmap", "pfedvem", "mixed"])
def test_a_numeric_target_equals_the_simulator(name: str, made: Any, tmp_path: Path) -> None:
    data = made(SMALL)
    method = bound(name, data)
    _, link = linked(method, data, tmp_path)
    found, expected = deployed(method, data, link), simulated(method, data)
    assert same_values(found.values, expected.values)


def test_an_evaluation_rides_on_the_next_message(tmp_path: Path) -> None:
    """Three rounds with an evaluation after each: three messages per site and one more for the last evaluation."""
    data = federation(SMALL)
    sites, link = linked(bound("fedavg", data), data, tmp_path)
    deployed(sites.method, data, link, rounds=3)
    asked = [(order.round, order.splits is not None, order.train) for name, order in sites.orders if name == "site-0"]
    assert asked == [(0, False, True), (1, True, True), (2, True, True), (3, True, False)]


def test_everything_that_methods_log_is_on_the_list() -> None:
    data = federation(SMALL)
    for name in METHODS:
        (first, *_) = simulated(bound(name, data), data, rounds=1).journal.logs
        assert all(map(may_tell, first.keys() - {"round", "client", "updated"})), name
    assert not may_tell("patient.loss")
    assert not may_tell("fedavg.patient")


def test_the_prior_is_that_of_the_selected_round(tmp_path: Path) -> None:
    """Its evaluation arrives with the next round, when the server has moved on."""
    data = federation(SMALL)
    method = bound("fedmap", data)
    _, link = linked(method, data, tmp_path)
    found, expected = deployed(method, data, link, rounds=3), simulated(method, data, rounds=3)
    assert found.selected == expected.selected
    assert same(found.server, expected.server)
