"""β by cross-validation: fair folds, the loss computed naively, and what β should be where the answer is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal

from fedprior.bayes import adapt, lda
from fedprior.bayes.adapt import Folds
from fedprior.bayes.lda import Sample, Statistics
from fedprior.rng import Key, Keys

K, D = 3, 4


def client_keys(clients: int, seed: int = 0) -> Keys:
    return Keys.of(Key.from_seed(seed), [f"site-{c}" for c in range(clients)])


def labelled(labels: list[list[int]]) -> tuple[Sample, Tensor]:
    """A ragged stack with these labels, -1 for padding, and every row an example of its own."""
    y = torch.tensor(labels)
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(*y.shape, D))) + y.clamp(min=0).unsqueeze(2)
    return Sample(z, y.clamp(min=0), y >= 0), torch.arange(y.shape[1]).expand_as(y)


def global_model(clients: int) -> Statistics:
    mean = torch.from_numpy(np.random.default_rng(9).normal(size=(K, D)))
    return Statistics(mean.expand(clients, K, D), torch.eye(D, dtype=torch.float64).expand(clients, D, D))


def uniform(clients: int, classes: int = K) -> Tensor:
    return torch.full((clients, classes), 1 / classes, dtype=torch.float64).log()


def pair(mean: float, covariance: float, clients: int = 1) -> Tensor:
    return torch.tensor([[mean, covariance]], dtype=torch.float64).expand(clients, 2)


# Folds

RAGGED = [[0, 1, 0, 1, 2, 0, 1, 2, 0, 2, 1, 0], [1, 1, 1, 1, 1, 0, 0, -1, -1, -1, -1, -1], [2] + [-1] * 11]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-1, K - 1), min_size=1, max_size=40), st.integers(2, 5), st.integers(0, 99))
def test_folds_are_fair(labels: list[int], folds: int, seed: int) -> None:
    """In every class the folds differ by at most one example; classes with fewer examples than folds stay out."""
    sample, group = labelled([labels])
    found = adapt.deal(sample, group, K, folds, client_keys(1, seed))
    for label in range(K):
        rows = [i for i, y in enumerate(labels) if y == label]
        sizes = np.bincount(found.number[0, rows], minlength=folds)
        assert bool(found.usable[0, rows].all()) == (len(rows) >= folds or not rows)
        if len(rows) >= folds:
            assert len(sizes) == folds
            assert sizes.max() - sizes.min() <= 1
        else:
            assert not found.usable[0, rows].any()
    assert not found.usable[~sample.real].any()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, K - 1), st.integers(1, 4)), min_size=1, max_size=12),
    st.integers(2, 3),
    st.integers(0, 99),
)
def test_copies_of_an_example_share_a_fold(examples: list[tuple[int, int]], folds: int, seed: int) -> None:
    """Examples of different numbers of copies, in any order of rows; a class counts its examples, not its rows."""
    rows = [(label, place) for place, (label, copies) in enumerate(examples) for _ in range(copies)]
    order = np.random.default_rng(seed).permutation(len(rows))
    y, group = (torch.tensor([[rows[i][part] for i in order]]) for part in (0, 1))
    sample = Sample(torch.zeros(1, len(rows), D, dtype=torch.float64), y, torch.ones_like(y, dtype=torch.bool))
    found = adapt.deal(sample, group, K, folds, client_keys(1, seed))
    for place, (label, _) in enumerate(examples):
        mine = group[0] == place
        assert len(set(found.number[0, mine].tolist())) == 1
        enough = sum(other == label for other, _ in examples) >= folds
        assert bool(found.usable[0, mine].all()) == enough == bool(found.usable[0, mine].any())


def test_folds_do_not_depend_on_copies() -> None:
    """The examples fall into the same folds whether a row of each is there or five."""
    sample, group = labelled(RAGGED)
    once = adapt.deal(sample, group, K, 2, client_keys(3))
    five = Sample(sample.z.repeat(1, 5, 1), sample.y.repeat(1, 5), sample.real.repeat(1, 5))
    again = adapt.deal(five, group.repeat(1, 5), K, 2, client_keys(3))
    assert torch.equal(again.number, once.number.repeat(1, 5))
    assert torch.equal(again.usable, once.usable.repeat(1, 5))


def test_folds_are_a_function_of_the_key() -> None:
    """The same key, the same folds; of 20 keys, few agree: class sizes 5, 4, 3 allow 2⁵ or more ways."""
    sample, group = labelled(RAGGED[:1])
    dealt = [adapt.deal(sample, group, K, 2, client_keys(1, seed)).number for seed in range(20)]
    assert torch.equal(dealt[0], adapt.deal(sample, group, K, 2, client_keys(1, 0)).number)
    assert len({tuple(number[0].tolist()) for number in dealt}) > 10


def test_folds_of_a_ragged_stack_equal_those_of_single_clients() -> None:
    sample, group = labelled(RAGGED)
    stacked = adapt.deal(sample, group, K, 2, client_keys(3))
    for c in range(3):
        n = int(sample.real[c].sum())
        one = Sample(*(part[c : c + 1, :n] for part in sample))
        alone = adapt.deal(one, group[c : c + 1, :n], K, 2, client_keys(3)[[c]])
        assert torch.equal(stacked.number[c, :n], alone.number[0])
        assert torch.equal(stacked.usable[c, :n], alone.usable[0])
    assert not stacked.usable[2].any(), "one example cannot be split"


# The validation loss


def naive_loss(
    sample: Sample, folds: Folds, count: int, prior: Statistics, log_prior: Tensor, beta: Tensor, ridge: float
) -> Iterator[float]:
    """J(β) of each client with NumPy's means, sums of squares row by row, and torch's normal densities."""
    for c in range(len(sample.y)):
        total = 0.0
        for k in range(count):
            rest = (folds.usable[c] & (folds.number[c] != k)).nonzero().flatten().tolist()
            held_out = (folds.usable[c] & (folds.number[c] == k)).nonzero().flatten().tolist()
            z, y = sample.z[c].numpy(), sample.y[c].numpy()
            mean = prior.mean[c].numpy().copy()
            for label in {int(y[i]) for i in rest}:
                mean[label] = np.mean([z[i] for i in rest if y[i] == label], axis=0)
            scatter = sum((np.outer(z[i] - mean[y[i]], z[i] - mean[y[i]]) for i in rest), np.zeros((D, D)))
            own = scatter / (len(rest) - 1) + ridge * np.eye(D) if len(rest) > 1 else prior.covariance[c].numpy()
            b_mean, b_cov = beta[c].tolist()
            mixed = b_mean * mean + (1 - b_mean) * prior.mean[c].numpy()
            S = b_cov * own + (1 - b_cov) * prior.covariance[c].numpy()
            losses = []
            for i in held_out:
                gauss = MultivariateNormal(torch.from_numpy(mixed), torch.from_numpy(S))
                joint = gauss.log_prob(sample.z[c, i]) + log_prior[c]  # type: ignore[no-untyped-call]
                losses.append(float(joint.logsumexp(0) - joint[y[i]]))
            total += float(np.mean(losses)) if losses else 0.0
        yield total


@pytest.mark.parametrize("count", [2, 3])
def test_the_validation_loss_is_the_naive_one(count: int) -> None:
    """J(β) = Σ_f mean over fold f of -log p(y | z), with the statistics of the other folds; 0 if nothing can be split.

    Client 1 has two examples of class 0 and five of class 1; with three folds only class 1 is left. Client 2 has one.
    """
    sample, group = labelled(RAGGED)
    prior = global_model(3)
    log_prior = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64).log()
    folds = adapt.deal(sample, group, K, count, client_keys(3))
    loss = adapt.validation_loss(sample, folds, count, prior, log_prior, 0.7, 0.0)
    for mean, covariance in ((0.0, 0.0), (1.0, 1.0), (0.3, 0.8), (1.0, 0.0)):
        beta = pair(mean, covariance, 3)
        expected = list(naive_loss(sample, folds, count, prior, log_prior, beta, 0.7))
        np.testing.assert_allclose(loss(beta), expected, rtol=0, atol=1e-10)
    assert float(loss(pair(0.5, 0.5, 3))[2]) == 0.0


def test_the_loss_at_0_knows_nothing_of_the_clients_statistics() -> None:
    """J(0) is the prior's own loss on the two folds, whatever the ridge; J(1) feels the ridge."""
    sample, group = labelled(RAGGED[:2])
    prior, log_prior = global_model(2), uniform(2)
    folds = adapt.deal(sample, group, K, 2, client_keys(2))
    weak, strong = (adapt.validation_loss(sample, folds, 2, prior, log_prior, r, 1e-4) for r in (0.01, 10.0))
    parts = [sample._replace(real=folds.usable & (folds.number == k)) for k in range(2)]
    plain = torch.stack([lda.cross_entropy(prior, log_prior, part, 1e-4) for part in parts]).sum(0)
    assert torch.allclose(weak(pair(0, 0, 2)), plain, rtol=0, atol=1e-14)
    assert torch.allclose(weak(pair(0, 0, 2)), strong(pair(0, 0, 2)), rtol=0, atol=1e-13)
    assert not torch.allclose(weak(pair(1, 1, 2)), strong(pair(1, 1, 2)))


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_one_basis_for_every_beta_gives_the_same_as_a_factorisation_for_each(ridge: float) -> None:
    """J and β̂ as from lda.head, which factorises the interpolated covariance anew for each β."""
    rng = np.random.default_rng(2)
    sample, group = labelled([[*rng.integers(0, K, n).tolist(), *[-1] * (40 - n)] for n in (40, 25, 12, 2)])
    prior, log_prior = global_model(4), uniform(4)
    folds = adapt.deal(sample, group, K, 2, client_keys(4))
    parts = []
    for k in range(2):
        rest, held = (sample._replace(real=folds.usable & part) for part in (folds.number != k, folds.number == k))
        parts.append((lda.statistics(rest, prior, ridge), held))

    def plain(beta: Tensor) -> Tensor:
        each = [lda.cross_entropy(lda.interpolate(own, prior, beta), log_prior, held, 1e-4) for own, held in parts]
        return torch.stack(each).sum(0)

    loss = adapt.validation_loss(sample, folds, 2, prior, log_prior, ridge, 1e-4)
    for beta in torch.from_numpy(rng.uniform(size=(5, 4, 2))):
        assert torch.allclose(loss(beta), plain(beta), rtol=1e-9, atol=0)
    for separate in (False, True):
        found, expected = (adapt.best_beta(f, 4, separate=separate) for f in (loss, plain))
        assert torch.allclose(found, expected, rtol=0, atol=1e-3)


