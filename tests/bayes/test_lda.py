"""The generative head against scikit-learn, torch.distributions and numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor
from torch.distributions import MultivariateNormal

from fedprior.bayes import lda
from fedprior.bayes.lda import Sample, Statistics

K, D = 4, 5
PRIORS = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]], dtype=torch.float64)


def gaussians(n: int = 60, clients: int = 3, d: int = D, seed: int = 0, classes: int = K) -> Sample:
    """Features whose classes have means of their own and one skewed covariance."""
    rng = np.random.default_rng(seed)
    y = np.stack([rng.permutation(np.arange(n) % classes) for _ in range(clients)])
    means, mix = rng.normal(size=(clients, classes, d)), rng.normal(size=(clients, d, d))
    z = np.stack([m[labels] for m, labels in zip(means, y, strict=True)]) + rng.normal(size=(clients, n, d)) @ mix
    return Sample(torch.from_numpy(z), torch.from_numpy(y), torch.ones(clients, n, dtype=torch.bool))


def model(clients: int = 3, d: int = D, seed: int = 1, classes: int = K) -> Statistics:
    """Some means and a positive definite covariance."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(clients, d, d))
    covariance = A @ A.transpose(0, 2, 1) / d + 0.3 * np.eye(d)
    return Statistics(torch.from_numpy(rng.normal(size=(clients, classes, d))), torch.from_numpy(covariance))


def log_posterior(stats: Statistics, prior: Tensor, z: Tensor, shrinkage: float = 0.0) -> Tensor:
    """log p(y | z) of our head, [C, N, K]."""
    W, b = lda.head(stats, prior.log(), shrinkage)
    logits: Tensor = z @ W.transpose(1, 2) + b.unsqueeze(1)
    return logits.log_softmax(-1)


def log_density(z: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    found: Tensor = MultivariateNormal(mean, covariance).log_prob(z)  # type: ignore[no-untyped-call]
    return found


def both(value: float, clients: int = 3) -> Tensor:
    """The same β for means and covariance."""
    return torch.full((clients, 2), value, dtype=torch.float64)


# The head


def test_the_head_is_scikit_learns() -> None:
    """With ε = 0, means_ and covariance_ give coef_, intercept_ and the log posterior of the lsqr solver."""
    sample = gaussians()
    for c, prior in enumerate(PRIORS):
        z, y = sample.z[c].numpy(), sample.y[c].numpy()
        oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=None, priors=prior.numpy(), store_covariance=True)
        oracle.fit(z, y)
        stats = Statistics(torch.from_numpy(oracle.means_)[None], torch.from_numpy(oracle.covariance_)[None])
        W, b = lda.head(stats, prior.log()[None], 0.0)
        np.testing.assert_allclose(W[0], oracle.coef_, atol=1e-8)
        np.testing.assert_allclose(b[0], oracle.intercept_, atol=1e-8)
        found = log_posterior(stats, prior[None], sample.z[c : c + 1])[0]
        np.testing.assert_allclose(found, oracle.predict_log_proba(z), atol=1e-8)


def test_statistics_are_scikit_learns() -> None:
    """Its covariance_ is the scatter over n, ours over n - 1: Σ̂ = covariance_ · n/(n-1) without a ridge."""
    sample, n = gaussians(), 60
    found = lda.statistics(sample, model(), ridge=0.0)
    for c in range(3):
        counts = np.bincount(sample.y[c], minlength=K) / n
        oracle = LinearDiscriminantAnalysis(solver="lsqr", priors=counts, store_covariance=True)
        oracle.fit(sample.z[c].numpy(), sample.y[c].numpy())
        np.testing.assert_allclose(found.mean[c], oracle.means_, atol=1e-12)
        np.testing.assert_allclose(found.covariance[c], oracle.covariance_ * n / (n - 1), atol=1e-9)


@pytest.mark.parametrize("shrinkage", [0.0, 1e-4, 0.3])
def test_the_head_is_bayes_rule(shrinkage: float) -> None:
    """softmax(W z + b) is the posterior π_k N(z; μ_k, S) / Σ_j π_j N(z; μ_j, S), S = (1-ε) Σ + ε tr(Σ)/d I."""
    stats, z = model(), gaussians().z
    found = log_posterior(stats, PRIORS, z, shrinkage)
    for c in range(3):
        covariance = stats.covariance[c]
        S = (1 - shrinkage) * covariance + shrinkage * covariance.trace() / D * torch.eye(D, dtype=torch.float64)
        joint = torch.stack([log_density(z[c], mean, S) for mean in stats.mean[c]], 1) + PRIORS[c].log()
        assert torch.allclose(found[c], joint - joint.logsumexp(1, keepdim=True), rtol=0, atol=1e-10)


