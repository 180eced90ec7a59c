"""Scalers: by hand, and through JSON and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedprior.data.federation import from_arrays
from fedprior.data.scaling import Scaler
from fedprior.data.sums import Sums


def test_by_hand() -> None:
    """1, 3, NaN, 8: the median is 3; 1, 3, 3, 8 has mean 3.75 and variance (7.5625 + 2 · 0.5625 + 18.0625) / 4."""
    own = np.array([[1.0], [3.0], [np.nan], [8.0]])
    scaler = Scaler.fitted(own, standardise=True, impute=True)
    assert scaler is not None
    assert scaler.document() == {"fill": [3.0], "mean": [3.75], "std": [pytest.approx(np.sqrt(26.75 / 4))]}
    assert scaler([[np.nan], [3.75]])[:, 0].tolist() == [pytest.approx(-0.75 / np.sqrt(26.75 / 4)), 0.0]


def test_a_constant_feature_becomes_zero() -> None:
    scaler = Scaler.fitted(np.full((5, 2), 0.1), standardise=True, impute=False)
    assert scaler is not None
    assert scaler(np.full((2, 2), 0.1)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_filling_alone_does_not_scale() -> None:
    scaler = Scaler.fitted(np.array([[1.0, np.nan], [5.0, np.nan]]), standardise=False, impute=True)
    assert scaler is not None
    assert scaler([[np.nan, np.nan], [7.0, 2.0]]).tolist() == [[3.0, 0.0], [7.0, 2.0]]


def test_nothing_to_do() -> None:
    assert Scaler.fitted(np.ones((3, 2)), standardise=False, impute=False) is None


@given(arrays(np.float64, (6, 3), elements=st.floats(-1e6, 1e6)), st.booleans())
def test_through_json_and_back(own: Any, impute: bool) -> None:
    """Bit for bit."""
    scaler = Scaler.fitted(own, standardise=True, impute=impute)
    assert scaler is not None
    again = Scaler.from_document(json.loads(json.dumps(scaler.document())))
    assert (again(own) == scaler(own)).all()
    assert (again.fill is None) == (not impute)


def test_a_federation_keeps_its_clients_encoders() -> None:
    """Also those of some clients in another order."""
    rng = np.random.default_rng(0)
    sites = {k: (scale * rng.normal(size=(20, 2)), np.arange(20) % 2) for k, scale in (("a", 1), ("b", 50), ("c", 9))}
    federation = from_arrays(sites, standardise=True)
    encoder = federation.encoder("b")
    assert encoder is not None
    scaler = encoder.scaler
    train = federation.train.client(1)[0].double().numpy()
    assert {tuple(row) for row in np.round(train, 4)} <= {tuple(row) for row in np.round(scaler(sites["b"][0]), 4)}
    assert federation.select([2, 1]).encoder("b") is encoder
    assert from_arrays(sites).encoder("b") is None


def test_a_rare_gap_is_not_far_away() -> None:
    """One 1 among 1,000 rows lies 31.6 deviations from the mean; divided by ½, at 1.998. A number is as ever."""
    rare = np.zeros((1000, 2))
    rare[0] = 1.0
    for scaler in (
        Scaler.fitted(rare, standardise=True, impute=True, truths=np.array([True, False])),
        Scaler.from_sums(Sums.of(rare), standardise=True, impute=True, truths=np.array([True, False])),
    ):
        assert scaler is not None
        np.testing.assert_allclose(scaler(rare[:1])[0], [0.999 / 0.5, 0.999 / np.sqrt(0.001 * 0.999)])


def test_an_input_that_is_always_0_has_no_effect_if_shared() -> None:
    scaler = Scaler.from_sums(Sums.of(np.zeros((9, 1))), standardise=True, impute=True, truths=np.array([True]))
    assert scaler is not None
    assert abs(float(scaler([[1.0]])[0, 0])) < 1e-20
