"""A notebook shows one line per cell, which says how far the runs are."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import fedprior
from fedprior.data import from_frame
from fedprior.data.federation import Federation
from fedprior.experiment import notebook
from fedprior.methods import build

TABLE = pd.DataFrame({"site": ["a", "b"] * 20, "age": [30, 50, 40, 60, 50] * 8, "ill": ["yes", "no", "no", "yes"] * 10})


class Kernel:
    """What IPython shows in one cell after the other: its lines, each with all texts that it had."""

    def __init__(self) -> None:
        self.kernel, self.execution_count = object(), 1
        self.lines: list[list[str]] = []

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        own = [bundle["text/plain"]]
        self.lines.append(own)
        return SimpleNamespace(update=lambda bundle, raw: own.append(bundle["text/plain"]))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    module = SimpleNamespace(get_ipython=lambda: found, display=SimpleNamespace(display=found.display))
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    monkeypatch.setattr(notebook._Line, "cell", (None, None))
    return found


@pytest.fixture
def federation() -> Federation:
    return from_frame(TABLE, site="site", target="ill")


def test_a_cell_has_one_line(kernel: Kernel, federation: Federation) -> None:
    """Of both runs of a comparison, and of the next call in the cell; another cell has its own."""
    fedprior.compare([build("fedavg_ft")], federation, rounds=2, workers=1)
    fedprior.run(build("fedmap"), federation, rounds=3, workers=1)
    kernel.execution_count += 1
    fedprior.assess(TABLE, site="site", target="ill", methods=["local"], splits=2, rounds=1, workers=1)
    first, second = kernel.lines
    assert any(told.startswith("fedavg_ft: round 2 of 2, validation NLL 0.") for told in first)
    assert first[-1].startswith("fedmap: round 3 of 3, validation NLL ")
    assert second[-1].startswith("split 2/2 local: round 1 of 1, validation NLL ")
    assert not any("test" in told for told in first + second)


def test_own_observers_replace_the_line(kernel: Kernel, federation: Federation) -> None:
    seen: list[int] = []
    fedprior.run(build("local"), federation, rounds=1, workers=1, observe=lambda event: seen.append(event["round"]))
    assert seen
    assert not kernel.lines


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["no shell", "IPython on a terminal"])
def test_there_is_no_line_elsewhere(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, shell: Any) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell)
    assert notebook.observers()("local", 1) is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook.observers()("local", 1) is None
