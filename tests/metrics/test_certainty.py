"""Entropy and confidence against scipy's."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from scipy.stats import entropy, norm

import fedprior
from fedprior.data.target import Classes, Number
from fedprior.methods import build
from fedprior.metrics.certainty import certainty
from support import TRAIN, federation, regression


def test_of_classes() -> None:
    """Of (1, 0) it is 0, of (1/2, 1/2) log 2; the mean of both confidences is 3/4."""
    with np.errstate(divide="ignore"):
        found = certainty(Classes.numbered(2), np.log(np.array([[1.0, 0.0], [0.5, 0.5]])))
    assert found == {"confidence": 0.75, "entropy": pytest.approx(math.log(2) / 2)}
    p = np.random.default_rng(0).dirichlet([1, 2, 3], 20)
    assert certainty(Classes.numbered(3), np.log(p))["entropy"] == pytest.approx(entropy(p, axis=1).mean())


def test_of_a_number() -> None:
    found = certainty(Number(), np.array([[3.0, math.log(4.0)], [0.0, 0.0]]))
    assert found == {"entropy": pytest.approx((norm(0, 2).entropy() + norm(0, 1).entropy()) / 2)}


def test_nobody_is_sure_of_nothing() -> None:
    assert math.isnan(certainty(Classes.numbered(2), np.empty((0, 2)))["entropy"])


@pytest.mark.parametrize("data", [federation((20, 9)), regression((20, 9))])
def test_a_result_has_a_table_of_it(data: fedprior.data.Federation) -> None:
    result = fedprior.run(build("fedavg", train=TRAIN), data, model="softmax", rounds=2, workers=1)
    found = result.calibration
    assert list(found.index) == list(data.clients)
    assert found["nll"].tolist() == result.clients["nll"].tolist()
    assert np.isfinite(found["entropy"]).all()
    assert ("confidence" in found) == (data.target.kind == "classes")


def test_a_result_can_be_copied_and_pickled() -> None:
    """Scikit-learn's users do both; the copy predicts the same and has the same history."""
    data = federation((20, 9))
    result = fedprior.run(build("fedavg", train=TRAIN), data, model="softmax", rounds=2, workers=1)
    x = np.zeros((3, 4))
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        np.testing.assert_array_equal(other.predict("site-0", x), result.predict("site-0", x))
        assert repr(other.journal.events) == repr(result.journal.events)  # nan is not equal to itself
