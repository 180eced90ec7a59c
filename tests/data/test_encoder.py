"""Encoders and the sums that shared scaling is made of: by hand, beside scikit-learn, and through JSON and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedprior.data.encoder import Encoder, Sums
from fedprior.data.federation import SPLITS, from_arrays
from fedprior.data.scaling import UNKNOWN, Scaler
from fedprior.data.schema import Schema
from fedprior.errors import FedpriorError

quick = settings(deadline=None, max_examples=50)
Site = tuple[NDArray[Any], NDArray[Any]]


def patients(n: int = 40, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, n),
            "dose": rng.normal(50, 9, n),
            "stage": rng.choice(["I", "II", "III"], n),
            "smoker": rng.choice(["no", "yes"], n),
            "ill": rng.choice(["healthy", "ill"], n),
        }
    )


def with_gaps(n: int = 40, seed: int = 0) -> pd.DataFrame:
    frame = patients(n, seed)
    frame.loc[::5, "dose"] = np.nan
    frame.loc[3::7, "stage"] = None
    frame.loc[1::6, "smoker"] = None
    return frame


def sites() -> dict[str, Site]:
    """Three sites of different size and scale."""
    rng = np.random.default_rng(1)
    sizes = {"b": (30, 5.0), "a": (50, 1.0), "c": (21, 90.0)}
    return {k: (rng.normal(scale, scale, (n, 3)), np.arange(n) % 2) for k, (n, scale) in sizes.items()}


# Sums


def test_sums_by_hand() -> None:
    """1, 3, 8 and a gap: mean 4, Σ(x - 4)² = 9 + 1 + 16; nothing known: n = 0. Two inputs are 2 · 4 · 8 bytes."""
    sums = Sums.of(np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan], [8.0, np.nan]]))
    assert [part.tolist() for part in sums] == [[3.0, 0.0], [4.0, 0.0], [26.0, 0.0], [1.0, 4.0]]
    assert sums.nbytes == 64


def test_adding_sums_by_hand() -> None:
    """{1, 3} and {8}: means 2 and 8; 2 + 0 + 6² · 2 · 1 / 3 = 26, as of 1, 3, 8."""
    total = Sums.of(np.array([[1.0], [3.0]])) + Sums.of(np.array([[8.0]]))
    assert [part.tolist() for part in total] == [[3.0], [4.0], [26.0], [0.0]]


cells = st.floats(-1e3, 1e3) | st.just(float("nan"))


@quick
@given(arrays(np.float64, st.tuples(st.integers(1, 30), st.just(2)), elements=cells), st.integers(0, 30))
def test_sums_of_pieces_are_those_of_the_whole(x: NDArray[np.float64], cut: int) -> None:
    """Wherever it is cut, also into nothing and all."""
    whole, pieces = Sums.of(x), Sums.of(x[:cut]) + Sums.of(x[cut:])
    for got, expected in zip(pieces, whole, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-7)


def test_sums_do_not_cancel() -> None:
    """Around 10⁹ the raw Σx² has steps of 10² and more; the deviation of 1 must come out to 9 digits all the same."""
    x = np.random.default_rng(0).normal(size=(3000, 1)) + 1e9
    total = Sums.of_all({str(k): Sums.of(part) for k, part in enumerate(np.split(x, 3))})
    np.testing.assert_allclose(total.square / 3000, (x - 1e9).var(0), rtol=1e-9)


def test_the_order_of_sites_changes_no_bit() -> None:
    parts = {k: Sums.of(x) for k, (x, _) in sites().items()}
    one, other = Sums.of_all(parts), Sums.of_all(dict(reversed(parts.items())))
    assert all((a == b).all() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("value", [0.1, 1e6 / 3, -7.0])
def test_constants(value: float) -> None:
    """The same everywhere: deviation 1, and 0 for every row. Constant at one site only: scaled as everywhere."""
    everywhere = Sums.of(np.full((7, 1), value)) + Sums.of(np.full((3, 1), value))
    scaler = Scaler.from_sums(everywhere, standardise=True, impute=False)
    assert scaler is not None
    assert scaler.document() == {"fill": None, "mean": [value], "std": [UNKNOWN]}  # no weight of it was ever trained
    other = np.array([[value + 2], [value + 4]])
    scaler = Scaler.from_sums(Sums.of(np.full((2, 1), value)) + Sums.of(other), standardise=True, impute=False)
    assert scaler is not None
    np.testing.assert_allclose(scaler.std, [np.std([0, 0, 2, 4])], rtol=1e-9)


def test_nothing_to_do_and_filling_alone() -> None:
    sums = Sums.of(np.array([[1.0], [np.nan], [5.0]]))
    assert Scaler.from_sums(sums, standardise=False, impute=False) is None
    scaler = Scaler.from_sums(sums, standardise=False, impute=True)
    assert scaler is not None
    assert scaler([[np.nan], [7.0]]).tolist() == [[3.0], [7.0]]


# Shared scaling


def test_shared_scaling_is_that_of_the_pooled_training_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As scikit-learn scales them when it may see them all; here only Sums leave a site: 3 inputs · 4 · 8 bytes."""
    told: list[Any] = []
    whole = Sums.of_all

    def overheard(parts: Any) -> Sums:
        told.append(parts)
        return whole(parts)

    monkeypatch.setattr(Sums, "of_all", overheard)
    plain, shared = from_arrays(sites()), from_arrays(sites(), standardise=True, scaling="shared")
    raw = {client: from_arrays({client: sites()[client]}).train.x.shape[0] for client in sites()}
    [parts] = told
    assert set(parts) == set(sites())
    assert all(isinstance(own, Sums) and all(part.shape == (3,) for part in own) for own in parts.values())
    assert {client: int(own.n[0]) for client, own in parts.items()} == raw
    assert shared.setup_bytes == 96
    assert plain.setup_bytes == from_arrays(sites(), standardise=True).setup_bytes == 0
    pooled = StandardScaler().fit(_training_rows())
    for client in shared.clients:
        encoder = shared.encoder(client)
        assert encoder is not None
        np.testing.assert_allclose(encoder.scaler.mean, pooled.mean_, rtol=1e-12)
        np.testing.assert_allclose(encoder.scaler.std, pooled.scale_, rtol=1e-12)
    for split in SPLITS:
        expected = pooled.transform(plain.split(split).x.double().numpy())
        np.testing.assert_allclose(shared.split(split).x.numpy(), expected, rtol=1e-5, atol=1e-6)