def test_shrinkage_by_hand() -> None:
    """Σ = [[2, 1], [1, 4]] has tr/d = 3; with ε = 0.1, S = [[1.8 + 0.3, 0.9], [0.9, 3.6 + 0.3]]: the trace stays 6."""
    S = lda.shrunk(torch.tensor([[[2.0, 1.0], [1.0, 4.0]]], dtype=torch.float64), 0.1)
    assert torch.allclose(S, torch.tensor([[[2.1, 0.9], [0.9, 3.9]]], dtype=torch.float64), atol=1e-15)


def test_a_head_by_hand() -> None:
    """Σ = diag(1, 4), μ = (2, 4), (0, -8): W = μ Σ⁻¹ = (2, 1), (0, -2); b = -½ (4 + 4) + log ¼, -½ 16 + log ¾."""
    stats = Statistics(
        torch.tensor([[[2.0, 4.0], [0.0, -8.0]]], dtype=torch.float64),
        torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))[None],
    )
    prior = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    W, b = lda.head(stats, prior.log(), 0.0)
    assert torch.allclose(W, torch.tensor([[[2.0, 1.0], [0.0, -2.0]]], dtype=torch.float64), atol=1e-14)
    assert torch.allclose(b, torch.tensor([[-4.0, -8.0]], dtype=torch.float64) + prior.log(), atol=1e-14)


@pytest.mark.parametrize("shrinkage", [0.0, 1e-4])
def test_on_the_sphere_the_nearest_mean_wins(shrinkage: float) -> None:
    """Σ = I and uniform π: argmax_k -½‖z - μ_k‖²; and with Σ = I, S = I whatever ε is."""
    stats, z = model(), gaussians().z
    stats = stats._replace(covariance=torch.eye(D, dtype=torch.float64).expand(3, D, D))
    found = log_posterior(stats, torch.full((3, K), 1 / K, dtype=torch.float64), z, shrinkage).argmax(-1)
    assert torch.equal(found, torch.cdist(z, stats.mean).argmin(-1))
    assert set(found.flatten().tolist()) == set(range(K))


def test_posteriors_do_not_move_with_the_origin() -> None:
    """z → z + a, μ → μ + a: the same posterior, for any ε."""
    stats, z = model(), gaussians().z
    a = torch.from_numpy(np.random.default_rng(7).normal(size=(3, 1, D))) * 3
    moved = log_posterior(stats._replace(mean=stats.mean + a), PRIORS, z + a, 0.2)
    assert torch.allclose(moved, log_posterior(stats, PRIORS, z, 0.2), rtol=0, atol=1e-10)


def test_posteriors_do_not_depend_on_the_basis() -> None:
    """z → A z, μ → A μ, Σ → A Σ A': the same posterior if ε = 0; the sphere of ε > 0 is not invariant."""
    stats, z = model(), gaussians().z
    A = torch.from_numpy(np.random.default_rng(8).normal(size=(3, D, D)))
    At = A.transpose(1, 2)
    turned = Statistics(stats.mean @ At, A @ stats.covariance @ At)
    gap = [log_posterior(turned, PRIORS, z @ At, e) - log_posterior(stats, PRIORS, z, e) for e in (0.0, 0.2)]
    assert gap[0].abs().max() < 1e-9
    assert gap[1].abs().max() > 1e-3


def test_cross_entropy_is_the_mean_over_real_rows() -> None:
    """Recomputed row by row from the normal densities; rows that are padding do not count, and none at all gives 0."""
    stats, sample = model(), gaussians(n=9)
    real = torch.ones(3, 9, dtype=torch.bool)
    real[1, 4:], real[2] = False, False
    found = lda.cross_entropy(stats, PRIORS.log(), sample._replace(real=real), 0.0)
    for c, rows in enumerate((9, 4)):
        total = 0.0
        for z, label in zip(sample.z[c, :rows], sample.y[c, :rows], strict=True):
            densities = log_density(z, stats.mean[c], stats.covariance[c]) + PRIORS[c].log()
            total -= float(densities[label] - densities.logsumexp(0))
        assert float(found[c]) == pytest.approx(total / rows, abs=1e-10)
    assert float(found[2]) == 0.0


