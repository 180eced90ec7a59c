"""Heterogeneity numbers against hand calculation and scipy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from fedprior.data.heterogeneity import label_spread, size_spread, value_spread
from fedprior.errors import FedpriorError


def heterogeneity(labels: NDArray[np.int64], parts: Sequence[NDArray[np.int64]], classes: int) -> dict[str, float]:
    return size_spread([len(part) for part in parts]) | label_spread([labels[part] for part in parts], classes)


def test_by_hand() -> None:
    """Labels 0 0 1 1 1 1, clients {0 0} and {1 1 1 1}: p = (1, 0) and (0, 1), q = (1/3, 2/3).

    TV 2/3 and 1/3, mean 1/2. Sizes 2 and 4: mean 3, sd 1. JS of a point mass p_c = 1 with q:
    H((p + q) / 2) - H(q) / 2; H(q) = 0.9183 bits, H(2/3, 1/3) = 0.9183, H(1/6, 5/6) = 0.6500,
    so 0.4591 and 0.1909, mean 0.3250.
    """
    labels = np.array([0, 0, 1, 1, 1, 1])
    numbers = heterogeneity(labels, [np.array([0, 1]), np.array([2, 3, 4, 5])], 2)
    assert numbers == pytest.approx(
        {
            "size_min": 2,
            "size_median": 3,
            "size_max": 4,
            "size_cv": 1 / 3,
            "tv": 0.5,
            "js": 0.3250,
            "labels": 1,
            "effective_labels": 1,
        },
        abs=1e-4,
    )


def test_equal_clients_have_no_distance() -> None:
    """Two clients like the whole, with 4 of 5 classes: no distance, four labels, all effective."""
    labels = np.tile(np.arange(4), 10)
    numbers = heterogeneity(labels, [np.arange(20), np.arange(20, 40)], 5)
    assert numbers["tv"] == numbers["size_cv"] == 0
    assert numbers["js"] == pytest.approx(0, abs=1e-12)
    assert numbers["labels"] == 4
    assert numbers["effective_labels"] == pytest.approx(4)


def test_against_scipy() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 7, 300)
    parts = np.split(rng.permutation(300), [5, 40, 160])
    p = [np.bincount(labels[part], minlength=7) / len(part) for part in parts]
    q = np.bincount(labels, minlength=7) / 300
    numbers = heterogeneity(labels, parts, 7)
    assert numbers["js"] == pytest.approx(np.mean([jensenshannon(row, q, base=2) ** 2 for row in p]))
    assert numbers["effective_labels"] == pytest.approx(np.mean([np.exp(entropy(row)) for row in p]))


def test_errors() -> None:
    labels = np.array([0, 1, 2])
    with pytest.raises(FedpriorError, match="at least one example each: drop the empty ones"):
        heterogeneity(labels, [np.array([0]), np.array([], dtype=np.int64)], 3)
    with pytest.raises(FedpriorError, match=r"^labels run from 0 to 2, outside 0\.\.1: number them from 0\.$"):
        heterogeneity(labels, [np.array([0, 1, 2])], 2)


def test_numbers_by_hand() -> None:
    """Clients {0, 2} and {4, 6, 8}: all five have mean 4 and variance 8, the clients' means are 1 and 6.

    Between them: (2·9 + 3·4) / (5·8) = 3/4. Shift: (3 + 2) / 2 / √8. Deviations 1 and √(8/3), over √8.
    """
    spread = value_spread([np.array([0.0, 2.0]), np.array([4.0, 6.0, 8.0])])
    expected = {"between": 0.75, "shift": 2.5 / 8**0.5, "scale": (1 + (8 / 3) ** 0.5) / 2 / 8**0.5}
    assert spread == pytest.approx(expected)


def test_equal_numbers_have_no_spread() -> None:
    assert value_spread([np.array([3.0, 3.0]), np.array([3.0])]) == {"between": 0.0, "shift": 0.0, "scale": 0.0}