def _training_rows() -> NDArray[np.float64]:
    """In full precision, found by the row number that a third kind of input carries through the same split."""
    rows = []
    for client, (x, y) in sites().items():
        numbered = from_arrays({client: (np.arange(len(x))[:, None], y)})
        rows.append(x[numbered.train.x[:, 0].numpy().astype(int)])
    return np.concatenate(rows)


def test_shared_scaling_does_not_depend_on_the_order_of_sites() -> None:
    given = sites()
    one = from_arrays(given, standardise=True, scaling="shared")
    other = from_arrays(dict(reversed(given.items())), standardise=True, scaling="shared")
    for c, client in enumerate(one.clients):
        assert torch.equal(one.train.client(c)[0], other.train.client(other.clients.index(client))[0])


def test_shared_scaling_fills_in_the_shared_mean() -> None:
    """scikit-learn's scaler leaves gaps out of the mean and the deviation; what it leaves as NaN is then 0."""
    frames = {"a": with_gaps(40, 0), "b": with_gaps(60, 1)}
    schema = Schema.inferred(pd.concat(frames.values(), ignore_index=True), target="ill")
    encoder = Encoder.shared(schema, Sums.of_all({k: Sums.of(schema.matrix(own)) for k, own in frames.items()}))
    pooled = StandardScaler().fit(np.concatenate([schema.matrix(own) for own in frames.values()]))
    assert pooled.scale_ is not None
    pooled.scale_[schema.truths] = 0.5
    for own in frames.values():
        np.testing.assert_allclose(encoder.encode(own), np.nan_to_num(pooled.transform(schema.matrix(own))), atol=1e-12)


def test_nothing_to_scale_sends_nothing() -> None:
    federation = from_arrays(sites(), scaling="shared")
    assert federation.setup_bytes == 0
    assert federation.encoder("a") is None
    assert federation.fingerprint() == from_arrays(sites()).fingerprint()


# Own scaling


def test_own_scaling_is_scikit_learns() -> None:
    """Levels but the first, medians for gaps, then standardised, 0 and 1 by ½. 2 + 2 + 1 inputs."""
    frame = patients()
    frame.loc[::5, "dose"] = np.nan
    schema = Schema.inferred(frame, target="ill")
    assert schema.inputs == ("age", "dose", "stage=II", "stage=III", "smoker")
    coded = make_column_transformer(
        ("passthrough", ["age", "dose"]), (OneHotEncoder(drop="first", sparse_output=False), ["stage", "smoker"])
    )
    scaled = make_pipeline(coded, SimpleImputer(strategy="median"), StandardScaler()).fit(frame)
    scaled[-1].scale_[2:] = 0.5
    expected = scaled.transform(frame)
    np.testing.assert_allclose(Encoder.own(schema, frame).encode(frame), expected, atol=1e-12)


def test_indicators_are_scikit_learns() -> None:
    """Gaps in dose, stage and smoker: one more input for each, at the end."""
    frame = with_gaps()
    schema = Schema.inferred(frame, target="ill", indicators=True)
    assert schema.inputs[-3:] == ("dose missing", "stage missing", "smoker missing")
    expected = frame[["dose", "stage", "smoker"]].isna().to_numpy(float)
    assert (schema.matrix(frame)[:, -3:] == expected).all()


# Encoding