# A client's own statistics


def by_hand(ridge: float = 0.5, least: int = 1) -> Statistics:
    """Three rows, two classes of the three that there are."""
    z = torch.tensor([[[0.0, 0.0], [2.0, 0.0], [5.0, 1.0]]], dtype=torch.float64)
    sample = Sample(z, torch.tensor([[0, 0, 1]]), torch.ones(1, 3, dtype=torch.bool))
    prior = Statistics(torch.full((1, 3, 2), 7.0, dtype=torch.float64), torch.full((1, 2, 2), 9.0, dtype=torch.float64))
    return lda.statistics(sample, prior, ridge, least)


def test_statistics_by_hand() -> None:
    """Class 0: (0,0), (2,0), mean (1,0); class 1: (5,1); class 2 has none, so the prior's mean 7.

    Centred rows (-1,0), (1,0), (0,0): scatter diag(2, 0), over n - 1 = 2: diag(1, 0), plus the ridge: diag(1.5, 0.5).
    """
    found = by_hand()
    expected = torch.tensor([[[1.0, 0.0], [5.0, 1.0], [7.0, 7.0]]], dtype=torch.float64)
    assert torch.equal(found.mean, expected)
    assert torch.equal(found.covariance[0], torch.diag(torch.tensor([1.5, 0.5], dtype=torch.float64)))


@pytest.mark.parametrize(("least", "own"), [(1, 2), (2, 1), (3, 0)])
def test_a_mean_of_its_own_needs_enough_rows(least: int, own: int) -> None:
    """Classes with fewer than `least` rows take the prior's mean 7, but are still centred by their own: same Σ̂."""
    found = by_hand(least=least)
    assert int((found.mean[0, :, 0] != 7).sum()) == own
    assert torch.equal(found.covariance, by_hand().covariance)