# The best β


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("ridge", [1e-4, 1.0])
def test_the_best_beta_beats_the_obvious_ones(separate: bool, ridge: float) -> None:
    """J(β̂) ≤ min(J(0), J(½), J(1)); β̂ in [0, 1]; two β never do worse than one."""
    rng = np.random.default_rng(1)
    y = [rng.integers(0, K, 30).tolist() for _ in range(12)]
    sample, group = labelled(y)
    sample = sample._replace(z=sample.z + torch.from_numpy(rng.normal(size=(12, 1, D))))
    prior, log_prior = global_model(12), uniform(12)
    folds = adapt.deal(sample, group, K, 2, client_keys(12))
    loss = adapt.validation_loss(sample, folds, 2, prior, log_prior, ridge, 1e-4)
    beta = adapt.best_beta(loss, 12, separate=separate)
    assert beta.shape == (12, 2)
    assert (beta >= 0).all()
    assert (beta <= 1).all()
    for value in (0.0, 0.5, 1.0):
        assert (loss(beta) <= loss(pair(value, value, 12)) + 1e-9).all()
    common = adapt.best_beta(loss, 12, separate=False)
    assert torch.equal(common[:, 0], common[:, 1])
    assert (loss(beta) <= loss(common) + 1e-12).all()
    assert torch.equal(beta, adapt.best_beta(loss, 12, separate=separate))


