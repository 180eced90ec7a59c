"""What a run needs, and runs that do not fit."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from fedprior.engine import Engine
from fedprior.engine import memory as memory_module
from fedprior.engine.memory import COPIES, PROCESS, Need, Sharing, available, need, shared_room, zeros
from fedprior.errors import FedpriorError
from support import bound, federation

MIB = 1 << 20


def test_the_formula() -> None:
    """1,000 clients with 320 kB of state and as much of uplink keep 640 MB and the downlink.

    Two workers with stacks of 31 hold 6 · 31 · 320 kB ≈ 59.5 MB each beside two gathered blocks of 32 MiB.
    """
    found = need(320_000, 320_000, 320_000, 1000, 320_000, 31, 2)
    assert found.kept == 1000 * 640_000 + 320_000
    assert found.working == 2 * (PROCESS + COPIES * 31 * 320_000 + 64 * MIB)


def test_a_thousand_stateful_clients_fit_in_two_gibibytes() -> None:
    """Ditto: a network of 80,000 weights per client and one in the uplink."""
    found = need(320_000, 320_000, 320_000, 1000, 320_000, 31, 2)
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
    room = available()
    assert room is None or room > 0
    shared = shared_room()
    assert shared is None or shared >= 0
