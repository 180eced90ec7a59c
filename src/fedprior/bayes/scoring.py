"""The server of a mixed model: Fisher scoring on the sum of the sites' log Z.

A site that does not report is remembered by its last message, carried to the current parameters by its own information:
score(γ) = score(γ_k) - A_k (γ - γ_k). So what is kept is score + A γ at the time, and likewise for variances.
If the objective falls, the step is taken back and made a third as long; this needs news from every site.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedprior import tree
from fedprior.bayes.covariance import Covariance
from fedprior.bayes.lda import unpack
from fedprior.bayes.mixed import Message

SLOPES, INTERCEPTS = 2.5, 10.0
"""Deviations of the prior of γ, per deviation of an input."""
CAP, LOG_CAP = 3.0, 1.5
"""Largest step of a coefficient and of a log variance."""
SHORTEST, STIFFEST = 1e-3, 10.0
"""Smallest share of a step, and the largest factor by which a curvature is raised."""
QUIET = -20.0
"""Smallest log s²: rows that are fitted exactly."""
RANK = 1e-10
"""Smallest eigenvalue of an information matrix, relative to the largest, that is not taken for 0."""


class Point(NamedTuple):
    """The parameters of the model."""

    gamma: Tensor  # [D]
    covariance: Tensor  # as `Covariance` stores it
    path: Tensor  # [p]  the steps S so far: a coordinate of the covariance
    log_noise: Tensor  # []  log s² of the standardised target


class Step(NamedTuple):
    """A direction in the parameters."""

    gamma: Tensor  # [D]
    covariance: Tensor  # [p]
    log_noise: Tensor  # []


class Trial(NamedTuple):
    """The last point that was accepted, what was found there, and where to go from it."""

    objective: Tensor  # []  -inf: nothing to go back to
    point: Point
    step: Step
    score: Tensor  # [D]  the gradient by γ there, and
    slope: Tensor  # [p]  by the covariance: two gradients show the curvature between them
    length: Tensor  # []  share of the step that is taken


class Model(NamedTuple):
    """What stays the same from round to round."""

    covariance: Covariance
    random: Tensor  # [D]  1 where a coefficient may differ by site
    precision: Tensor  # [D]  of the prior of γ; 0: flat
    informed: bool  # the covariance has a prior
    restricted: bool = False  # γ is integrated out as well


def start(covariance: Covariance, size: int) -> Trial:
    """Nothing accepted yet."""
    first = covariance.start()
    p = len(covariance.entries(torch.eye(size, dtype=torch.float64)))
    zero, none, entries = (torch.zeros(shape, dtype=torch.float64) for shape in ((), size, p))
    point = Point(none, first, covariance.coordinate(entries, entries, first), zero)
    return Trial(zero - torch.inf, point, Step(none, entries, zero), none, entries, zero + 1)


def anchored(message: Message, point: Point) -> Message:
    """A message in a form that does not depend on where it was made: score + A γ, and so on."""
    A = unpack(message.information, len(point.gamma))
    noise = message.noise.clone()
    noise[:, :1] += noise[:, 1:] * point.log_noise
    slope = message.slope + message.curvature * point.path
    return message._replace(score=message.score + A @ point.gamma, slope=slope, noise=noise)


def remembered(notes: Message, sent: Message, point: Point, ids: Tensor) -> Message:
    """Every site's newest message, [N, ...], after those of the sites `ids` have come in."""
    return tree.map(lambda old, new: old.index_copy(0, ids, new), notes, anchored(sent, point))


def released(total: Message, point: Point) -> Message:
    """The inverse, for a sum of messages without a client axis."""
    A = unpack(total.information, len(point.gamma))
    noise = total.noise.clone()
    noise[:1] -= noise[1:] * point.log_noise
    slope = total.slope - total.curvature * point.path
    return total._replace(score=total.score - A @ point.gamma, slope=slope, noise=noise)


def precision(inputs: int, outputs: int) -> Tensor:
    """Of the prior of γ, output by output, [D]."""
    own = torch.full((inputs + 1,), SLOPES**-2, dtype=torch.float64)
    own[0] = INTERCEPTS**-2
    return own.repeat(outputs)


def uncertainty(model: Model, information: Tensor) -> Tensor:
    """C, the covariance of γ: (Σ A + P)⁻¹, [D, D]; directions that the data say nothing of are left out."""
    return _inverse(_precision(model, information))


def variances(model: Model, curvature: Tensor, point: Point) -> Tensor:
    """The variances of the free entries of S by their information in messages and prior, [p]."""
    prior = model.covariance.prior(point.covariance, model.random).information if model.informed else 0.0
    return model.covariance.variances(curvature + prior)


