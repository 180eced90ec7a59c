"""The likelihood of counts against SciPy's distributions, sampling, and derivatives by autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedprior.data.target import Count
from fedprior.models.likelihood import POISSON, STEEPEST, Counts, likelihood_of


def predictive(mean: float, variance: float) -> torch.Tensor:
    return torch.tensor([mean, np.log(variance)], dtype=torch.float64)


def known(mean: float, variance: float) -> stats.rv_frozen:
    r = mean**2 / (variance - mean)
    return stats.nbinom(r, r / (r + mean))


def test_the_likelihood_of_a_count() -> None:
    """No mean of 0, which has no logarithm: then the output is the log rate itself."""
    assert likelihood_of(Count("falls", 2.5, 1.0)) == Counts(2.5)
    assert likelihood_of(Count()) == Counts(1.0)
    assert {width for width in range(4) if Counts().fits(width)} == {Counts().outputs} == {1}


@pytest.mark.parametrize("mean", [0.02, 2.5, 400.0])
def test_losses_are_poissons(mean: float) -> None:
    """-log p(y) with the rate e^{z / √max(1, mean)} times the mean count."""
    z = torch.linspace(-2, 2, 5, dtype=torch.float64).view(1, 5, 1)
    y = torch.from_numpy(np.random.default_rng(0).poisson(mean, size=(1, 5)).astype(np.float64))
    rate = mean * np.exp(z.squeeze(-1).numpy() / np.sqrt(max(1.0, mean)))
    found = Counts(mean).losses(z, y)
    np.testing.assert_allclose(found, -stats.poisson.logpmf(y, rate), rtol=1e-10)
    torch.testing.assert_close(Counts(mean).log_density(Counts(mean).predictive(z), y), -found)


def test_losses_of_millions_in_single_precision() -> None:
    """Terms of 10⁷ cancel to 8: their difference must be taken in double precision."""
    out, y = torch.zeros(1, 1, 1), torch.tensor([[1e6]])
    assert float(Counts(1e6).losses(out, y)) == pytest.approx(-stats.poisson.logpmf(1e6, 1e6), rel=1e-5)


@pytest.mark.parametrize("mean", [0.02, 2.5, 400.0, 1e5])
def test_the_loss_is_as_curved_for_large_counts_as_for_small_ones(mean: float) -> None:
    """At the mean the second derivative by the output is min(mean, 1), and it is what `curvature` says."""
    of, z, y = Counts(mean), torch.zeros(1, 1, 1, dtype=torch.float64), torch.full((1, 1), mean, dtype=torch.float64)
    second = torch.autograd.functional.hessian(lambda o: of.losses(o, y).sum(), z).item()  # type: ignore[no-untyped-call]
    assert second == pytest.approx(min(mean, 1.0))
    out = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    ((function, weight),) = of.curvature(out)
    (slope,) = torch.autograd.grad(function.sum(), out)
    assert (weight * slope.squeeze(-1).square()).item() == pytest.approx(second)
    assert not weight.requires_grad


@pytest.mark.parametrize(("mean", "variance"), [(0.1, 0.3), (3.0, 3.1), (3.0, 30.0), (1e3, 5e3), (1e4, 1.001e4)])
def test_the_density_is_negative_binomial(mean: float, variance: float) -> None:
    y = np.unique(np.linspace(0, mean + 5 * variance**0.5, 30).round())
    found = Counts().log_density(predictive(mean, variance).expand(len(y), 2), torch.from_numpy(y))
    np.testing.assert_allclose(found, known(mean, variance).logpmf(y), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("mean", [0.3, 4.0, 200.0])
def test_near_poisson_the_density_has_no_jump(mean: float) -> None:
    """On both sides of where the formula changes, and at equal moments; below the mean a variance is the mean."""
    y = torch.arange(0, 4 * int(mean) + 4).double()
    at = [
        Counts().log_density(predictive(mean, mean * (1 + e)).expand(len(y), 2), y) for e in (POISSON * 0.999, POISSON)
    ]
    assert (at[0] - at[1]).abs().max() < 1e-5 * (1 + at[0].abs().max())
    for variance in (mean, mean / 2):
        found = Counts().log_density(predictive(mean, variance).expand(len(y), 2), y)
        np.testing.assert_allclose(found, stats.poisson.logpmf(y, mean), rtol=1e-10, atol=1e-10)


def test_an_uncertain_rate_by_sampling() -> None:
    """log rate ~ N(0.4, 0.5) relative to a mean of 3: moments of a million counts, within five standard errors."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(3 * np.exp(0.4 + 0.5**0.5 * rng.normal(size=1_000_000)))
    mean, log_variance = Counts(3.0).averaged(*torch.tensor([0.4, 0.5], dtype=torch.float64)).tolist()
    assert mean == pytest.approx(counts.mean(), abs=5 * counts.std() / 1000)
    square = np.square(counts - counts.mean())
    assert np.exp(log_variance) == pytest.approx(square.mean(), abs=5 * square.std() / 1000)
    known_rate = torch.tensor([[0.7]], dtype=torch.float64)
    torch.testing.assert_close(
        Counts(0.5).averaged(known_rate[:, 0], torch.zeros(1).double()), Counts(0.5).predictive(known_rate)
    )


def test_a_mixture_and_a_temperature() -> None:
    """Poisson's of 1 and 5 in equal parts: mean 3, variance 3 + 4. T multiplies it, down to the mean at most."""
    of = Counts()
    draws = torch.stack([predictive(1, 1), predictive(5, 5)])
    mixed = of.mix(draws, torch.tensor([0.5, 0.5]).double().log())
    torch.testing.assert_close(mixed, predictive(3, 7))
    y = torch.tensor(4.0).double()
    torch.testing.assert_close(
        of.mixed_density(draws, torch.tensor([0.5, 0.5]).double().log(), y), of.log_density(mixed, y)
    )
    torch.testing.assert_close(of.temper(mixed, 2.0), predictive(3, 14))
    torch.testing.assert_close(of.temper(mixed, 0.25), predictive(3, 3))
    torch.testing.assert_close(of.readable(mixed), torch.tensor([3.0, 7**0.5], dtype=torch.float64))


def test_wild_outputs_stay_finite() -> None:
    """In single precision, forwards and backwards; rates are bounded from above."""
    out = torch.tensor([[[1e4], [-1e4], [0.0], [-150.0]]], requires_grad=True)
    of, y = Counts(2.0), torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    losses = of.losses(out, y)
    (grad,) = torch.autograd.grad(losses.sum(), out)
    found = of.predictive(out.detach())
    assert torch.isfinite(losses).all()
    assert torch.isfinite(grad).all()
    assert torch.isfinite(found[..., 0]).all()
    assert found[0, 0, 0] == pytest.approx(2 * np.exp(STEEPEST), rel=1e-5)
    assert torch.isfinite(of.log_density(found, y)).all()
    assert torch.isfinite(of.averaged(torch.tensor([1e3, -1e3]), torch.tensor([1e3, 1e3]))).all()
