"""One torch thread for every test: parallelism comes from processes. And the same examples in every run of the suite.

Hypothesis draws its examples from a fixed seed, so that nothing fails by chance when something else changes. With
`EXPLORE=10 pytest ...` it draws ten times as many at a random seed, and gives each test ten times as long: that is
how new faults are found.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

EXPLORE = int(os.environ.get("EXPLORE", "0"))

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile(
    "explore", derandomize=False, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("explore" if EXPLORE else "same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Multiply the number of examples of every test; most tests set their own."""
    done = set()
    for item in items:
        test: Any = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if not EXPLORE or not hasattr(test, "is_hypothesis_test"):
            continue
        item.add_marker(pytest.mark.timeout(EXPLORE * float(item.config.getini("timeout"))))
        if id(test) not in done:
            done.add(id(test))
            known = test._hypothesis_internal_use_settings
            test._hypothesis_internal_use_settings = settings(known, max_examples=EXPLORE * known.max_examples)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