def test_one_beta_and_two_by_hand() -> None:
    """J = (b₁ - 0.2)² + 3 (b₂ - 0.9)²: one β gives (0.2 + 3·0.9)/4 = 0.725, two give 0.2 and 0.9."""

    def loss(beta: Tensor) -> Tensor:
        return (beta[:, 0] - 0.2).square() + 3 * (beta[:, 1] - 0.9).square()

    one, two = (adapt.best_beta(loss, 3, separate=s) for s in (False, True))
    assert torch.allclose(one, pair(0.725, 0.725, 3), rtol=0, atol=1e-3)
    assert torch.allclose(two, pair(0.2, 0.9, 3), rtol=0, atol=1e-3)


def test_two_betas_that_depend_on_each_other() -> None:
    """J = x² + y² + xy with x = b₁ - 0.3, y = b₂ - 0.6: the common start is (0.45, 0.45), the minimum (0.3, 0.6).

    By turns, each halves the other's error (x ← -y/2): y = -0.15, x = 0.075, y = -0.0375, x = 0.01875, y = -0.0094.
    """

    def loss(beta: Tensor) -> Tensor:
        x, y = beta[:, 0] - 0.3, beta[:, 1] - 0.6
        return x.square() + y.square() + x * y

    found = adapt.best_beta(loss, 1, separate=True)
    assert torch.allclose(found, pair(0.3, 0.6), rtol=0, atol=0.021)