@pytest.mark.parametrize("ridge", [1e-4, 1e-3, 0.1, 1.0])
def test_the_ridge_is_a_multiple_of_the_identity(ridge: float) -> None:
    sample = gaussians()
    plain, ridged = (lda.statistics(sample, model(), r).covariance for r in (0.0, ridge))
    assert torch.allclose(ridged - plain, ridge * torch.eye(D, dtype=torch.float64).expand(3, D, D), rtol=0, atol=1e-10)


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_a_ragged_stack_equals_single_clients(ridge: float) -> None:
    """Padding may hold anything: values, labels and all."""
    sample, prior = gaussians(n=12), model()
    sizes = (12, 7, 2)
    real = torch.arange(12) < torch.tensor(sizes)[:, None]
    z = torch.where(real.unsqueeze(2), sample.z, 1e6)
    stacked = lda.statistics(Sample(z, sample.y, real), prior, ridge)
    for c, n in enumerate(sizes):
        one = Sample(sample.z[c : c + 1, :n], sample.y[c : c + 1, :n], real[c : c + 1, :n])
        alone = lda.statistics(one, Statistics(prior.mean[c : c + 1], prior.covariance[c : c + 1]), ridge)
        assert torch.allclose(stacked.mean[c], alone.mean[0], rtol=0, atol=1e-12)
        assert torch.allclose(stacked.covariance[c], alone.covariance[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_a_client_without_a_pair_has_the_priors_covariance(n: int, ridge: float) -> None:
    """One row has no scatter: Σ̂ = Σ_g bit for bit; its class has its own mean, the others the prior's."""
    sample, prior = gaussians(n=5), model()
    real = (torch.arange(5) < n).expand(3, 5)
    found = lda.statistics(sample._replace(real=real), prior, ridge)
    assert torch.equal(found.covariance, prior.covariance)
    for c in range(3):
        for k in range(K):
            own = n == 1 and k == int(sample.y[c, 0])
            assert torch.equal(found.mean[c, k], sample.z[c, 0] if own else prior.mean[c, k])


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_of_the_data(copies: int) -> None:
    """m copies: the same means, and the scatter m T over mn - 1 instead of T over n - 1: Σ̂ · m(n-1)/(mn-1)."""
    sample, n = gaussians(), 60
    more = Sample(sample.z.repeat(1, copies, 1), sample.y.repeat(1, copies), sample.real.repeat(1, copies))
    once, again = (lda.statistics(s, model(), 0.0) for s in (sample, more))
    assert torch.allclose(again.mean, once.mean, rtol=0, atol=1e-13)
    factor = copies * (n - 1) / (copies * n - 1)
    assert torch.allclose(again.covariance, once.covariance * factor, rtol=1e-11, atol=1e-12)


# Interpolation


def test_the_ends_of_the_interpolation_are_exact() -> None:
    """β = 0 is the prior and β = 1 the client, bit for bit."""
    own, prior = lda.statistics(gaussians(), model(), 1.0), model()
    for beta, expected in ((0.0, prior), (1.0, own)):
        found = lda.interpolate(own, prior, both(beta))
        assert torch.equal(found.mean, expected.mean)
        assert torch.equal(found.covariance, expected.covariance)


def test_the_interpolation_is_affine() -> None:
    """β own + (1-β) prior, each client with its own β, means and covariance with their own."""
    own, prior = lda.statistics(gaussians(), model(), 1.0), model()
    beta = torch.tensor([[0.2, 0.9], [0.5, 0.1], [1.0, 0.0]], dtype=torch.float64)
    found = lda.interpolate(own, prior, beta)
    for c, (m, s) in enumerate(beta.tolist()):
        assert torch.allclose(found.mean[c], m * own.mean[c] + (1 - m) * prior.mean[c], atol=1e-14)
        assert torch.allclose(found.covariance[c], s * own.covariance[c] + (1 - s) * prior.covariance[c], atol=1e-14)


def test_with_beta_0_heads_differ_by_the_class_prior_alone() -> None:
    prior = model()
    W, b = lda.head(lda.interpolate(lda.statistics(gaussians(), prior, 1.0), prior, both(0.0)), PRIORS.log(), 1e-4)
    shared, plain = lda.head(prior, torch.zeros(3, K, dtype=torch.float64), 1e-4)
    assert torch.equal(W, shared)
    assert torch.allclose(b - plain, PRIORS.log(), rtol=0, atol=1e-13)


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 1))
def test_an_absent_class_keeps_the_priors_mean(beta: float) -> None:
    """μ_i,c == μ_g,c bit for bit, whatever β is: no arithmetic may touch it."""
    sample, prior = gaussians(n=12, classes=K - 1), model()
    found = lda.interpolate(lda.statistics(sample, prior, 1.0), prior, both(beta))
    assert torch.equal(found.mean[:, K - 1], prior.mean[:, K - 1])


# Positive definite


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.sampled_from([1e-4, 1e-3, 0.1, 1.0]), st.floats(0, 1), st.integers(2, 9))
def test_mixtures_are_positive_definite(seed: int, ridge: float, beta: float, n: int) -> None:
    """λ_min(Σ_i) ≥ min(r, λ_min(Σ_g)), also with fewer rows than features; Σ_i is symmetric."""
    sample, prior = gaussians(n=n, d=8, seed=seed), model(d=8, seed=seed)
    mixed = lda.interpolate(lda.statistics(sample, prior, ridge), prior, both(beta)).covariance
    assert torch.allclose(mixed, mixed.transpose(1, 2), rtol=0, atol=1e-12)
    floor = torch.linalg.eigvalsh(prior.covariance)[:, 0].clamp(max=ridge)
    assert (torch.linalg.eigvalsh(mixed)[:, 0] >= floor - 1e-6).all()


def degenerate(kind: str) -> Tensor:
    """Features whose scatter is singular, [1, N, 4]."""
    z = torch.from_numpy(np.random.default_rng(3).normal(size=(1, 20, 4)))
    if kind == "duplicate":
        z[..., 2] = z[..., 0]
    elif kind == "scaled":
        z[..., 2] = -1e3 * z[..., 0]
    elif kind == "constant":
        z[..., 1] = 2.5
    elif kind == "all constant":
        z[:] = 1.0
    elif kind == "few rows":
        z = z[:, :2]
    else:
        z[..., 3] = z[..., 0] + z[..., 1] - z[..., 2]
    return z


KINDS = ["duplicate", "scaled", "constant", "all constant", "few rows", "dependent"]


