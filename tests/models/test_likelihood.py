"""Likelihoods against torch.distributions, closed forms, sampling, and second derivatives by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical as Cat
from torch.distributions import MixtureSameFamily, Normal
from torch.func import jacrev

from fedprior.data.target import Classes, Number
from fedprior.models.likelihood import FLOOR, Categorical, Gaussian, Likelihood, equal_weights, likelihood_of

UNIT = Gaussian(mean=120.0, deviation=15.0)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(seed: int, classes: int, *shape: int) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def log_prob(of: Any, y: Tensor) -> Tensor:
    """By torch, whose distributions have no types."""
    found: Tensor = of.log_prob(y)
    return found


def known(out: Tensor, of: Gaussian = UNIT) -> Normal:
    """What outputs mean in the target's unit: N(mean + deviation · m, deviation² (e^s + FLOOR))."""
    return Normal(of.mean + of.deviation * out[..., 0], of.deviation * (out[..., 1].exp() + FLOOR).sqrt())


# Which likelihood, and what it takes


def test_the_likelihood_of_a_target() -> None:
    assert likelihood_of(Classes.numbered(7)) == Categorical(7)
    assert likelihood_of(Number("mmHg", 120.0, 15.0)) == UNIT
    with pytest.raises(TypeError, match="no likelihood for int"):
        likelihood_of(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("likelihood", "widths"), [(Categorical(2), {1, 2}), (Categorical(3), {3}), (Gaussian(), {2})], ids=str
)
def test_the_widths_that_fit(likelihood: Likelihood, widths: set[int]) -> None:
    """One output stands for two classes, and for nothing else."""
    assert {width for width in range(6) if likelihood.fits(width)} == widths
    assert likelihood.fits(likelihood.outputs)


@pytest.mark.parametrize(
    ("likelihood", "width"), [(Categorical(2), 1), (Categorical(2), 2), (Categorical(5), 5), (UNIT, 2)], ids=str
)
def test_shapes(likelihood: Likelihood, width: int) -> None:
    """[..., o] -> [..., P], with any axes before."""
    for shape in ((3,), (2, 3), (4, 2, 3)):
        out = normal(0, *shape, width)
        predictive = likelihood.predictive(out)
        assert predictive.shape == (*shape, likelihood.parameters)
        assert likelihood.readable(predictive).shape == predictive.shape


# Classes


@pytest.mark.parametrize("shape", [(2, 5), (4, 2, 5)], ids=["examples", "draws of examples"])
@pytest.mark.parametrize("classes", [2, 4])
def test_losses_of_classes(shape: tuple[int, ...], classes: int) -> None:
    out, y = normal(0, *shape, classes), labels(1, classes, *shape)
    close(Categorical(classes).losses(out, y), -log_prob(Cat(logits=out), y))


@pytest.mark.parametrize("shape", [(2, 5), (4, 2, 5)], ids=["examples", "draws of examples"])
def test_a_single_logit_is_the_second_of_two(shape: tuple[int, ...]) -> None:
    """z stands for (0, z): p(1) = σ(z)."""
    z, y = 3 * normal(0, *shape, 1), labels(1, 2, *shape)
    of = Categorical(2)
    both = torch.cat([torch.zeros_like(z), z], -1)
    close(of.losses(z, y), -log_prob(Cat(logits=both), y))
    close(of.predictive(z), of.predictive(both))
    close(of.readable(of.predictive(z))[..., 1], z.squeeze(-1).sigmoid())


def test_losses_are_stable() -> None:
    """Logits of ±1000 have a loss of 2000, not inf."""
    out, y = torch.tensor([[[1000.0, -1000.0]]]), torch.tensor([[1]])
    assert float(Categorical(2).losses(out, y)) == 2000
    assert float(Categorical(2).losses(torch.tensor([[[-1000.0]]]), y)) == 1000


def test_the_predictive_distribution_of_classes() -> None:
    of, out, y = Categorical(4), normal(0, 2, 5, 4), labels(1, 4, 2, 5)
    predictive = of.predictive(out)
    close(of.readable(predictive), Cat(logits=out).probs)
    close(of.log_density(predictive, y), log_prob(Cat(logits=out), y))
    close(of.log_density(predictive, y), -of.losses(out, y))


