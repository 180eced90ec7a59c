"""Mixed: the linear, logistic or Poisson mixed model of statistics, fitted to sums that the sites send.

    site        θ_k = γ + L b_k,  b_k ~ N(0, I);   y | x, θ_k  logistic, softmax, Poisson, or Gaussian with variance s²
    server      γ, Σ = L Lᵀ and s² by Fisher scoring on Σ_k log Z_k + log prior, Z_k by Laplace
    prediction  at a site: θ_k with covariance V_k + B C Bᵀ,  B = I - V_k H_k,  C that of γ;   elsewhere: γ with Σ + C;
                through the probit scaling (classes), the moments of a lognormal rate (counts), or added to s² (numbers)

The equations are in `bayes/mixed.py` and `bayes/scoring.py`. The network is not used: its likelihood alone says what
is predicted. The inputs are the federation's, flattened; the model standardises them by sums of its own, which are the
first message, so their scaling has no influence. A slope may differ by site if more than a share `within` of its
input's variance lies within sites.

The prior is that of Chung et al. (Psychometrika 78, 2013); penalised quasi-likelihood for sites with fewer rows than
columns that of Breslow & Clayton (JASA 88, 1993). `prior="ml"` has no prior: maximum likelihood, for inference;
`prior="reml"` is restricted maximum likelihood, whose variances allow for γ being estimated.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.bayes import effects, glm, mixed, scoring, standard
from fedprior.bayes.covariance import Covariance, Diagonal, Full
from fedprior.bayes.glm import Family, Multinomial, Normal, Poisson, Rows
from fedprior.bayes.lda import pack, unpack
from fedprior.bayes.mixed import Doubt, Fit, Message
from fedprior.bayes.mixed_state import Down, Personal, Server, Up
from fedprior.bayes.scoring import Model
from fedprior.data.client import ClientData
from fedprior.data.naming import Names
from fedprior.explanation import Explanation
from fedprior.models.likelihood import Categorical, Counts, Gaussian
from fedprior.protocol import About, Empty, Hints, Logs, Method, register
from fedprior.rng import Key, Keys

GROUP_SCALARS = 4_000_000
"""Numbers of a stack's padded rows that are worked on at a time."""
MOST = 1000
"""Coefficients: a message has half their square."""