@quick
@given(st.permutations(["age", "dose", "stage", "smoker"]), st.integers(0, 40), st.booleans())
def test_neither_the_order_of_columns_nor_batches_matter(order: list[str], cut: int, indicators: bool) -> None:
    """Bit for bit, with columns that the model does not know, and without the target."""
    frame = with_gaps()
    encoder = Encoder.own(Schema.inferred(frame, target="ill", indicators=indicators), frame)
    whole = encoder.encode(frame)
    other = frame[order].assign(more=1.5)
    assert (encoder.encode(other) == whole).all()
    assert (np.concatenate([encoder.encode(other[:cut]), encoder.encode(other[cut:])]) == whole).all()


@quick
@given(st.integers(0, 5), st.booleans(), st.booleans())
def test_through_json_and_back(seed: int, shared: bool, indicators: bool) -> None:
    """Bit for bit."""
    frame = with_gaps(seed=seed)
    schema = Schema.inferred(frame, target="ill", indicators=indicators)
    encoder = Encoder.shared(schema, Sums.of(schema.matrix(frame))) if shared else Encoder.own(schema, frame)
    again = Encoder.from_document(json.loads(json.dumps(encoder.document())))
    assert again.schema == schema
    assert (again.encode(frame) == encoder.encode(frame)).all()
    assert (again.labels(frame) == encoder.labels(frame)).all()


def test_labels() -> None:
    frame = patients()
    encoder = Encoder.own(Schema.inferred(frame, target="ill"), frame)
    assert encoder.labels(frame).tolist() == (frame["ill"] == "ill").astype(int).tolist()
    number = Encoder.own(Schema.inferred(frame, target="dose"), frame)
    assert number.labels(frame).tolist() == frame["dose"].tolist()


def test_a_level_never_seen_is_coded_as_the_first_and_counted() -> None:
    frame = patients()
    encoder = Encoder.own(Schema.inferred(frame, target="ill"), frame)
    new = frame[:3].assign(stage=pd.Series(["I", "IV", None], dtype=object))
    assert encoder.unknown(new) == {"stage": 1}
    assert encoder.unknown(frame) == {}
    coded = encoder.encode(new)
    assert (coded[1, 2:4] == coded[0, 2:4]).all()
    assert not np.isnan(coded).any()


def refusal(encoder: Encoder, frame: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        encoder.encode(frame) if isinstance(frame, pd.DataFrame) else encoder(frame)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_what_is_refused() -> None:
    frame = patients()
    schema = Schema.inferred(frame, target="ill")
    encoder = Encoder.own(schema, frame, impute=False)
    told = refusal(encoder, frame.drop(columns=["age", "stage"]))
    assert "lacks 'age', 'stage'" in told
    assert "input 'dose' has missing values" in refusal(encoder, with_gaps())
    assert "column 'age'" in refusal(encoder, frame.assign(age="old"))
    assert "column 'smoker'" in refusal(encoder, frame.assign(smoker="at times"))
    assert "(4,)" in refusal(encoder, np.zeros((2, 4)))
    assert "trained on arrays" in refusal(Encoder(None, Scaler.idle((5,))), frame)
    with pytest.raises(FedpriorError, match="5 inputs"):
        Encoder(schema, Scaler.idle((4,)))


def test_without_a_schema_it_scales_arrays() -> None:
    encoder = Encoder(None, Scaler.idle((1, 2, 2)))
    x = np.random.default_rng(0).normal(size=(3, 1, 2, 2))
    assert (Encoder.from_document(json.loads(json.dumps(encoder.document())))(x) == x).all()


# In a federation


def test_a_federation_with_a_schema() -> None:
    """Its encoders make of raw rows what the federation holds, and it knows the classes' names."""
    frame = with_gaps(60)
    schema = Schema.inferred(frame, target="ill")
    given = {k: (schema.matrix(own), schema.labels(own)) for k, own in (("a", frame[:25]), ("b", frame[25:]))}
    for scaling in ("own", "shared"):
        federation = from_arrays(given, standardise=True, impute=True, scaling=scaling, schema=schema)
        assert federation.target == schema.target
        encoder = federation.encoder("b")
        assert encoder is not None
        assert encoder.schema is schema
        rows = {tuple(row) for row in encoder.encode(frame[25:]).astype(np.float32)}
        assert {tuple(row) for split in SPLITS for row in federation.split(split).client(1)[0].numpy()} == rows
        assert federation.select([1]).encoder("b") is encoder


def test_a_schema_of_other_inputs_is_refused() -> None:
    schema = Schema.inferred(patients(), target="ill")
    for standardise in (False, True):
        with pytest.raises(FedpriorError, match=r"schema of 5 inputs|takes \(5,\)"):
            from_arrays(sites(), standardise=standardise, schema=schema)


def test_a_schema_alone_scales_nothing() -> None:
    frame = patients()
    schema = Schema.inferred(frame, target="ill")
    given = {"a": (schema.matrix(frame), schema.labels(frame))}
    federation = from_arrays(given, schema=schema)
    encoder = federation.encoder("a")
    assert encoder is not None
    assert federation.fingerprint() == from_arrays(given, classes=2).fingerprint()
    assert (encoder.encode(frame) == schema.matrix(frame)).all()