def test_a_mixture_of_classes_averages_probabilities() -> None:
    """Weights 1/4 and 3/4 of (1/2, 1/2) and (1, 0): (7/8, 1/8), although the logits of the second are infinite."""
    of = Categorical(2)
    draws = torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]], dtype=torch.float64).log()  # [S, n, P]
    weights = torch.tensor([[0.25], [0.75]], dtype=torch.float64).log()
    close(of.readable(of.mix(draws, weights)), torch.tensor([[7 / 8, 1 / 8]], dtype=torch.float64))


def test_a_mixture_of_classes_has_weights_of_its_own_for_every_example() -> None:
    """Against the sum over draws; log-weights [S, C, 1] and [S, C, n], and equal ones [S, 1, 1]."""
    of, out = Categorical(3), normal(0, 4, 2, 5, 3)
    draws = of.predictive(out)
    for log_w in (normal(1, 4, 2, 1).log_softmax(0), normal(2, 4, 2, 5).log_softmax(0), equal_weights(4, out.dtype)):
        expected = sum(log_w[s].exp().unsqueeze(-1) * out[s].softmax(-1) for s in range(4))
        assert isinstance(expected, Tensor)
        close(of.mix(draws, log_w).exp(), expected)
        close(of.mix(draws, log_w).exp().sum(-1), torch.ones(2, 5, dtype=torch.float64))


# Numbers


@pytest.mark.parametrize("shape", [(2, 5), (4, 2, 5)], ids=["examples", "draws of examples"])
def test_losses_of_numbers_are_in_the_targets_unit(shape: tuple[int, ...]) -> None:
    """-log p of the number as it was measured, not of the standardised one: log 15 more."""
    out, y = normal(0, *shape, 2), 120 + 15 * normal(1, *shape)
    close(UNIT.losses(out, y), -log_prob(known(out), y))
    close(UNIT.losses(out, y), Gaussian().losses(out, (y - 120) / 15) + math.log(15))


def test_the_predictive_distribution_of_numbers() -> None:
    out, y = normal(0, 2, 5, 2), 120 + 15 * normal(1, 2, 5)
    predictive = UNIT.predictive(out)
    close(predictive[..., 0], known(out).mean)
    close(predictive[..., 1].exp(), known(out).variance)
    close(UNIT.readable(predictive), torch.stack([known(out).mean, known(out).stddev], -1))
    close(UNIT.log_density(predictive, y), log_prob(known(out), y))
    close(UNIT.log_density(predictive, y), -UNIT.losses(out, y))


@pytest.mark.parametrize("s", [-9.3, -50.0, -1e4])
def test_the_variance_has_a_floor(s: float) -> None:
    """However sure a site is, the variance stays above 1e-4 of the target's own; with FLOOR alone, a hit has the loss
    ½ log(2π · 1e-4) + log 15, and a miss by 0.1 deviations costs ½ · 0.01/1e-4 = 50 more. The gradient stays finite.
    """
    out = torch.tensor([[[0.0, s]]], dtype=torch.float64, requires_grad=True)
    variance = float(UNIT.predictive(out.detach())[..., 1].exp())
    assert variance == pytest.approx(15**2 * (math.exp(s) + 1e-4), rel=1e-9)
    hit, miss = (UNIT.losses(out, torch.full((1, 1), y, dtype=torch.float64)) for y in (120.0, 121.5))
    if s < -20:
        assert hit.item() == pytest.approx(0.5 * math.log(2 * math.pi * 1e-4) + math.log(15))
        assert (miss - hit).item() == pytest.approx(50)
    (grad,) = torch.autograd.grad(miss.sum(), out)
    assert torch.isfinite(grad).all()


def test_the_floor_in_single_precision() -> None:
    """float32 outputs stay float32, and far below the floor the variance is the floor."""
    predictive = Gaussian().predictive(torch.tensor([[0.0, -200.0]]))
    assert predictive.dtype == torch.float32
    assert float(predictive[0, 1]) == pytest.approx(math.log(1e-4), rel=1e-6)