@register
class Mixed(Method[Server, Empty, Down, Up, Personal]):
    """A generalised linear mixed model."""

    about = About(
        name="mixed",
        title="Mixed",
        paper="the mixed-effects model of statistics, from sums",
        year=2026,
        group="Bayesian prior",
        personal="a linear model; the network is not used",
        moment="after aggregation",
        most_coefficients=MOST,
    )
    hints = Hints(own_training=True)

    effects: Annotated[
        Literal["intercept", "diagonal", "full"],
        Field(description="what differs by site: the intercept; intercept and slopes, independently; or correlated"),
    ] = "diagonal"
    prior: Annotated[
        Literal["rayleigh", "ml", "reml"],
        Field(description="weakly informative; or none, for inference: maximum likelihood, or restricted"),
    ] = "rayleigh"
    within: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="smallest share of an input's variance within sites for its slope to differ by site",
            json_schema_extra={"others": [0.99]},
        ),
    ] = 0.05
    tolerance: Annotated[
        float,
        Field(
            gt=0,
            description="step of a coefficient, per deviation of its input, below which the run ends",
            json_schema_extra={"others": [1e3]},
        ),
    ] = 1e-3

    # The model

    @property
    def inputs(self) -> int:
        """i, the columns of the table."""
        return self.task.inputs

    @property
    def outputs(self) -> int:
        """m."""
        return self.family(0.0).outputs

    @property
    def size(self) -> int:
        """D = m (i + 1)."""
        return self.outputs * (self.inputs + 1)

    @property
    def covariance(self) -> Covariance:
        """The family of Σ."""
        return Full(self.size) if self.effects == "full" else Diagonal(self.size)

    def family(self, log_noise: float) -> Family:
        """The distribution of a label."""
        likelihood = self.task.likelihood
        if isinstance(likelihood, Categorical):
            return Multinomial(likelihood.classes)
        return Poisson(likelihood.mean) if isinstance(likelihood, Counts) else Normal(math.exp(log_noise))

    @property
    def unit(self) -> tuple[float, float]:
        """What 1 and 0 of the linear predictor are in the target's unit; a count's is the log rate."""
        likelihood = self.task.likelihood
        if isinstance(likelihood, Gaussian):
            return likelihood.deviation, likelihood.mean
        return 1.0, math.log(likelihood.mean) if isinstance(likelihood, Counts) else 0.0

    def model(self, random: Tensor) -> Model:
        """What the server works with."""
        precision = scoring.precision(self.inputs, self.outputs)
        informed = self.prior == "rayleigh"
        flat = torch.zeros_like(precision)
        return Model(self.covariance, random, precision if informed else flat, informed, self.prior == "reml")

    def doubt(self, down: Down) -> Doubt:
        """What the server does not know exactly."""
        return Doubt(unpack(down.uncertainty, self.size), self.covariance.matrix(down.variances), down.sway)

    # Sites

    def rows(self, down: Down, data: ClientData) -> Rows:
        """A stack's rows as the model takes them; numbers are standardised."""
        x, y, real = glm.padded(data)
        if isinstance(self.task.likelihood, Gaussian):
            y = (y.double() - self.task.likelihood.mean) / self.task.likelihood.deviation
        return Rows(glm.design(x, down.mean, down.scale) * real.unsqueeze(-1), y, real)

    def fit(self, down: Down, rows: Rows) -> tuple[Family, Tensor, Fit]:
        """The distribution, L, and every site's mode."""
        family, L = self.family(float(down.log_noise)), self.covariance.factor(down.covariance, down.random)
        return family, L, mixed.posterior(family, rows, down.gamma, L)

    def groups(self, data: ClientData) -> list[slice]:
        """Parts of a stack whose padded rows fit into the cache, or at least into memory."""
        width = max((1, *data.size)) * (self.inputs + 1) * self.outputs**2
        most = max(1, GROUP_SCALARS // width)
        return [slice(first, first + most) for first in range(0, len(data), most)]

    def answer(self, down: Down, data: ClientData) -> tuple[Up, Logs]:
        """The message of a part of a stack."""
        if not bool(down.ready):
            x, _, real = glm.padded(data)
            nothing = tree.expand(self.nothing(), len(data))
            return Up(data.n, *standard.site_sums(x, real), nothing), {"loss": nothing.log_z}
        rows = self.rows(down, data)
        family, L, fit = self.fit(down, rows)
        restricted = self.prior == "reml"
        sent = mixed.message(family, self.covariance, rows, L, fit, self.doubt(down), restricted=restricted)
        zeros = torch.zeros(len(data), self.inputs, dtype=torch.float64)
        return Up(data.n, zeros, zeros, sent), {"loss": -fit.log_density / data.n.clamp(min=1)}

    def nothing(self) -> Message:
        """A message without content."""
        entries = len(self.covariance.entries(torch.eye(self.size)))
        return mixed.blank(self.size, entries, noise=not self.family(0.0).curved)

    def own_model(self, down: Down, data: ClientData) -> Personal:
        """θ_k = γ + L b_k, and what is not known about it."""
        _, L, fit = self.fit(down, self.rows(down, data))
        found = mixed.spread(fit, L, self.doubt(down), self.outputs)
        mean, scale, noise = (leaf.expand(len(data), *leaf.shape) for leaf in (down.mean, down.scale, down.log_noise))
        errors = found.deviation, found.freedom, found.deviation_freedom
        return Personal(
            mean, scale, fit.theta, pack(found.covariance), found.error, fit.theta - down.gamma, *errors, noise
        )

    # Server

    def scaled(self, server: Server, ups: Up) -> Server:
        """Mean and deviation of every input over the sites that sent sums, and which coefficients may differ."""
        mean, scale, share = standard.pooled(ups.n, ups.mean, ups.square)
        differs = (share > self.within) & (self.effects != "intercept")
        random = torch.cat([torch.ones(1, dtype=torch.float64), differs.double()]).repeat(self.outputs)
        return server._replace(ready=torch.tensor(True), mean=mean, scale=scale, random=random)

    # The protocol

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """γ = 0, variances of 0.1, and nothing known of the sites."""
        D, none = self.size, torch.zeros(self.inputs, dtype=torch.float64)
        trial = scoring.start(self.covariance, D)
        spread = pack(torch.zeros(D, D, dtype=torch.float64))
        notes = tree.map(lambda leaf: torch.zeros(clients, *leaf.shape, dtype=leaf.dtype), self.nothing())
        n, age = torch.zeros(clients, dtype=torch.float64), torch.full((clients,), -1)
        random = torch.zeros(D, dtype=torch.float64)
        ready, calm = torch.tensor(False), torch.tensor(0)
        log_z = torch.zeros((), dtype=torch.float64)
        unknown = torch.zeros_like(trial.slope), random.clone()
        return Server(ready, none, none, random, trial.point, trial, spread, *unknown, notes, n, log_z, age, calm)

    def broadcast(self, server: Server, ids: Tensor) -> Down:
        """The scaling and the prior, to everyone."""
        gamma, covariance, _, log_noise = server.point
        scaling = server.ready, server.mean, server.scale, server.random
        return Down(*scaling, gamma, covariance, log_noise, server.uncertainty, server.variances, server.sway)

    def init_client(self, down: Down, data: ClientData, keys: Keys) -> Empty:
        """A site keeps nothing: its mode follows from its rows and the newest prior."""
        return Empty()

    def local_update(self, client: Empty, down: Down, data: ClientData, keys: Keys) -> tuple[Empty, Up, Logs]:
        """The sums of every site under the newest prior."""
        one = tree.index(down, 0)
        answers = [self.answer(one, data[group]) for group in self.groups(data)]
        logs = {name: torch.cat([own[name] for _, own in answers]) for name in answers[0][1]}
        return client, tree.map(mixed.bounded, tree.cat([up for up, _ in answers])), logs

    def aggregate(self, server: Server, ups: Up, ids: Tensor) -> Server:
        """The scaling first, then a step of Fisher scoring in every round."""
        if not bool(server.ready):
            return self.scaled(server, ups)
        notes = scoring.remembered(server.notes, ups.message, server.point, ids)
        n, age = server.n.index_copy(0, ids, ups.n), (server.age + (server.age >= 0)).index_fill(0, ids, 0)
        known, total = age >= 0, tree.map(lambda leaf: leaf.sum(0), notes)
        exact = (n > self.inputs) & (self.prior != "reml") | (n == 0)  # else derivatives are not quite the objective's
        exact = exact | (not self.family(0.0).curved)
        news, model = bool((age[known] == 0).all() and exact[known].all()), self.model(server.random)
        trial, point = scoring.advanced(model, total, server.trial, server.point, int(known.sum()), news=news)
        went_back = trial.point is server.trial.point
        calm = server.calm + 1 if scoring.settled(model, trial, self.tolerance) and not went_back else torch.tensor(0)
        spread = pack(scoring.uncertainty(model, total.information))
        variances = scoring.variances(model, total.curvature, server.point)
        return Server(*server[:4], point, trial, spread, variances, total.sway, notes, n, total.log_z, age, calm)

    def converged(self, server: Server) -> bool:
        """Steps have been small for longer than the oldest message is old."""
        return int(server.calm) > max(0, int(server.age.max()))

    def shareable(self, server: Server) -> Server:
        """Without the messages."""
        return server._replace(notes=tree.zeros_like(server.notes), n=torch.zeros_like(server.n))

    def personalise(self, client: Empty, down: Down, data: ClientData, keys: Keys) -> Personal:
        """Each site's mode under the newest prior."""
        one = tree.index(down, 0)
        return tree.cat([self.own_model(one, data[group]) for group in self.groups(data)])

    @torch.no_grad()
    def predict(self, personal: Personal, x: Tensor, keys: Keys) -> Tensor:
        """The likelihood, averaged over what is not known of θ."""
        covariance = unpack(personal.covariance, self.size)
        eta, h = glm.moments(x.flatten(2).double(), personal.mean, personal.scale, personal.theta, covariance)
        if isinstance(self.task.likelihood, Counts):
            return self.task.likelihood.averaged(eta.squeeze(-1), h[..., 0, 0].clamp(min=0)).to(self.task.dtype)
        if isinstance(self.task.likelihood, Gaussian):
            variance = personal.log_noise.exp().unsqueeze(1) + h[..., 0, 0].clamp(min=0)
            out = torch.stack([eta.squeeze(-1), variance.log()], -1)
        else:
            out = glm.expected_logits(eta, h)
        return self.task.likelihood.predictive(out).to(self.task.dtype)

    def explain(self, server: Server, personal: Personal, names: Names) -> Explanation:
        """Fixed effects, deviations between sites, and each site's own; see docs/methods/mixed.md for their units."""
        outputs, per_unit = names.classes if self.outputs > 1 else ("",), server.scale.numpy() / names.units
        labels = effects.Labels(names.inputs, outputs, *self.unit, per_unit)
        L = self.covariance.factor(server.point.covariance, server.random)
        variance = glm.variances(unpack(server.uncertainty, self.size), self.outputs)
        known = variance.sqrt().numpy(), mixed.degrees(variance, server.sway).numpy()
        noise = None if self.family(0.0).curved else float(server.point.log_noise.div(2).exp())
        theta, deviation = (glm.relative(leaf, self.outputs) for leaf in (personal.theta, personal.deviation))
        told = theta, personal.error, deviation, personal.deviation_error, personal.deviation_freedom
        tables = {
            "fixed effects": effects.fixed(labels, server.point.gamma.numpy(), *known),
            "deviations between sites": effects.between(labels, L.square().sum(1).sqrt().numpy(), noise),
        }
        if names.clients:
            tables["sites"] = effects.sites(labels, names.clients, *(leaf.numpy() for leaf in told))
        sentences = () if self.converged(server) else (effects.UNFINISHED,)
        return Explanation({title: frame.set_index(frame.columns[0]) for title, frame in tables.items()}, sentences)

    def predict_global(self, server: Server, x: Tensor) -> Tensor:
        """A site never seen: γ, with the covariance Σ + C."""
        L = self.covariance.factor(server.point.covariance, server.random)
        spread = pack(L @ L.T) + server.uncertainty
        unused = (torch.zeros_like(server.point.gamma),) * 5
        own = Personal(server.mean, server.scale, server.point.gamma, spread, *unused, server.point.log_noise)
        return self.predict(tree.expand(own, 1), x.unsqueeze(0), Keys.of(Key(0), ["global"])).squeeze(0)
