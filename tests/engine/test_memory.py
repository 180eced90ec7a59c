"""What a run needs, and runs that do not fit."""

from __future__ import annotations

import multiprocessing
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from fedprior import room
from fedprior.data.datasets import load
from fedprior.engine import Engine
from fedprior.engine import memory as memory_module
from fedprior.engine.memory import JOURNAL, Need, Sharing, need, shared_room, zeros
from fedprior.errors import FedpriorError
from fedprior.experiment.journal import Journal
from fedprior.metrics import Cohort
from fedprior.models import build
from support import bound, federation

MIB = 1 << 20


def test_the_formula() -> None:
    """1,000 clients with 320 kB of state, of uplink and (twice) of personal model keep 1,280 MB and the downlink.

    Two workers of 200 MiB with stacks of 31 hold 6 · 31 · 320 kB = 59.52 MB each, six copies of the weights: start,
    carry, gradients, two moments, uplink; and two gathered blocks of 32 MiB.
    """
    found = need(320_000, 320_000, 320_000, 320_000, 1000, 320_000, 31, 2)
    assert found.kept == 1_280_320_000
    assert found.working == 2 * (200 * MIB + 59_520_000 + 64 * MIB)
    assert found.told == 0


def test_predictions_and_the_journal_count() -> None:
    """100,000 rows of 10 classes are 4 MB, four times; 10 clients with 5 lines at each of 11 evaluations, 440 kB."""
    found = need(0, 0, 0, 0, 10, 0, 1, 1, predicted=1_000_000, lines=55)
    assert found.told == 16_000_000 + 800 * 550


def test_a_line_of_the_journal_takes_no_more_than_is_counted() -> None:
    """What a run adds to its journal at an evaluation, measured."""
    cohort = Cohort([{f"metric-{m}": 0.1 * m + k for m in range(8)} for k in range(500)], np.arange(500), 500, 0, {})
    journal = Journal(None)
    names = [f"client-{k}" for k in range(500)]
    tracemalloc.start()
    journal.evaluation(1, "personal", "test", names, cohort)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / 500 <= JOURNAL


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("mlp", {"hidden": [10**9]}, (30,)),
        ("mlp", {"hidden": [10**18, 10**18]}, (30,)),
        ("alexnet", {"hidden": 10**9}, (3, 64, 64)),
        ("lstm", {"vocabulary": 10**12}, (25,)),
        ("lstm", {"vocabulary": 10**12, "frozen": False}, (25,)),
        ("lenet5", {"padding": 10**9}, (3, 32, 32)),
    ],
)
def test_a_model_that_cannot_fit_is_not_made(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(FedpriorError, match=f"model '{name}' would take about .* GiB .* use a smaller one"):
        build(name, options, shape, 2)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("noise", {"samples": 10**12}),
        ("noise", {"shape": [10**9, 10**9]}),
        ("synthetic", {"samples": 10**12}),
        ("synthetic", {"features": 10**7}),
        ("synthetic", {"clients": 10**12}),
    ],
)
def test_data_that_cannot_fit_are_not_made(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(FedpriorError, match=f"data '{name}' would take about .* lower data"):
        load(name, **options)


def test_a_partition_that_copies_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,797 digits of 64 floats, twice, are 920 kB."""
    monkeypatch.setattr(room, "available", lambda: 900_000)
    with pytest.raises(FedpriorError, match="data 'digits' with this partition would take about 1 MiB"):
        load("digits")


def test_a_network_of_ones_own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """51 float64, six times, are 2,448 bytes."""
    data = federation()
    method = bound("ditto", data)
    monkeypatch.setattr(room, "available", lambda: 2447)
    with pytest.raises(FedpriorError, match="training this model would take"):
        Engine(method, data, 0)


def test_a_thousand_stateful_clients_fit_in_two_gibibytes() -> None:
    """Ditto: a network of 80,000 weights per client, one in the uplink and two personal models."""
    found = need(320_000, 320_000, 320_000, 320_000, 1000, 320_000, 31, 2)
    assert found.kept + found.working < 2 << 30


def test_a_run_that_cannot_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "available", lambda: 100 * MIB)
    with pytest.raises(FedpriorError, match=r"the run needs about 2\.0 GiB \(1\.0 GiB for .* but 100 MiB of memory"):
        Need(1 << 30, 1 << 30).check("fork")


def test_shared_memory_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers give it 64 MiB, and writing past that is a crash, not an error."""
    monkeypatch.setattr(memory_module, "shared_room", lambda: 64 * MIB)
    monkeypatch.setattr(memory_module, "available", lambda: 1 << 40)
    Need(65 * MIB, 0).check("fork")
    Need(63 * MIB, 0).check("spawn")
    with pytest.raises(FedpriorError, match="65 MiB of states and uplinks in shared memory but /dev/shm has 64 MiB"):
        Need(65 * MIB, 0).check("spawn")


def test_the_engine_checks_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "available", lambda: MIB)
    data = federation()
    with pytest.raises(FedpriorError, match="use fewer workers, fewer clients or a smaller model"):
        Engine(bound("ditto", data), data, 0)


def test_the_engine_counts_every_part() -> None:
    """Ditto on the perceptron 4-6-3, 51 float64: state 408 B, uplink 408 + 8 B, personal model twice, 408 B down."""
    data = federation()
    with Engine(bound("ditto", data), data, 0) as engine:
        assert engine.need.kept == len(data) * (408 + 416 + 2 * 408) + 408


@pytest.mark.parametrize("sharing", ["nobody", "fork", "spawn"])
def test_zeros(sharing: Sharing) -> None:
    """A child's writing is seen exactly where memory is shared."""
    found = zeros((2, 3), torch.float64, sharing)
    assert found.dtype == torch.float64
    assert found.tolist() == [[0.0] * 3] * 2
    assert zeros((0, 3), torch.float32, sharing).shape == (0, 3)
    assert zeros((), torch.int64, sharing).item() == 0
    child = multiprocessing.get_context("fork").Process(target=found.fill_, args=(7.0,))
    child.start()
    child.join()
    assert found.sum().item() == (0.0 if sharing == "nobody" else 42.0)


def test_this_machine_tells() -> None:
    """On Linux there is always an answer."""
    free = room.available()
    assert free is None or free > 0
    shared = shared_room()
    assert shared is None or shared >= 0