def toy(
    n: int, displacement: float, ridge: float, *, d: int = 16, clients: int = 16
) -> tuple[Sample, Tensor, Statistics]:
    """Balanced Gaussian classes whose global means are N(0, 0.35²), the clients' own displaced from them.

    The features have covariance I. A server that averages Σ̂ + r I holds (1 + r) I.
    """
    rng = np.random.default_rng(0)
    means = 0.35 * rng.normal(size=(clients, 5, d))
    own = means + displacement * rng.normal(size=means.shape)
    y = np.tile(np.arange(n) % 5, (clients, 1))
    z = np.take_along_axis(own, y[..., None], 1) + rng.normal(size=(clients, n, d))
    covariance = (1 + ridge) * torch.eye(d, dtype=torch.float64)
    prior = Statistics(torch.from_numpy(means), covariance.expand(clients, d, d))
    labels = torch.from_numpy(y)
    return Sample(torch.from_numpy(z), labels, torch.ones_like(labels, dtype=torch.bool)), _places(clients, n), prior


def _places(clients: int, n: int) -> Tensor:
    return torch.arange(n).expand(clients, n)


def solve(sample: Sample, group: Tensor, prior: Statistics, ridge: float) -> float:
    """The mean β of the stack."""
    clients = len(sample.y)
    folds = adapt.deal(sample, group, 5, 2, client_keys(clients))
    loss = adapt.validation_loss(sample, folds, 2, prior, uniform(clients, 5), ridge, 1e-4)
    return float(adapt.best_beta(loss, clients, separate=False).mean())


@pytest.mark.parametrize("ridge", [1e-4, 1.0])
def test_few_data_of_the_global_law_trust_the_prior(ridge: float) -> None:
    """40 examples, 16 features, no shift: at most 0.25 on average.

    A fold's class means come from 4 rows and err by 1/4 around the truth, which the prior knows.
    """
    assert solve(*toy(40, 0.0, ridge), ridge) <= 0.25


@pytest.mark.parametrize("ridge", [1e-4, 1.0])
def test_many_data_of_another_law_trust_themselves(ridge: float) -> None:
    """2000 examples, class means displaced by N(0, 0.35²): at least 0.9 on average.

    A fold's class means come from 200 rows and err by 1/200; the best share of them is 0.35²/(0.35² + 1/200) = 0.96.
    """
    assert solve(*toy(2000, 0.35, ridge), ridge) >= 0.9


def test_near_copies_do_not_raise_beta_when_they_share_a_fold() -> None:
    """n = 50, d = 128, no shift, ridge 1: β̂ stays near 0 with five near-copies of each example in one fold.

    Dealt as examples of their own, the copies stand on both sides of the split, and β̂ rises to about a half.
    """
    sample, group, prior = toy(50, 0.0, 1.0, d=128, clients=8)
    noise = 0.1 * torch.from_numpy(np.random.default_rng(5).normal(size=(8, 250, 128)))
    five = Sample(sample.z.repeat(1, 5, 1) + noise, sample.y.repeat(1, 5), sample.real.repeat(1, 5))
    once = solve(sample, group, prior, 1.0)
    assert once < 0.1
    assert solve(five, group.repeat(1, 5), prior, 1.0) <= once + 0.02
    assert solve(five, _places(8, 250), prior, 1.0) > 0.3
