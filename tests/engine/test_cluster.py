"""Ray: the same results as here, bit for bit, and errors that reach people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedprior import tree
from fedprior.engine import Engine, WorkerError, cluster
from fedprior.engine.cluster import ray_cluster
from fedprior.errors import FedpriorError
from fedprior.methods import METHODS
from support import bound, federation, same

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    """A cluster on this machine, for all tests of the file."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize("name", [*sorted(METHODS), "fedavg+opt", "pfedbred+ft"])
def test_a_cluster_gives_the_same_bits(name: str) -> None:
    """Without and with states, with a downlink per client, with draws; some clients report, some only train."""
    data = federation()
    method = bound(name, data)
    with (
        Engine(method, data, 3, chunk=2) as here,
        Engine(method, data, 3, chunk=2, runner=ray_cluster()) as there,
    ):
        for number, (trainers, reporters) in enumerate([([0, 2, 3, 5], [2, 3]), (here.everyone, here.everyone)]):
            ours, theirs = (engine.round(number, trainers, reporters) for engine in (here, there))
            assert ours.logs.keys() == theirs.logs.keys()
            assert (ours.counted, ours.left_out) == (theirs.counted, theirs.left_out)
        assert same(here.server, there.server)
        assert same(here.memory.states, there.memory.states)
        found, other = (engine.evaluate(2, ("test",)) for engine in (here, there))
        assert found.scores == other.scores
        for a, b in zip(found.predictions["test"], other.predictions["test"], strict=True):
            assert (a == b).all()
        assert same(here.memory.personal, there.memory.personal)
    assert ray.is_initialized(), "a cluster that was there before the run is left alone"


def test_an_error_for_people_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is told with the clients it happened to."""

    def failing(error: Exception) -> Any:
        def fail(*_: object) -> None:
            raise error

        return ray.remote(fail)

    data = federation()
    with Engine(bound("fedavg", data), data, 0, runner=ray_cluster()) as engine:
        monkeypatch.setattr(engine.runner, "task", failing(FedpriorError("one clear sentence")))
        with pytest.raises(FedpriorError, match=r"^one clear sentence$"):
            engine.round(0, engine.everyone, engine.everyone)
        monkeypatch.setattr(engine.runner, "task", failing(ValueError("a bug")))
        with pytest.raises(WorkerError, match=r"a bug \(clients: site-0"):
            engine.round(0, engine.everyone, engine.everyone)


def test_examples_travel_as_arrays() -> None:
    """The object store shares arrays between the workers of a machine; the context itself carries none."""
    data = federation()
    with Engine(bound("fedavg", data), data, 0) as engine:
        hollow, examples = cluster._stored(engine.context)
    assert hollow.federation.train.x.numel() == 0
    assert hollow.federation.clients == data.clients
    back = cluster._with_examples(hollow.federation, cluster._tensors(examples))
    assert torch.equal(back.test.x, data.test.x)
    assert back.fingerprint() == data.fingerprint()


def test_a_tree_travels() -> None:
    data = federation()
    with Engine(bound("pfedvem", data), data, 0) as engine:
        kind = engine.method.types[1]
        again = cluster._tree(kind, cluster._arrays(engine.memory.states))
        assert same(again, engine.memory.states)
        assert list(tree.flatten(again)) == list(tree.flatten(engine.memory.states))


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    data = federation()
    with pytest.raises(FedpriorError, match=r"install fedprior\[ray\]"):
        Engine(bound("fedavg", data), data, 0, runner=ray_cluster())


def test_a_cluster_that_is_not_there() -> None:
    """Port 9 of this machine: nobody is there, and Ray itself would ask for minutes."""
    with pytest.raises(FedpriorError, match=r"no Ray cluster answers at '127\.0\.0\.1:9'"):
        cluster._reach("127.0.0.1:9")
    cluster._reach(None)
    cluster._reach("auto")