@pytest.mark.parametrize("ridge", [0.0, 1e-6])
@pytest.mark.parametrize("kind", KINDS)
def test_singular_scatter_becomes_positive_definite(kind: str, ridge: float) -> None:
    """Without a ridge to help: symmetric, finite, the same variances (none below 1e-8), and every head can be solved.

    Of the correlations, eigenvalues are at least 1e-4 before the diagonal is made 1 again. A clipped one adds less than
    1e-4 to the diagonal, so 9e-5 is left; and this survives a message in single precision.
    """
    z = degenerate(kind)
    sample = Sample(z, torch.zeros(z.shape[:2], dtype=torch.int64), torch.ones(z.shape[:2], dtype=torch.bool))
    prior = model(clients=1, d=4)
    found = lda.statistics(sample, prior, ridge)
    S = found.covariance[0]
    assert torch.isfinite(S).all()
    assert torch.allclose(S, S.T, rtol=1e-12, atol=0)
    variance = z[0].var(0, unbiased=True)
    assert torch.allclose(S.diagonal(), (variance + ridge).clamp(min=1e-8), rtol=1e-9, atol=0)
    scale = S.diagonal().sqrt()
    assert torch.linalg.eigvalsh(S / torch.outer(scale, scale))[0] > 9e-5
    sent = lda.unpack(lda.pack(found.covariance).float(), 4).double()
    for covariance in (found.covariance, sent):
        W, b = lda.head(found._replace(covariance=covariance), torch.zeros(1, K, dtype=torch.float64), 0.0)
        assert torch.isfinite(W).all()
        assert torch.isfinite(b).all()


def test_two_equal_features_by_hand() -> None:
    """Correlations [[1, 1], [1, 1]] have eigenvalues 2 and 0 along (1, ±1)/√2; 0 becomes e = 1e-4.

    The clipped matrix is ½ [[2+e, 2-e], [2-e, 2+e]]; with a unit diagonal the correlation is (2-e)/(2+e) = 0.9999.
    The variances 4 are restored: off the diagonal 4 · 0.9999 = 3.9996. A variance of 0 becomes 1e-8, uncorrelated.
    """
    covariance = torch.zeros(1, 3, 3, dtype=torch.float64)
    covariance[:, :2, :2] = 4.0
    found = lda.positive_definite(covariance)[0]
    off = 4 * (2 - 1e-4) / (2 + 1e-4)
    expected = torch.tensor([[4, off, 0], [off, 4, 0], [0, 0, 1e-8]], dtype=torch.float64)
    assert off == pytest.approx(3.9996, abs=1e-6)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_a_good_covariance_is_left_alone() -> None:
    covariance = model().covariance
    assert torch.allclose(lda.positive_definite(covariance), covariance, rtol=0, atol=1e-13)


