"""Guards at the server: aggregation that a few bad clients cannot spoil, and client-level differential privacy.

All act on the changes Δ_k = w_k - w that clients send, and hand what is left of them to the method's own aggregation,
so they fit every method whose server takes a weighted mean of weights.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.data.naming import Names
from fedprior.errors import FedpriorError
from fedprior.explanation import Explanation
from fedprior.protocol import About, AnyMethod, Logs, Types
from fedprior.rng import Key, Keys
from fedprior.tree import Params
from fedprior.wrapping import Wrapper, layers

SECRET = "FEDPRIOR_DP_SECRET"
"""The environment variable with what the noise depends on beside the run's seed, which sites know."""
DELTAS = (1e-5, 1e-6)
"""The δ at which a summary reports ε."""


def _needs_mean(inner: AnyMethod, name: str, uplinks: tuple[tuple[str, ...], ...]) -> None:
    server, _, _, up, _ = inner.types
    if getattr(server, "_fields", ()) != ("w",) or getattr(up, "_fields", ()) not in uplinks:
        raise FedpriorError(
            f"'{inner.about.name}+{name}' is not possible: the server of {inner.about.title} does more than take a "
            "weighted mean of the clients' weights."
        )


def changes(sent: Params, w: Params) -> Tensor:
    """Δ = `sent` - `w` of every client in one row, [R, D] float64; `w` has a client axis of R or 1, or none."""
    parts = []
    for name, values in sorted(sent.items()):
        base = w[name] if w[name].dim() == values.dim() else w[name].unsqueeze(0)
        parts.append((values.double() - base.double()).flatten(1))
    return torch.cat(parts, 1)


def changed(sent: Params, w: Params, delta: Tensor) -> Params:
    """`w` + Δ in the form of what was `sent`; Δ is `delta` [R, D]."""
    made, at = {}, 0
    for name, values in sorted(sent.items()):
        base = w[name] if w[name].dim() == values.dim() else w[name].unsqueeze(0)
        size = values[0].numel()
        own = delta[:, at : at + size].view(values.shape)
        made[name], at = (base.double() + own).to(values.dtype), at + size
    return made


def bounded(delta: Tensor, limit: Tensor | float) -> Tensor:
    """Every row of Δ, `delta` [R, D], no longer than the limit: Δ min(1, limit / ‖Δ‖)."""
    length = torch.linalg.vector_norm(delta, dim=1, keepdim=True)
    shorter: Tensor = delta * (limit / length.clamp_min(1e-300)).clamp_max(1.0)
    return shorter


class Screened(Wrapper):
    """The method, whose server looks at the changes before it takes their mean."""

    @abstractmethod
    def screen(self, delta: Tensor) -> Tensor:
        """What the method may average in place of the clients' changes `delta`: [R, D] -> [R, D]."""

    def aggregate(self, server: Any, ups: Any, ids: Tensor) -> Any:
        """The inner method's, of what was screened."""
        sent = ups._fields[0]
        delta = self.screen(changes(getattr(ups, sent), server.w))
        return self.inner.aggregate(server, ups._replace(**{sent: changed(getattr(ups, sent), server.w, delta)}), ids)

    def personalise(self, client: Any, down: Any, data: ClientData, keys: Keys) -> Any:
        """The inner method's."""
        return self.inner.personalise(client, down, data, keys)


MEANS = (("w", "n"), ("v", "n"))