def test_a_mixture_of_numbers_by_hand() -> None:
    """N(0, 1) and N(4, 3) with weights 3/4 and 1/4: mean 1, variance ¾ (1 + 1²) + ¼ (3 + 3²) = 1.5 + 3 = 4.5."""
    draws = torch.tensor([[[0.0, 0.0]], [[4.0, math.log(3)]]], dtype=torch.float64)
    found = Gaussian().mix(draws, torch.tensor([[0.75], [0.25]], dtype=torch.float64).log())
    close(found, torch.tensor([[1.0, math.log(4.5)]], dtype=torch.float64))


def test_a_mixture_of_numbers_has_the_moments_of_the_mixture() -> None:
    """Against torch's mixture, with weights of their own for every example; and against a million samples.

    A sample mean has the error σ/√n = σ/1000, a sample variance about σ² √(κ/n), less than 0.003 σ² here; five of each.
    """
    out, log_w = normal(0, 4, 3, 2), normal(1, 4, 3).log_softmax(0)
    draws = UNIT.predictive(out)  # [S, n, P]
    found = UNIT.mix(draws, log_w)
    mixture: Any = MixtureSameFamily(Cat(logits=log_w.T), Normal(draws[..., 0].T, (draws[..., 1].T / 2).exp()))
    close(found[:, 0], mixture.mean)
    close(found[:, 1].exp(), mixture.variance)
    torch.manual_seed(0)
    samples = mixture.sample((1_000_000,))
    sigma = found[:, 1].div(2).exp()
    assert ((samples.mean(0) - found[:, 0]).abs() < 0.005 * sigma).all()
    assert ((samples.var(0) / sigma.square() - 1).abs() < 0.015).all()


@pytest.mark.parametrize("deviation", [1e-18, 1.0, 1e30])
def test_numbers_of_any_unit_in_single_precision(deviation: float) -> None:
    """The variance alone would be beyond what single precision holds; densities and mixtures are shifted, no more."""
    of, out, log_w = Gaussian(2 * deviation, deviation), normal(0, 4, 3, 2), normal(1, 4, 3).log_softmax(0)
    y = 2 + normal(2, 3)
    shift = math.log(deviation)
    draws = of.predictive(out.float())
    found, expected = of.mix(draws, log_w.float()), Gaussian(2.0).mix(Gaussian(2.0).predictive(out), log_w)
    torch.testing.assert_close(found[:, 0].double() / deviation, expected[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:, 1].double() - 2 * shift, expected[:, 1], rtol=0, atol=1e-4)
    density = of.log_density(found, (y * deviation).float()).double() + shift
    torch.testing.assert_close(density, Gaussian(2.0).log_density(expected, y), rtol=0, atol=1e-4)


def test_equal_weights() -> None:
    """log 1/S, for stacks [S, C, n, P]."""
    weights = equal_weights(5, torch.float64)
    assert weights.shape == (5, 1, 1)
    close(weights.exp().sum(0), torch.ones(1, 1, dtype=torch.float64))
    draws = UNIT.predictive(normal(0, 5, 2, 3, 2))
    close(UNIT.mix(draws, weights)[..., 0], draws[..., 0].mean(0))
    close(UNIT.mix(draws[:1].expand(5, -1, -1, -1), weights), draws[0])


# Curvature


def outer(likelihood: Likelihood, out: Tensor) -> Tensor:
    """Σ a ∇f ∇fᵀ at one example's outputs [o], [o, o]."""
    total = torch.zeros(len(out), len(out), dtype=out.dtype)
    for k, (_, weight) in enumerate(likelihood.curvature(out.unsqueeze(0))):

        def function(o: Tensor, k: int = k) -> Tensor:
            return likelihood.curvature(o.unsqueeze(0))[k][0][0]

        slope = jacrev(function)(out)
        total += weight[0] * torch.outer(slope, slope)
    return total


def loss(likelihood: Likelihood, y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda o: likelihood.losses(o.view(1, 1, -1), y.view(1, 1))[0, 0]


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (2, 2), (4, 4)])
def test_curvature_of_classes_is_the_expected_hessian(classes: int, width: int) -> None:
    """Σ_y p(y) ∇² -log p(y), exactly; for K logits it is diag(p) - p pᵀ, for one p (1 - p)."""
    of = Categorical(classes)
    for seed in range(3):
        out = normal(seed, width)
        p = of.readable(of.predictive(out))
        expected = sum(p[c] * jacrev(jacrev(loss(of, torch.tensor(c))))(out) for c in range(classes))
        assert isinstance(expected, Tensor)
        close(outer(of, out), expected)
        close(expected, torch.diag(p) - torch.outer(p, p) if width > 1 else (p[0] * p[1]).view(1, 1))