# Messages


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9), st.integers(0, 3), st.integers(0, 100))
def test_unpack_inverts_pack(d: int, clients: int, seed: int) -> None:
    """d(d+1)/2 numbers hold a symmetric matrix, bit for bit; also without a client axis."""
    A = torch.from_numpy(np.random.default_rng(seed).normal(size=(clients, d, d)))
    symmetric = A + A.transpose(1, 2)
    packed = lda.pack(symmetric)
    assert packed.shape == (clients, d * (d + 1) // 2)
    assert torch.equal(lda.unpack(packed, d), symmetric)
    for matrix, one in zip(symmetric, packed, strict=True):
        assert torch.equal(lda.pack(matrix), one)
        assert torch.equal(lda.unpack(one, d), matrix)


def test_pack_by_hand() -> None:
    """The upper triangle, row by row."""
    matrix = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    assert lda.pack(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(lda.unpack(torch.arange(1.0, 7.0), 3), matrix)


# The minimum of a function of β


def test_minimise_looks_at_24_points() -> None:
    """Eleven of the grid, two for the first section, one for each of the other 11: log 0.005 / log 0.618 = 11.01."""
    seen: list[Tensor] = []

    def objective(b: Tensor) -> Tensor:
        seen.append(b)
        return (b - 0.43).square()

    lda.minimise(objective, 1)
    assert len(seen) == 11 + 2 + 11


def test_a_common_basis() -> None:
    """Pᵀ A P = I and Pᵀ B P = diag λ; the inverse of any mixture follows; equal matrices have λ = 1 exactly."""
    rng = np.random.default_rng(0)
    A, B = (torch.from_numpy(m @ m.transpose(0, 2, 1) + 0.1 * np.eye(6)) for m in rng.normal(size=(2, 3, 6, 6)))
    B[2] = A[2]
    P, values = lda.common_basis(A, B)
    assert torch.allclose(P.transpose(1, 2) @ A @ P, torch.eye(6, dtype=torch.float64).expand(3, 6, 6), atol=1e-12)
    assert torch.allclose(P.transpose(1, 2) @ B @ P, torch.diag_embed(values), atol=1e-10)
    assert torch.equal(values[2], torch.ones(6, dtype=torch.float64))
    inverse = P / (0.3 + 0.7 * values).unsqueeze(1) @ P.transpose(1, 2)
    assert torch.allclose(inverse, torch.linalg.inv(0.3 * A + 0.7 * B), rtol=1e-9, atol=1e-9)


def test_compact_keeps_the_real_rows_in_order() -> None:
    """Rows 1 and 3 of the first client and row 2 of the second: two columns, the second's last is padding."""
    z = torch.arange(8, dtype=torch.float64).view(2, 4, 1)
    real = torch.tensor([[False, True, False, True], [False, False, True, False]])
    found = lda.compact(Sample(z, torch.arange(8).view(2, 4), real))
    assert found.real.tolist() == [[True, True], [True, False]]
    assert found.z[found.real].flatten().tolist() == [1, 3, 6]
    assert found.y[found.real].tolist() == [1, 3, 6]


def valley(at: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda b: (b - at).square()


def test_minimise_finds_the_bottom() -> None:
    """Parabolas with their lowest point anywhere in [0, 1]: found to 1e-3."""
    at = torch.linspace(0, 1, 137, dtype=torch.float64)
    assert (lda.minimise(valley(at), 137) - at).abs().max() <= 1e-3


@pytest.mark.parametrize(("slope", "end"), [(1.0, 0.0), (-1.0, 1.0), (0.0, 0.0)])
def test_minimise_reaches_the_ends(slope: float, end: float) -> None:
    """A rising line has its minimum at 0, a falling one at 1, exactly; of equals, the prior is chosen: 0."""
    assert lda.minimise(lambda b: slope * b, 4).tolist() == [end] * 4


def test_minimise_finds_the_deeper_valley() -> None:
    """-exp(-((b-0.15)/0.15)²) - a exp(-((b-0.83)/0.15)²): the second valley is the deeper one iff a > 1.

    Both are seen by a grid of tenths: e^(-1/9) = 0.89 beside the first, 0.8 e^(-1/25) = 0.77 beside a shallow second.
    """
    depth = torch.tensor([0.8, 1.2], dtype=torch.float64)

    def objective(b: Tensor) -> Tensor:
        return -((-((b - 0.15) / 0.15).square()).exp()) - depth * (-((b - 0.83) / 0.15).square()).exp()

    found = lda.minimise(objective, 2)
    assert (found - torch.tensor([0.15, 0.83], dtype=torch.float64)).abs().max() < 1e-3


def test_minimise_returns_the_best_point_it_saw() -> None:
    """Nothing outside [0, 1] is looked at, and no point looked at is better than the one returned."""
    rng = np.random.default_rng(0)
    bumps = torch.from_numpy(rng.normal(size=(20, 6)))
    seen: list[Tensor] = []

    def objective(b: Tensor) -> Tensor:
        assert (b >= 0).all()
        assert (b <= 1).all()
        waves: Tensor = (bumps * (torch.arange(1, 7) * 5.0 * b[:, None]).sin()).sum(1)
        seen.append(waves)
        return waves

    found = lda.minimise(objective, 20)
    lowest = torch.stack(seen).min(0).values
    assert torch.equal(objective(found), lowest)


def test_minimise_does_not_depend_on_the_other_clients() -> None:
    """A minimum near 0 or 1 is searched in an interval half as wide; a neighbour with a wide one changes nothing."""
    low = torch.linspace(0.001, 0.049, 25, dtype=torch.float64)
    at = torch.cat([low, 1 - low])
    together = lda.minimise(valley(torch.cat([at, torch.tensor([0.5123], dtype=torch.float64)])), len(at) + 1)
    alone = torch.cat([lda.minimise(valley(a[None]), 1) for a in at])
    assert torch.allclose(together[:-1], alone, rtol=0, atol=1e-12)
