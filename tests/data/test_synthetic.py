"""FedMAP's synthetic clients: counts, moments before the maps, and who depends on what."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from pydantic import ValidationError

from fedprior.data.sets.synthetic import Client, Synthetic, ball_and_shell
from fedprior.errors import FedpriorError

Skew = Literal["feature", "quantity", "label"]


def generate(skew: Skew = "feature", seed: int = 0, **options: Any) -> list[Client]:
    return Synthetic(skew=skew, **options).generate(np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("skew", "sizes", "zeros"),
    [
        ("feature", [2000] * 10, [1000] * 10),
        ("quantity", [2000] * 5 + [500] * 5, [1000] * 5 + [250] * 5),
        ("label", [2000] * 10, [1000] * 5 + [1700] * 5),
    ],
)
def test_counts(skew: Skew, sizes: list[int], zeros: list[int]) -> None:
    """20,000 / 12,500 / 20,000 rows; 0.85 * 2000 = 1700."""
    clients = generate(skew)
    assert [len(y) for _, y in clients] == sizes
    assert [int((y == 0).sum()) for _, y in clients] == zeros
    assert all(x.shape == (len(y), 30) and x.dtype == np.float64 for x, y in clients)
    assert all(y.dtype == np.int64 and set(y) == {0, 1} for _, y in clients)


def test_odd_number_of_clients() -> None:
    """Of five clients the last two are the second half; a single client is in the first."""
    assert [len(y) for _, y in generate("quantity", clients=5, samples=40)] == [40, 40, 40, 10, 10]
    assert [len(y) for _, y in generate("quantity", clients=1, samples=40)] == [40]


def test_rows_are_shuffled() -> None:
    """1000 zeros and 1000 ones in random order change about 1000 times (sd 22), sorted ones once."""
    _, y = generate(clients=1)[0]
    assert np.diff(y).astype(bool).sum() == pytest.approx(1000, abs=110)


@pytest.mark.parametrize("noise_variance", [9.0, 2.0])
def test_moments_before_the_maps(noise_variance: float) -> None:
    """Class 0: |core|^2 / 2 ~ chi2(4), so E |core|^2 = 8, sd 2 sqrt(8). Class 1: |core| ~ N(8, variance 2).

    With 40,000 rows a class: sd of the means 0.028 and 0.007, of the variance 2 sqrt(2 / 40,000) = 0.014.
    Uniform directions: E u u' = I / 4 (entries have sd below 0.002). Tolerances are about 5 sd.
    """
    y = np.repeat([0, 1], 40_000)
    x = ball_and_shell(y, np.random.default_rng(1), 30, 4, noise_variance)
    ball, shell = x[y == 0, :4], x[y == 1, :4]
    assert (ball**2).sum(axis=1).mean() == pytest.approx(8, abs=0.14)
    assert np.cov(ball.T) == pytest.approx(2 * np.eye(4), abs=0.07)
    radius = np.linalg.norm(shell, axis=1)
    assert radius.mean() == pytest.approx(8, abs=0.035)
    assert radius.var() == pytest.approx(2, abs=0.07)
    direction = shell / radius[:, None]
    assert direction.T @ direction / 40_000 == pytest.approx(np.eye(4) / 4, abs=0.01)
    for rows in (x[y == 0], x[y == 1]):
        assert rows[:, 4:].var() == pytest.approx(noise_variance, rel=0.01)
        assert rows.mean(axis=0) == pytest.approx(np.zeros(30), abs=0.12)


def test_offsets_grow_with_the_client() -> None:
    """The rows' mean gives b_k ~ 5 (k + 1) N(0, I) to within sqrt(30 * 9 / 2000) = 0.37.

    So mean(x) / (5 (k + 1)) is standard normal: over 40 x 30 values a variance of 1, sd sqrt(2/1200) = 0.04.
    """
    offsets = np.stack([x.mean(axis=0) / (5 * (k + 1)) for k, (x, _) in enumerate(generate(clients=40))])
    assert offsets.var() == pytest.approx(1, abs=0.2)
    assert offsets[20:].var() == pytest.approx(1, abs=0.3)


def test_rotation_is_shared_and_maps_are_not() -> None:
    """Without noise the rows of a client span 4 dimensions, Q's first 4 rows seen through its own A_k."""
    clients = generate(clients=2, samples=100, noise_variance=0.0)
    centred = [x - x.mean(axis=0) for x, _ in clients]
    assert [np.linalg.matrix_rank(x) for x in centred] == [4, 4]
    assert np.linalg.matrix_rank(np.concatenate(centred)) == 8


def test_rotation_comes_from_the_first_generator() -> None:
    """Undo client 1's map by hand: x = z Q A + b with Q from spawn 0 and A, b first from spawn 2."""
    (_, _), (x, y) = generate(clients=2, samples=60, seed=7)
    shared, _, own = np.random.default_rng(7).spawn(3)
    Q = np.linalg.qr(shared.normal(size=(30, 30)))[0]
    A, b = own.normal(size=(30, 30)), 10 * own.normal(size=30)
    z = np.linalg.solve(A.T, (x - b).T).T @ Q.T
    radius = np.linalg.norm(z[:, :4], axis=1)
    assert radius[y == 1].mean() == pytest.approx(8, abs=5 * np.sqrt(2 / 30))
    assert (z[y == 0, :4] ** 2).mean() == pytest.approx(2, abs=5 * np.sqrt(8 / 120))


def test_reproducible() -> None:
    first, again, other = (
        generate(seed=3, samples=50),
        generate(seed=3, samples=50),
        generate(seed=4, samples=50),
    )
    for (x, y), (x2, y2), (x3, _) in zip(first, again, other, strict=True):
        assert np.array_equal(x, x2)
        assert np.array_equal(y, y2)
        assert not np.array_equal(x, x3)


@pytest.mark.parametrize("skew", ["feature", "quantity", "label"])
def test_client_does_not_depend_on_the_number_of_clients(skew: Skew) -> None:
    """Clients 0-2 are in the first half of 6 and of 10."""
    for (x, y), (x2, y2) in zip(generate(skew, clients=6)[:3], generate(skew, clients=10)[:3], strict=True):
        assert np.array_equal(x, x2)
        assert np.array_equal(y, y2)


def test_errors() -> None:
    with pytest.raises(FedpriorError, match=r"^intrinsic=5 is more than features=4: use a smaller number\.$"):
        Synthetic(skew="feature", features=4, intrinsic=5)
    with pytest.raises(FedpriorError, match="leave small clients fewer than 2 rows: use at least samples=8"):
        Synthetic(skew="quantity", samples=7)
    with pytest.raises(ValidationError):
        Synthetic(skew="features")  # type: ignore[arg-type]