@dataclass(frozen=True, kw_only=True)
class Median(Screened):
    """The median of every weight's change: half of the clients must be honest (Yin et al., ICML 2018)."""

    inner: AnyMethod

    def __post_init__(self) -> None:
        _needs_mean(self.inner, "median", MEANS)

    def describe(self, inner: About) -> About:
        """A median in place of a mean."""
        return inner._replace(name=f"{inner.name}+median", title=f"{inner.title}+median")

    def screen(self, delta: Tensor) -> Tensor:
        """The same median for all; of an even number, the mean of the middle two."""
        ordered, count = delta.sort(0).values, len(delta)
        return ((ordered[(count - 1) // 2] + ordered[count // 2]) / 2).expand_as(delta)


@dataclass(frozen=True, kw_only=True)
class Trimmed(Screened):
    """The mean of every weight's change without the largest and the smallest (Yin et al., ICML 2018)."""

    inner: AnyMethod
    share: Annotated[
        float,
        Field(ge=0, lt=0.5, description="share of clients dropped at each end", json_schema_extra={"others": [0.0]}),
    ] = 0.2

    def __post_init__(self) -> None:
        _needs_mean(self.inner, "trimmed", MEANS)

    def describe(self, inner: About) -> About:
        """A trimmed mean in place of a mean."""
        return inner._replace(name=f"{inner.name}+trimmed", title=f"{inner.title}+trimmed mean")

    def screen(self, delta: Tensor) -> Tensor:
        """The same mean for all, of those that are left; at least one is."""
        count = len(delta)
        drop = min(math.ceil(self.share * count), (count - 1) // 2)
        return delta.sort(0).values[drop : count - drop].mean(0).expand_as(delta)


@dataclass(frozen=True, kw_only=True)
class NormBound(Screened):
    """No client's change is longer than a multiple of the median length (Sun et al. 2019, with a bound that adapts)."""

    inner: AnyMethod
    factor: Annotated[float, Field(gt=0, description="the bound, in median lengths")] = 1.0

    def __post_init__(self) -> None:
        _needs_mean(self.inner, "normbound", MEANS)

    def describe(self, inner: About) -> About:
        """Bounded changes."""
        return inner._replace(name=f"{inner.name}+normbound", title=f"{inner.title}+norm bound")

    def screen(self, delta: Tensor) -> Tensor:
        """Long changes are shortened; their directions stay."""
        return bounded(delta, self.factor * torch.linalg.vector_norm(delta, dim=1).quantile(0.5))


@dataclass(frozen=True, kw_only=True)
class Krum(Screened):
    """The change of the one client that is closest to its neighbours (Blanchard et al., NeurIPS 2017)."""

    inner: AnyMethod
    bad: Annotated[int, Field(ge=0, description="clients that may be bad; there should be 2 · bad + 3 or more")] = 1

    def __post_init__(self) -> None:
        _needs_mean(self.inner, "krum", MEANS)

    def describe(self, inner: About) -> About:
        """One client in place of a mean."""
        return inner._replace(name=f"{inner.name}+krum", title=f"{inner.title}+Krum")

    def screen(self, delta: Tensor) -> Tensor:
        """Everyone's change becomes that of the client with the least sum of squares to its R - bad - 2 nearest."""
        apart = torch.cdist(delta, delta, compute_mode="donot_use_mm_for_euclid_dist").square()
        nearest = apart.sort(1).values[:, 1 : 1 + max(1, len(delta) - self.bad - 2)]
        return delta[int(nearest.sum(1).argmin())].expand_as(delta)


class Noisy(NamedTuple):
    """A server that adds noise: the weights, and what its draws are keyed by."""

    w: Params
    seed: Tensor  # int64
    round: Tensor  # int64


@dataclass(frozen=True, kw_only=True)
class Private(Wrapper):
    """DP: client-level differential privacy of the shared weights (McMahan et al., ICLR 2018).

    Every client bounds its change, ‖Δ_k‖ ≤ C, and counts as one; the server's step sees only the mean of R with noise
    N(0, (z C / R)²), so that the prior, whatever the step, hardly tells whether a client's change was Δ_k or 0. The
    server is trusted with single changes. Personal models, logs and metrics are not covered. The noise follows from the
    run's seed and a secret of the server (`FEDPRIOR_DP_SECRET`, which a real federation draws): whoever knows both can
    subtract it.
    """

    inner: AnyMethod
    bound: Annotated[float, Field(gt=0, description="C, the longest change of a client")] = 1.0
    noise: Annotated[float, Field(gt=0, description="z, the noise's deviation in units of C")] = 1.0

    def __post_init__(self) -> None:
        _needs_mean(self.inner, "dp", MEANS)
        if any(isinstance(layer, Screened) for layer in layers(self.inner)):
            name = self.inner.about.name
            raise FedpriorError(
                f"'{name}+dp' is not possible: ε is that of a mean, not of a guard: choose one of the two."
            )
        if find_spec("dp_accounting") is None:
            raise FedpriorError("'+dp' needs an accountant of privacy: install fedprior[privacy].")

    def describe(self, inner: About) -> About:
        """Noise at the server."""
        return inner._replace(name=f"{inner.name}+dp", title=f"{inner.title}+DP")

    @property
    def types(self) -> Types:
        """The inner method's, with a server that draws noise."""
        return (Noisy, *self.inner.types[1:])

    def _plain(self, server: Noisy) -> Any:
        return self.inner.types[0](server.w)

    def init_server(self, key: Key, clients: int = 1) -> Noisy:
        """No noise yet."""
        w = self.inner.init_server(key, clients).w
        if self.task.parameters(w).keys() != w.keys():
            raise FedpriorError("'+dp' needs a network without running statistics: choose one without batch norm.")
        word = key.fold("dp", os.environ.get(SECRET, "")).word
        return Noisy(w, torch.tensor(word >> 1), torch.tensor(0))

    def broadcast(self, server: Noisy, ids: Tensor) -> Any:
        """The inner method's message."""
        return self.inner.broadcast(self._plain(server), ids)

    def local_update(self, client: Any, down: Any, data: ClientData, keys: Keys) -> tuple[Any, Any, Logs]:
        """The inner method's, with a change that is bounded where the data are; every client counts as one."""
        client, up, logs = self.inner.local_update(client, down, data, keys)
        sent, values = up._fields[0], up[0]
        own = changed(values, down.w, bounded(changes(values, down.w), self.bound))
        return client, up._replace(**{sent: own, "n": torch.ones_like(up.n)}), logs

    def aggregate(self, server: Noisy, ups: Any, ids: Tensor) -> Noisy:
        """The inner method's step, of the mean change with noise in place of every client's."""
        sent, values, count = ups._fields[0], ups[0], len(ups.n)
        delta = changes(values, server.w)
        noisy = delta.mean(0) + self.noise * self.bound / count * self._draw(server, values)
        same = changed(values, server.w, noisy.expand_as(delta))
        new = self.inner.aggregate(self._plain(server), ups._replace(**{sent: same, "n": torch.ones_like(ups.n)}), ids)
        return Noisy(new.w, server.seed, server.round + 1)

    def _draw(self, server: Noisy, values: Params) -> Tensor:
        """Standard normal numbers of this round, [D] in the order of `changes`."""
        key, leaves = Key(int(server.seed)).fold("noise", int(server.round)), sorted(values.items())
        return torch.cat(
            [torch.randn(v[0].numel(), generator=key.fold(k).generator(), dtype=torch.float64) for k, v in leaves]
        )

    def personalise(self, client: Any, down: Any, data: ClientData, keys: Keys) -> Any:
        """The inner method's."""
        return self.inner.personalise(client, down, data, keys)

    def converged(self, server: Noisy) -> bool:
        """The inner method's."""
        return self.inner.converged(self._plain(server))

    def explain(self, server: Noisy, personal: Any, names: Names) -> Explanation:
        """The inner method's."""
        return self.inner.explain(self._plain(server), personal, names)

    def shareable(self, server: Noisy) -> Noisy:
        """Without what the noise could be computed from."""
        return server._replace(seed=torch.tensor(0))

    def predict_global(self, server: Noisy, x: Tensor) -> Tensor | None:
        """The inner method's, at the noisy weights."""
        return self.inner.predict_global(self._plain(server), x)


def epsilon(noise: float, rounds: int, delta: float) -> float:
    """ε of so many `rounds` at a given δ, by Rényi accounting.

    `noise` is the deviation of the noise as a multiple of the bound, `delta` is δ. A client is counted in every round:
    where only some take part, the mean is over those that came, and their number is seen, so that chance hides nobody.
    """
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(GaussianDpEvent(noise), rounds)
    return float(accountant.get_epsilon(delta))


def spent(method: Any, rounds: int) -> dict[str, Any] | None:
    """What `rounds` of a private method reveal of a client; None without a promise."""
    for layer in layers(method):
        if isinstance(layer, Private):
            found = {f"{delta:g}": epsilon(layer.noise, rounds, delta) for delta in DELTAS}
            return {"covers": "the shared weights, client by client", "epsilon_at_delta": found}
    return None