@pytest.mark.parametrize("s", [0.7, -2.0, -8.0, -9.5, -15.0])
def test_curvature_of_numbers_is_the_fisher_information(s: float) -> None:
    """By closed form: with v = e^s + FLOOR, a mean has 1/v and a log-variance ½ (∂ log v/∂s)² = ½ (e^s/v)².

    Near the floor the second fades, as the variance no longer follows the output.
    """
    out = torch.tensor([0.3, s], dtype=torch.float64)
    v = math.exp(s) + FLOOR
    close(outer(UNIT, out), torch.diag(torch.tensor([1 / v, 0.5 * (math.exp(s) / v) ** 2], dtype=torch.float64)))


@pytest.mark.parametrize("s", [0.7, -2.0, -9.0])
def test_curvature_of_numbers_is_the_expected_hessian(s: float) -> None:
    """E_y ∇² -log p(y) by Gauss-Hermite quadrature, which is exact: the loss is a quadratic polynomial of y."""
    out = torch.tensor([0.3, s], dtype=torch.float64)
    told = known(out)
    nodes = torch.tensor([-math.sqrt(3), 0.0, math.sqrt(3)], dtype=torch.float64)  # of N(0, 1), weights 1/6, 2/3, 1/6
    shares = torch.tensor([1 / 6, 2 / 3, 1 / 6], dtype=torch.float64)
    points = told.mean + told.stddev * nodes
    expected = sum(a * jacrev(jacrev(loss(UNIT, y)))(out) for a, y in zip(shares, points, strict=True))
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(outer(UNIT, out), expected, rtol=1e-8, atol=1e-8)


def test_curvature_weights_carry_no_gradient() -> None:
    """Else a gradient of f would be one of a · f."""
    for of, width in ((Categorical(3), 3), (Categorical(2), 1), (UNIT, 2)):
        out = normal(0, 4, width).requires_grad_()
        pairs = of.curvature(out)
        assert len(pairs) == of.parameters
        for function, weight in pairs:
            assert function.shape == weight.shape == (4,)
            assert function.requires_grad
            assert not weight.requires_grad


def test_confident_predictions_have_finite_losses_in_single_precision() -> None:
    """Outputs of ±80 in float32, where e^80 is near the largest number: no nan and no inf, forwards and backwards."""
    out = torch.tensor([[[80.0, 80.0], [-80.0, -80.0], [80.0, -80.0]]], requires_grad=True)
    for of, y in ((Gaussian(), torch.zeros(1, 3)), (Categorical(2), torch.tensor([[0, 1, 1]]))):
        losses = of.losses(out, y)
        (grad,) = torch.autograd.grad(losses.sum(), out)
        assert torch.isfinite(losses).all()
        assert torch.isfinite(grad).all()
    assert F.softplus(torch.tensor(160.0)) == Categorical(2).losses(out, torch.tensor([[0, 1, 1]]))[0, 2]


@pytest.mark.parametrize("likelihood", [Categorical(4), Gaussian(3.0, 2.0)])
def test_the_density_of_a_mixture_is_that_of_what_is_mixed(likelihood: Any) -> None:
    """Two clients, three draws of seven rows, weights of each client's own."""
    outputs = torch.randn(3, 2, 7, likelihood.outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    draws, log_weights = likelihood.predictive(outputs), torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]).double().log()
    y = (
        torch.arange(14).view(2, 7) % 4
        if isinstance(likelihood, Categorical)
        else torch.arange(14.0).double().view(2, 7)
    )
    found = likelihood.mixed_density(draws, log_weights.T.unsqueeze(2), y)
    expected = likelihood.log_density(likelihood.mix(draws, log_weights.T.unsqueeze(2)), y)
    assert torch.allclose(found, expected, rtol=0, atol=1e-14)
