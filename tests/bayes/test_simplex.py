"""The quadratic programme over the simplex against closed forms, its optimality conditions and another solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from fedprior.bayes.simplex import minimise_quadratic

Array = NDArray[np.float64]


def solver(P: Array) -> Array:
    """SciPy's argmin over the simplex of a'Pa, by sequential least squares."""
    n = len(P)
    found = minimize(
        lambda a: a @ P @ a,
        np.full(n, 1 / n),
        jac=lambda a: 2 * P @ a,
        method="SLSQP",
        bounds=[(0, 1)] * n,
        constraints=[{"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(n)}],
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    best: Array = found.x
    return best


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def problems(n: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng((n, seed))
    full, thin, gap = rng.normal(size=(n, n)), rng.normal(size=(n, max(1, n // 2))), rng.normal(size=(n, 6))
    gap -= gap[0]
    spread = rng.uniform(0.5, 2, n)
    return {
        "full": full @ full.T,
        "singular": thin @ thin.T,
        "rank one": np.outer(full[0], full[0]),
        "diagonal": np.diag(spread),
        "heads": np.diag(spread) + gap @ gap.T,  # FedPAC's, with much, some and little variance
        "heads, 1e-2": np.diag(1e-2 * spread) + gap @ gap.T,
        "heads, 1e-4": np.diag(1e-4 * spread) + gap @ gap.T,
    }


SMALL = [(kind, n) for kind in problems(2, 0) for n in (1, 2, 3, 8, 20)]


@pytest.mark.parametrize(("kind", "n"), [*SMALL, ("heads, 1e-2", 50), ("heads, 1e-4", 50)])
def test_quadratic_programme_against_scipy(kind: str, n: int) -> None:
    """On the simplex, and no worse than SciPy's solution: a'Pa exceeds it by less than a millionth.

    Where P is singular there may be many solutions, so values are compared; scale is that of P.
    """
    for seed in range(2):
        P = problems(n, seed)[kind]
        scale = np.trace(P) / n
        a, best = minimise_quadratic(torch.from_numpy(P)).numpy(), solver(P / scale)
        assert a.min() >= 0
        assert a.sum() == pytest.approx(1, abs=1e-12)
        assert a @ P @ a <= best @ P @ best * (1 + 1e-6) + 1e-9 * scale


@pytest.mark.parametrize("n", [2, 8, 20])
@pytest.mark.parametrize("kind", ["full", "diagonal", "heads", "heads, 1e-2", "heads, 1e-4"])
def test_quadratic_programme_is_stationary(n: int, kind: str) -> None:
    """At the minimum the slopes 2Pa are equal where a > 0 and no smaller elsewhere: Σ a_i (s_i - min s) = 0."""
    for seed in range(2):
        P = problems(n, seed)[kind]
        a = minimise_quadratic(torch.from_numpy(P)).numpy()
        slope = 2 * P @ a
        assert a @ (slope - slope.min()) < 1e-9 * (a @ slope)


@pytest.mark.parametrize("ratio", [1.0, 3.0, 99.0, 500.0, 999.0])
def test_diagonal_closed_form(ratio: float) -> None:
    """Of diag(p): a_i ∝ 1/p_i, for a'Pa has slopes 2 p_i a_i. So diag(1, r) gives (r, 1)/(r + 1)."""
    a = minimise_quadratic(torch.diag(tensor(1.0, ratio)))
    assert torch.allclose(a, tensor(ratio, 1.0) / (ratio + 1), rtol=0, atol=1e-12)


def test_three_by_three_closed_form() -> None:
    """Interior minimum a ∝ P⁻¹1: of [[1,0,0],[0,2,1],[0,1,2]], P⁻¹1 = (1, 1/3, 1/3), so a = (0.6, 0.2, 0.2)."""
    P = torch.tensor([[1.0, 0, 0], [0, 2, 1], [0, 1, 2]], dtype=torch.float64)
    assert torch.allclose(minimise_quadratic(P), tensor(0.6, 0.2, 0.2), rtol=0, atol=1e-12)


def test_the_scale_of_the_matrix_does_not_matter() -> None:
    P = torch.from_numpy(problems(8, 0)["heads"])
    for scale in (1e-20, 1e20):
        assert torch.allclose(minimise_quadratic(scale * P), minimise_quadratic(P), rtol=0, atol=1e-9)


def test_degenerate_matrices() -> None:
    """Without curvature every point is a minimum, so any will do. Negative curvature, from rounding, counts as none.

    diag(1, -0.001) becomes diag(1, 0), whose minimum is (0, 1). Two equal columns have a minimum 1/2 on their edge.
    """
    for n in (1, 4):
        a = minimise_quadratic(torch.zeros(n, n, dtype=torch.float64))
        assert float(a.sum()) == pytest.approx(1, abs=1e-12)
        assert float(a.min()) >= 0
    assert torch.allclose(minimise_quadratic(torch.diag(tensor(1.0, -1e-3))), tensor(0.0, 1.0), rtol=0, atol=1e-12)
    twins = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float64)
    a = minimise_quadratic(twins)
    assert float(a @ twins @ a) == pytest.approx(0.5, abs=1e-12)
    assert float(a[:2].sum()) == pytest.approx(0.5, abs=1e-12)


def test_the_antisymmetric_part_has_no_effect() -> None:
    """a'Pa = a'(P + P')a/2."""
    P = torch.from_numpy(problems(5, 1)["full"])
    skew = torch.triu(torch.ones(5, 5, dtype=torch.float64), 1)
    assert torch.allclose(minimise_quadratic(P + skew - skew.T), minimise_quadratic(P), rtol=0, atol=1e-9)
