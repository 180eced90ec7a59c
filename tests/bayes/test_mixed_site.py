"""A site of the mixed model: derivatives against finite differences of log Z, and log Z against the integral."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor

from fedprior.bayes import glm, mixed, scoring, standard
from fedprior.bayes.covariance import FLOOR, Covariance, Diagonal, Full
from fedprior.bayes.glm import Family, Multinomial, Normal, Poisson, Rows
from fedprior.bayes.lda import unpack
from fedprior.bayes.mixed import Doubt, Fit, Message

FAMILIES: dict[str, Family] = {
    "logistic": Multinomial(2),
    "softmax": Multinomial(3),
    "poisson": Poisson(2.5),
    "normal": Normal(0.7),
}


def sites(family: Family, sizes: tuple[int, ...] = (30, 12, 25), inputs: int = 2, seed: int = 0) -> Rows:
    """Rows of sites of different size."""
    rng, longest = np.random.default_rng(seed), max(sizes)
    real = torch.tensor([[float(i < n) for i in range(longest)] for n in sizes], dtype=torch.float64)
    x = torch.from_numpy(rng.normal(size=(len(sizes), longest, inputs + 1)))
    x[..., 0] = 1
    classes = family.classes if isinstance(family, Multinomial) else 0
    shape = (len(sizes), longest)
    if isinstance(family, Poisson):
        y = torch.from_numpy(rng.poisson(2.5, size=shape)).double()
    else:
        y = torch.from_numpy(rng.integers(0, classes, size=shape) if classes else rng.normal(size=shape))
    return Rows(x * real.unsqueeze(-1), y, real)


def parameters(family: Family, full: bool, inputs: int = 2) -> tuple[Tensor, Tensor]:
    """Some γ and L."""
    D, rng = family.outputs * (inputs + 1), np.random.default_rng(1)
    L = 0.6 * np.diag(np.abs(rng.normal(size=D))) + (0.3 * np.tril(rng.normal(size=(D, D)), -1) if full else 0)
    return torch.from_numpy(rng.normal(size=D) * 0.5), torch.from_numpy(L)


def unsure(size: int, seed: int = 2) -> Doubt:
    """Some C and U."""
    root = np.random.default_rng(seed).normal(size=(size, size))
    C, U = torch.from_numpy(root @ root.T / 50), torch.from_numpy(np.abs(root + root.T))
    return Doubt(C, U, C.diagonal() / 3)


def log_z(family: Family, rows: Rows, gamma: Tensor, L: Tensor) -> Tensor:
    return mixed.posterior(family, rows, gamma, L).log_z


def sent(family: Family, rows: Rows, gamma: Tensor, L: Tensor) -> tuple[Fit, Message]:
    fit = mixed.posterior(family, rows, gamma, L)
    return fit, mixed.message(family, Full(len(gamma)), rows, L, fit, unsure(len(gamma)))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("full", [False, True])
def test_the_mode_is_one(family: Family, full: bool) -> None:
    """At the mode the gradient of log p(y | γ + L b) - ½ bᵀb by b is 0, by automatic differentiation."""
    rows, (gamma, L) = sites(family), parameters(family, full)
    b = mixed.posterior(family, rows, gamma, L).b.clone().requires_grad_()
    eta = glm.outputs(rows.x, gamma + b @ L.T)
    ((family.log_density(eta, rows.y) * rows.real).sum() - b.square().sum() / 2).backward()  # type: ignore[no-untyped-call]
    assert b.grad is not None
    assert b.grad.abs().max() < 1e-8


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_derivatives_of_a_family(family: Family) -> None:
    """Residual, W and its contracted derivative, by automatic differentiation of log p(y | η)."""
    rng = np.random.default_rng(3)
    m, rows = family.outputs, sites(family, (1,))
    eta = torch.from_numpy(rng.normal(size=(1, 1, m)))
    root = rng.normal(size=(m, m))
    h = torch.from_numpy(root @ root.T).view(1, 1, m, m)

    def log_p(z: Tensor) -> Tensor:
        return family.log_density(z.view(1, 1, m), rows.y).sum()

    hessian: Any = torch.autograd.functional.hessian(log_p, eta.flatten())  # type: ignore[no-untyped-call]
    jacobian: Any = torch.autograd.functional.jacobian
    torch.testing.assert_close(family.residual(eta, rows.y).flatten(), jacobian(log_p, eta.flatten()))
    torch.testing.assert_close(family.weight(eta)[0, 0], -hessian)
    slope = jacobian(lambda z: (family.weight(z.view(1, 1, m)) * h).sum(), eta.flatten())
    torch.testing.assert_close(family.slope(eta, h).flatten(), slope)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("full", [False, True])
def test_the_score_is_the_derivative_by_gamma(family: Family, full: bool) -> None:
    rows, (gamma, L) = sites(family), parameters(family, full)
    _, message = sent(family, rows, gamma, L)
    eps = 1e-5
    for j, unit in enumerate(torch.eye(len(gamma), dtype=torch.float64)):
        ends = (log_z(family, rows, gamma + s * eps * unit, L) for s in (1, -1))
        slope = (next(ends) - next(ends)) / (2 * eps)
        torch.testing.assert_close(message.score[:, j], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("full", [False, True])
def test_the_slope_is_the_derivative_by_the_covariance(family: Family, full: bool) -> None:
    """L → L (I + S/2) along every entry of a symmetric S; off the diagonal an entry counts twice."""
    rows, (gamma, L) = sites(family), parameters(family, full)
    _, message = sent(family, rows, gamma, L)
    D, eps = len(gamma), 1e-5
    found = unpack(message.slope, D)
    for i in range(D):
        for j in range(i + 1):
            S = torch.zeros(D, D, dtype=torch.float64)
            S[i, j] = S[j, i] = eps
            ends = (log_z(family, rows, gamma, L + s * L @ S / 2) for s in (1, -1))
            slope = (next(ends) - next(ends)) / (2 * eps)
            torch.testing.assert_close(found[:, i, j] * (1 if i == j else 2), slope, rtol=1e-6, atol=1e-7)


def test_the_derivative_by_the_noise() -> None:
    rows, (gamma, L) = sites(Normal(0.7)), parameters(Normal(0.7), False)
    _, message = sent(Normal(0.7), rows, gamma, L)
    ends = (log_z(Normal(0.7 * math.exp(s * 1e-5)), rows, gamma, L) for s in (1, -1))
    torch.testing.assert_close(message.noise[:, 0], (next(ends) - next(ends)) / 2e-5, rtol=1e-6, atol=1e-7)


def test_degrees_of_freedom_of_deviations() -> None:
    """With exact rows a site's θ is its own, and θ - γ is as uncertain as γ: so are its degrees of freedom.

    With γ known they are those of θ.
    """
    family, rows = Normal(1e-9), sites(Normal(1e-9))
    gamma, L = parameters(family, False)
    fit, doubt = mixed.posterior(family, rows, gamma, L), unsure(3)
    of_gamma = mixed.degrees(doubt.gamma.diagonal(), doubt.sway)
    torch.testing.assert_close(
        mixed.spread(fit, L, doubt).deviation_freedom, of_gamma.expand(3, 3), rtol=1e-4, atol=1e-4
    )
    known = doubt._replace(gamma=torch.zeros_like(L), sway=torch.zeros(3).double())
    rough = mixed.spread(mixed.posterior(Normal(0.7), rows, gamma, L), L, known)
    torch.testing.assert_close(rough.deviation_freedom, rough.freedom)


def test_the_information_is_the_variance_of_the_score() -> None:
    """Gaussian, y ~ N(Xγ, K) with K = s² I + X Σ Xᵀ: A = Xᵀ K⁻¹ X; ½ tr (K⁻¹ v_j x_j x_jᵀ)²; ½ tr (s² K⁻¹)²."""
    family, rows = Normal(0.7), sites(Normal(0.7), (20,))
    gamma, L = parameters(family, False)
    fit = mixed.posterior(family, rows, gamma, L)
    message = mixed.message(family, Diagonal(3), rows, L, fit, unsure(3))
    x = rows.x[0].numpy()
    inverse = np.linalg.inv(0.7 * np.eye(20) + x @ (L @ L.T).numpy() @ x.T)
    np.testing.assert_allclose(unpack(message.information, 3)[0], x.T @ inverse @ x, rtol=1e-9)
    for j, v in enumerate((L @ L.T).diagonal().tolist()):
        one = inverse @ (v * np.outer(x[:, j], x[:, j]))
        assert message.curvature[0, j].item() == pytest.approx(np.trace(one @ one) / 2, rel=1e-9)
    assert message.noise[0, 1].item() == pytest.approx(0.7**2 * np.trace(inverse @ inverse) / 2, rel=1e-9)


def log_determinant(rows: Rows, L: Tensor, variance: float = 0.7, weights: Tensor | None = None) -> Tensor:
    """log |ΣA| of a Gaussian, A = (H⁻¹ + Σ)⁻¹ with H = XᵀWX; W is 1/s² where it is not given."""
    W = rows.real / variance if weights is None else weights * rows.real
    H = rows.x.transpose(1, 2) @ (W.unsqueeze(-1) * rows.x)
    return torch.logdet(torch.linalg.inv(torch.linalg.inv(H) + L @ L.T).sum(0))


@pytest.mark.parametrize("family", [Normal(0.7), Multinomial(2)], ids=["normal", "logistic"])
def test_the_derivatives_of_the_restricted_likelihood(family: Family) -> None:
    """What REML adds: the derivatives of -½ log |ΣA| by every entry of S, and by log s², by finite differences.

    For classes the weights W are as they are at the mode: the derivatives do not follow them.
    """
    rows, (gamma, L) = sites(family), parameters(family, True)
    fit, plain = sent(family, rows, gamma, L)
    C = torch.linalg.inv(unpack(plain.information, 3).sum(0))
    doubt = Doubt(C, torch.zeros_like(C), torch.zeros(3).double())
    restricted = mixed.message(family, Full(3), rows, L, fit, doubt, restricted=True)
    found = unpack((restricted.slope - plain.slope).sum(0), 3)
    weights = family.weight(fit.eta)[..., 0, 0]
    for i in range(3):
        for j in range(i + 1):
            S = torch.zeros(3, 3, dtype=torch.float64)
            S[i, j] = S[j, i] = 1e-5
            ends = [log_determinant(rows, L + s * L @ S / 2, weights=weights) for s in (1, -1)]
            slope = -(ends[0] - ends[1]) / 4e-5
            torch.testing.assert_close(found[i, j] * (1 if i == j else 2), slope, rtol=1e-6, atol=1e-8)
    assert torch.equal(restricted.score, plain.score)
    if isinstance(family, Normal):
        ends = [log_determinant(rows, L, 0.7 * math.exp(s * 1e-5)) for s in (1, -1)]
        more = (restricted.noise - plain.noise)[:, 0].sum()
        torch.testing.assert_close(more, -(ends[0] - ends[1]) / 4e-5, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_how_modes_and_variances_move_with_the_covariance(family: Family) -> None:
    """dθ = L M S b by finite differences of the mode; independent entries of S with variances U then add up to J.

    Of the variances, dV = L M S M Lᵀ at fixed H, and the swing adds up the moves by all entries, each times √U.
    """
    rows, (gamma, L) = sites(family), parameters(family, True)
    fit, D = mixed.posterior(family, rows, gamma, L), len(gamma)
    doubt = unsure(D)
    J, swing = torch.zeros(3, D, dtype=torch.float64), torch.zeros(3, D, dtype=torch.float64)
    for i in range(D):
        for j in range(i + 1):
            S = torch.zeros(D, D, dtype=torch.float64)
            S[i, j] = S[j, i] = 1e-5
            ends = [mixed.posterior(family, rows, gamma, L + s * L @ S / 2).theta for s in (1, -1)]
            J += doubt.covariance[i, j] * ((ends[0] - ends[1]) / 2e-5).square()
            roots = [L + s * L @ S / 2 for s in (1, -1)]
            V = [root @ torch.linalg.inv(torch.eye(D) + root.T @ fit.H @ root) @ root.T for root in roots]
            pairs = (V[0] - V[1]).diagonal(dim1=1, dim2=2) / 2e-5
            swing += doubt.covariance[i, j].sqrt() * pairs.abs()
    found = mixed.spread(fit, L, doubt)
    base = found.covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.error.square() - base, J, rtol=1e-5, atol=1e-8)
    variance = fit.V.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.freedom, (2 * (variance / swing).square()).clamp(min=1), rtol=1e-4, atol=1e-6)


def test_the_sway_of_the_variance_of_gamma() -> None:
    """C = (Σ A)⁻¹ by finite differences along every log variance, each times √U: independent of what a site holds."""
    family, rows = Normal(0.7), sites(Normal(0.7))
    gamma, L = parameters(family, False)
    fit, first = sent(family, rows, gamma, L)
    C = torch.linalg.inv(unpack(first.information, 3).sum(0))
    U = torch.tensor([0.3, 0.7, 0.2], dtype=torch.float64)
    message = mixed.message(family, Diagonal(3), rows, L, fit, Doubt(C, torch.diag(U), torch.zeros(3).double()))
    expected = torch.zeros(3, dtype=torch.float64)
    for j in range(3):
        ends = []
        for s in (1, -1):
            scale = torch.ones(3, dtype=torch.float64)
            scale[j] = math.exp(s * 5e-6)  # of σ: log σ² moves by 1e-5
            A = sent(family, rows, gamma, L * scale)[1].information
            ends.append(torch.linalg.inv(unpack(A, 3).sum(0)).diagonal())
        expected += U[j].sqrt() * (ends[0] - ends[1]) / 2e-5
    torch.testing.assert_close(message.sway.sum(0), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", [Diagonal, Full])
def test_the_variances_of_a_covariance(kind: type[Diagonal] | type[Full]) -> None:
    """1 over the information of each entry: sites that know b exactly give ½ for a log variance, 1 for a correlation.

    Var(b_i²/2) = ½, and an entry off the diagonal has the derivative b_i b_j, of variance 1.
    """
    covariance: Covariance = kind(2)
    half = torch.full((2, 2), 0.5, dtype=torch.float64)
    found = covariance.matrix(covariance.variances(10 * covariance.entries(half)))
    expected = torch.tensor([[0.2, 0.1], [0.1, 0.2]], dtype=torch.float64)
    torch.testing.assert_close(found, expected if kind is Full else torch.diag(expected.diagonal()))


def test_log_z_of_a_gaussian_is_exact() -> None:
    """The log-density of N(Xγ, s² I + X Σ Xᵀ)."""
    family, rows = Normal(0.7), sites(Normal(0.7))
    gamma, L = parameters(family, True)
    found = log_z(family, rows, gamma, L)
    for c, n in enumerate((30, 12, 25)):
        x, y = rows.x[c, :n], rows.y[c, :n]
        law = torch.distributions.MultivariateNormal(x @ gamma, 0.7 * torch.eye(n) + x @ L @ L.T @ x.T)
        torch.testing.assert_close(found[c], law.log_prob(y))  # type: ignore[no-untyped-call]


def test_log_z_of_a_logistic_intercept_is_close_to_the_integral() -> None:
    """One random intercept: ∫ Π p(y_i | γ + σ b) N(b) db by quadrature; Laplace is off by a hundredth."""
    family, rows = Multinomial(2), sites(Multinomial(2), (12,), inputs=0)
    gamma, L = torch.tensor([0.3], dtype=torch.float64), torch.tensor([[0.8]], dtype=torch.float64)

    def integrand(b: float) -> float:
        p = 1 / (1 + np.exp(-(0.3 + 0.8 * b)))
        y = rows.y[0].numpy()
        return float(np.prod(np.where(y == 1, p, 1 - p)) * np.exp(-b * b / 2) / np.sqrt(2 * np.pi))

    exact = math.log(integrate.quad(integrand, -10, 10)[0])
    assert log_z(family, rows, gamma, L).item() == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("kind", [Diagonal, Full])
def test_the_prior_of_a_covariance(kind: type[Diagonal] | type[Full]) -> None:
    """½ log |Σ| - 2 tr Σ: value from the determinant, gradient along every entry by finite differences of `moved`."""
    covariance: Covariance = kind(3)
    p = len(covariance.entries(torch.eye(3)))
    stored = covariance.moved(
        covariance.start(), 0.3 * torch.randn(p, generator=torch.Generator().manual_seed(0)).double()
    )
    everything = torch.ones(3, dtype=torch.float64)

    def value(stored: Tensor) -> float:
        L = covariance.factor(stored, everything)
        return float(torch.logdet(L @ L.T) / 2 - 2 * (L @ L.T).trace())

    found = covariance.prior(stored, everything)
    assert found.value.item() == pytest.approx(value(stored))
    diagonal = covariance.entries(torch.eye(3))
    for j, unit in enumerate(1e-5 * torch.eye(p, dtype=torch.float64)):
        slope = (value(covariance.moved(stored, unit)) - value(covariance.moved(stored, -unit))) / 2e-5
        assert found.gradient[j].item() * (1 if diagonal[j] else 2) == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_sigma_zero_stays_positive_definite() -> None:
    """L = 0 is the pooled model: b = 0, V = 0 and A = H; and a variance never falls below the floor."""
    family, rows = Multinomial(2), sites(Multinomial(2))
    gamma, L = parameters(family, False)
    fit, message = sent(family, rows, gamma, 0 * L)
    assert not fit.b.any()
    assert not fit.V.any()
    torch.testing.assert_close(unpack(message.information, 3), fit.H)
    for covariance in (Diagonal(3), Full(3)):
        stored = covariance.start()
        for _ in range(30):
            stored = covariance.moved(stored, -covariance.entries(torch.eye(3, dtype=torch.float64)))
        L = covariance.factor(stored, torch.ones(3, dtype=torch.float64))
        values = torch.linalg.eigvalsh(L @ L.T)
        torch.testing.assert_close(values, torch.full((3,), FLOOR, dtype=torch.float64))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("restricted", [False, True])
def test_a_site_without_rows_says_nothing(family: Family, restricted: bool) -> None:
    """Every sum is 0, so that it changes nothing at the server; its own model is the prior: V = Σ."""
    rows, (gamma, L) = sites(family, (4, 0)), parameters(family, True)
    fit = mixed.posterior(family, rows, gamma, L)
    message = mixed.message(family, Full(len(gamma)), rows, L, fit, unsure(len(gamma)), restricted=restricted)
    for leaf in message:
        torch.testing.assert_close(leaf[1], torch.zeros_like(leaf[1]), atol=1e-12, rtol=0)
        assert leaf[0].any() or not leaf[0].numel()
    torch.testing.assert_close(fit.theta[1], gamma)
    torch.testing.assert_close(fit.V[1], L @ L.T)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_remembered_message_follows_the_point(family: Family) -> None:
    """Kept in one place and released in another, a score is what its own information predicts there."""
    rows, (gamma, L) = sites(family), parameters(family, False)
    fit = mixed.posterior(family, rows, gamma, L)
    covariance = Diagonal(len(gamma))
    message = mixed.message(family, covariance, rows, L, fit, unsure(len(gamma)))
    here = scoring.Point(gamma, covariance.start(), covariance.start(), torch.tensor(0.2, dtype=torch.float64))
    there = here._replace(gamma=gamma + 0.1, path=here.path - 0.5, log_noise=here.log_noise + 1)
    total = Message(*(leaf.sum(0) for leaf in scoring.anchored(message, here)))
    back, moved = scoring.released(total, here), scoring.released(total, there)
    for found, own in zip(back, message, strict=True):
        torch.testing.assert_close(found, own.sum(0))
    A = unpack(message.information, len(gamma)).sum(0)
    torch.testing.assert_close(moved.score, message.score.sum(0) - A @ (there.gamma - gamma))
    torch.testing.assert_close(moved.slope, message.slope.sum(0) + 0.5 * message.curvature.sum(0))
    if len(moved.noise):
        torch.testing.assert_close(moved.noise[0], (message.noise[:, 0] - message.noise[:, 1]).sum())


def test_sums_of_sites_are_those_of_all_rows() -> None:
    """Mean, deviation and the share within sites, against NumPy on the pooled rows; constants too."""
    rng = np.random.default_rng(0)
    pieces = [rng.normal(k, 1 + k, size=(n, 4)) for k, n in enumerate((5, 1, 9))]
    for k, piece in enumerate(pieces):
        piece[:, 2], piece[:, 3] = 0.1, 10.0**6 * (k + 1)  # a constant, and a property of the site
    real = torch.tensor([[float(i < len(p)) for i in range(9)] for p in pieces], dtype=torch.float64)
    x = torch.stack([torch.nn.functional.pad(torch.from_numpy(p), (0, 0, 0, 9 - len(p))) for p in pieces])
    found = standard.pooled(real.sum(1), *standard.site_sums(x, real))
    rows = np.concatenate(pieces)
    np.testing.assert_allclose(found.mean, rows.mean(0))
    np.testing.assert_allclose(found.scale[[0, 1, 3]], 1 / rows.std(0)[[0, 1, 3]])
    assert found.scale[2] == 0
    within = sum(len(p) * p.var(0) for p in pieces) / (len(rows) * rows.var(0))
    np.testing.assert_allclose(found.within[:2], within[:2])
    assert found.within[2] == found.within[3] == 0


@pytest.mark.parametrize("classes", [2, 3])
def test_expected_probabilities(classes: int) -> None:
    """Against 400,000 draws of logits with variances above 1; two classes as a softmax are the same as one logit."""
    generator = torch.Generator().manual_seed(0)
    eta = torch.tensor([0.8, -0.3, 0.4], dtype=torch.float64)[: 1 if classes == 2 else 3]
    root = torch.randn(len(eta), len(eta), generator=generator, dtype=torch.float64)
    h = root @ root.T
    draws = eta + torch.randn(400_000, len(eta), generator=generator, dtype=torch.float64) @ root.T
    pad = (1, 0) if classes == 2 else (0, 0)
    exact = torch.nn.functional.pad(draws, pad).softmax(-1).mean(0)
    found = torch.nn.functional.pad(glm.expected_logits(eta, h), pad).softmax(-1)
    plain = torch.nn.functional.pad(eta, pad).softmax(-1)
    assert (found - exact).abs().max() < min(0.04, float((plain - exact).abs().max()))
    if classes == 2:
        both, spread = torch.tensor([0.0, 0.8], dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
        spread[1, 1] = h[0, 0]
        torch.testing.assert_close(glm.expected_logits(both, spread).softmax(-1), found)


def test_relative_coefficients() -> None:
    """Two classes' blocks (1, 5) and (3, 1) less their mean (2, 3): (-1, 2) and (1, -2). A server alone has no site."""
    theta = torch.tensor([[1.0, 5.0, 3.0, 1.0]])
    assert glm.relative(theta, 2).tolist() == [[-1, 2, 1, -2]]
    assert torch.equal(glm.relative(theta, 1), theta)
    assert glm.relative(torch.zeros(0, 6), 3).shape == (0, 6)