def _precision(model: Model, information: Tensor) -> Tensor:
    return unpack(information, len(model.precision)) + torch.diag(model.precision)


def _inverse(matrix: Tensor) -> Tensor:
    found: Tensor = torch.linalg.pinv(matrix, rtol=RANK, hermitian=True)
    return found


def _stiffened(A: Tensor, along: Tensor, fall: Tensor) -> Tensor:
    """A, raised along the last step if the gradient fell by more than A said: else steps overshoot again and again."""
    expected = A @ along
    size = along @ expected
    if not float(size) > 0:
        return A
    factor = (along @ fall / size).clamp(1.0, STIFFEST)
    return A + (factor - 1) / size * expected.unsqueeze(1) * expected


def objective(model: Model, point: Point, total: Message) -> Tensor:
    """Σ log Z + log prior; restricted: - ½ log |ΣA + P| in the directions that the data say something of, []."""
    value = total.log_z - (model.precision * point.gamma.square()).sum() / 2
    if model.restricted:
        values = torch.linalg.eigvalsh(_precision(model, total.information))
        value = value - values[values > RANK * values.max()].log().sum() / 2
    return value + model.covariance.prior(point.covariance, model.random).value if model.informed else value


def direction(model: Model, total: Message, trial: Trial, point: Point, sites: int) -> tuple[Step, Tensor, Tensor]:
    """Where to go from `point`, and the gradients there by γ and by the covariance."""
    score = total.score - model.precision * point.gamma
    A = _stiffened(_precision(model, total.information), point.gamma - trial.point.gamma, trial.score - score)
    gamma = _inverse(A) @ score
    gamma = gamma * (CAP / gamma.abs().max().clamp(min=CAP))
    slope, curvature = total.slope, total.curvature
    if model.informed:
        prior = model.covariance.prior(point.covariance, model.random)
        slope, curvature = slope + prior.gradient, curvature + prior.information
    along = point.path - trial.point.path
    moved = along.abs() > 1e-9
    secant = torch.where(moved, (trial.slope - slope) / torch.where(moved, along, 1.0), 0.0).clamp(max=sites / 2 + 1)
    free = model.covariance.entries(model.random * model.random.unsqueeze(-1))
    step = (slope / torch.maximum(curvature, secant).clamp(min=1e-3)).clamp(-LOG_CAP, LOG_CAP) * free
    return Step(gamma, step, _noise_step(total.noise)), score, slope


def _noise_step(noise: Tensor) -> Tensor:
    if not len(noise):
        return torch.zeros((), dtype=torch.float64)
    return (noise[0] / noise[1].clamp(min=1e-3)).clamp(-LOG_CAP, LOG_CAP)


def moved(model: Model, point: Point, step: Step, length: Tensor) -> Point:
    """`point` after a share of a step."""
    covariance = model.covariance.moved(point.covariance, length * step.covariance)
    return Point(
        point.gamma + length * step.gamma,
        covariance,
        model.covariance.coordinate(point.path, length * step.covariance, covariance),
        (point.log_noise + length * step.log_noise).clamp(min=QUIET),
    )


def advanced(
    model: Model, total: Message, trial: Trial, point: Point, sites: int, *, news: bool
) -> tuple[Trial, Point]:
    """One round at the server. `news`: every remembered message was made at `point`, so objectives compare."""
    value = objective(model, point, total)
    before = trial.objective
    if news and bool(value < before - 1e-6 * (1 + before.abs())) and float(trial.length) > SHORTEST:
        trial = trial._replace(length=trial.length / 3)
        return trial, moved(model, trial.point, trial.step, trial.length)
    step, score, slope = direction(model, released(total, point), trial, point, sites)
    length = trial.length if news else torch.ones_like(trial.length)
    after = moved(model, point, step, length)
    value = value if news else torch.full_like(value, -torch.inf)
    return Trial(value, point, step, score, slope, (2 * length).clamp(max=1.0)), after


def settled(model: Model, trial: Trial, tolerance: float) -> bool:
    """Whether the last step, taken whole, is too small to matter; variances may be ten times as rough as γ."""
    before, after = trial.point, moved(model, trial.point, trial.step, torch.ones_like(trial.length))
    rough = max(
        model.covariance.change(before.covariance, after.covariance), float((after.log_noise - before.log_noise).abs())
    )
    return float(trial.step.gamma.abs().max()) < tolerance and rough < 10 * tolerance
