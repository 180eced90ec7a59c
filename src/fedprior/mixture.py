"""Methods made of several methods, whose predictive distributions are mixed per site. Formulas: `bayes/mixing.py`.

Experts train side by side, each as it would alone, bit for bit: with the same keys, and from its own messages only.
Their states and messages lie beside each other under their names. Experts on one trajectory train once. Every
`score_every` rounds a site scores the family with the models it would predict with, and sends ℓ and ρ.

What the scores are computed on, no scoring model has seen: the site's validation rows, which no expert is shown; or
(`holdout`) a third of its training rows, with a twin of every expert that is trained on the others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedprior import tree
from fedprior.bayes import mixing
from fedprior.bayes.mixing import Family, Pool
from fedprior.data.client import ClientData, every_third
from fedprior.data.naming import Names
from fedprior.errors import FedpriorError
from fedprior.explanation import Explanation, of_mixture
from fedprior.models.task import EVALUATION_BATCH
from fedprior.protocol import AnyMethod, Empty, Hints, Logs, Method, Moment
from fedprior.rng import Key, Keys
from fedprior.tree import Params

SERVER, CLIENT, DOWN, UP, PERSONAL = range(5)
BLIND = "blind/"
"""Before the name of a twin that does not see the rows that are scored."""


class Server(NamedTuple):
    """The experts' servers by name, the prior over the family, the rounds so far and the number of clients."""

    experts: Params
    pool: Pool
    round: Tensor  # [] int64
    clients: Tensor  # [] int64


class Client(NamedTuple):
    """The experts' states by name."""

    experts: Params


class Down(NamedTuple):
    """The experts' messages, the prior over the family and the round."""

    experts: Params
    pi: Tensor  # [G] float64
    round: Tensor  # [] int64


class Up(NamedTuple):
    """The experts' messages, the scores and the posterior of the family, and whether there were rows to score."""

    experts: Params
    score: Tensor  # [C, G] float64
    rho: Tensor  # [C, G] float64
    scored: Tensor  # [C] float64


class Personal(NamedTuple):
    """The experts' personal models, and the share of each expert at each temperature."""

    experts: Params
    shares: Tensor  # [C, E, T] float64


class Mixture(Method[Server, Client, Down, Up, Personal]):
    """Several methods, mixed; a subclass says which."""

    scores: Literal["validation", "holdout"]
    score_every: int

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, AnyMethod]:
        """The experts by name, bound as this method is."""

    @property
    @abstractmethod
    def family(self) -> Family:
        """The members that are scored, for as many experts."""

    def check_scores(self, refused: str, instead: str) -> None:
        """Refuse experts that have seen the rows that would be scored."""
        for name, method in self.parts.items():
            if method.uses_validation and self.scores == "validation":
                raise FedpriorError(
                    f"{refused}: '{name}' uses the validation rows, on which it would be scored: {instead}."
                )

    @cached_property
    def leaders(self) -> dict[str, str]:
        """Expert -> the first one on its trajectory, which trains for both."""
        first: dict[str, str] = {}
        return {name: first.setdefault(method.trajectory, name) for name, method in self.parts.items()}

    @cached_property
    def learners(self) -> dict[str, AnyMethod]:
        """What trains: one expert per trajectory, and the twins of each with `holdout`."""
        own = {name: self.parts[name] for name in self.leaders.values()}
        return own | ({f"{BLIND}{name}": method for name, method in own.items()} if self.scores == "holdout" else {})

    @property
    def uses_validation(self) -> bool:
        """To score, or because an expert does."""
        return self.scores == "validation" or any(method.uses_validation for method in self.parts.values())

    @property
    def class_means(self) -> bool:
        """Because an expert sends them."""
        return any(method.class_means for method in self.parts.values())

    @property
    def moment(self) -> Moment:
        """After aggregation, if one expert needs it."""
        late = any(method.moment == "after aggregation" for method in self.parts.values())
        return "after aggregation" if late else "after local training"

    @property
    def hints(self) -> Hints:  # type: ignore[override]
        """If every client trains for one expert, it does for all; a message to each client holds all messages."""
        each = [method.hints for method in self.learners.values()]
        stateful = [method.hints.fixed_state for method in self.learners.values() if method.types[CLIENT] is not Empty]
        return Hints(
            everyone_trains=any(hints.everyone_trains for hints in each),
            personal_downlink=any(hints.personal_downlink for hints in each),
            fixed_state=bool(stateful) and all(stateful),
            head_phase=any(hints.head_phase for hints in each),
            plain_sgd=all(hints.plain_sgd for hints in each),
            own_training=all(hints.own_training for hints in each),
        )

    # The experts' trees

    def _of(self, name: str, which: int, packed: Params) -> Any:
        """One expert's tree; a follower has its leader's states and messages, and a personal model of its own."""
        own = name if which == PERSONAL else self.leader(name)
        return tree.unflatten(self.method(name).types[which], packed, own)

    def leader(self, name: str) -> str:
        """Under whose name an expert's or a twin's states lie."""
        blind = BLIND if name.startswith(BLIND) else ""
        return blind + self.leaders[name.removeprefix(BLIND)]

    def method(self, name: str) -> AnyMethod:
        """An expert, or that which a twin is one of."""
        return self.parts[name.removeprefix(BLIND)]

    def _rows(self, name: str, data: ClientData, keys: Keys) -> ClientData:
        """What an expert is shown: validation rows only if it declares that; a twin, not what it is scored on."""
        shown = data if self.method(name).uses_validation else replace(data, validation=None)
        return every_third(shown, keys)[0] if name.startswith(BLIND) else shown

    # Scores

    def _models(self, blind: str, client: Client, down: Down, data: ClientData, keys: Keys) -> dict[str, Any]:
        """The personal model of every expert, or of every twin, by the expert's name."""
        return {
            name: method.personalise(
                self._of(blind + name, CLIENT, client.experts),
                self._of(blind + name, DOWN, down.experts),
                self._rows(blind + name, data, keys),
                keys,
            )
            for name, method in self.parts.items()
        }

    def _predict(self, models: Mapping[str, Any], x: Tensor, keys: Keys) -> Tensor:
        """The predictive distributions of all experts, [E, C, N, P]."""
        return torch.stack([method.predict(models[name], x, keys) for name, method in self.parts.items()])

    @torch.no_grad()
    def _score(self, models: Mapping[str, Any], rows: ClientData, keys: Keys) -> Tensor:
        """ℓ [C, G]."""
        total = torch.zeros(len(rows), self.family.size, dtype=torch.float64)
        for batch in rows.batches(EVALUATION_BATCH):
            each = self._predict(models, batch.x, keys)
            total += self.family.score(self.task.likelihood, each, batch.y, batch.weight > 0)
        return total

    def _judged(
        self, client: Client, down: Down, data: ClientData, keys: Keys, models: Mapping[str, Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """ℓ [C, G] and whether there were rows, [C]; with `models`, the experts' personal models as made already."""
        blind = self.scores == "holdout"
        rows = every_third(data, keys)[1] if blind else data.validation
        if rows is None:
            return torch.zeros(len(data), self.family.size, dtype=torch.float64), torch.zeros(len(data)).double()
        if models is None or blind:
            models = self._models(BLIND if blind else "", client, down, data, keys)
        return self._score(models, rows, keys.fold("score")), (rows.n > 0).double()

    def _weights(self, rho: Tensor) -> Logs:
        """What is logged of a posterior: the weight of each expert, and the temperature."""
        weights, temperature = self.family.summary(self.family.shares(rho))
        return {f"{name}.weight": weights[:, e] for e, name in enumerate(self.parts)} | {"temperature": temperature}

    # The protocol

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """Every expert's start, and a flat prior over the family."""
        experts = {name: method.init_server(key, clients) for name, method in self.learners.items()}
        return Server(_packed(experts), mixing.start(self.family.size), torch.tensor(0), torch.tensor(clients))

    def broadcast(self, server: Server, ids: Tensor) -> Down:
        """Every expert's message; where one is for each client alone, so are all."""
        personal, found = self.hints.personal_downlink, {}
        for name, method in self.learners.items():
            down = method.broadcast(self._of(name, SERVER, server.experts), ids)
            found[name] = tree.expand(down, len(ids)) if personal and not method.hints.personal_downlink else down
        own = (server.pool.pi, server.round)
        return Down(_packed(found), *(leaf.expand(len(ids), *leaf.shape) if personal else leaf for leaf in own))

    def init_client(self, down: Down, data: ClientData, keys: Keys) -> Client:
        """Every expert's."""
        joined = {
            name: method.init_client(self._of(name, DOWN, down.experts), self._rows(name, data, keys), keys)
            for name, method in self.learners.items()
        }
        return Client(_packed(joined))

    def due(self, round: int) -> bool:
        """Whether the family is scored in a round, counted from 0: before the first there is nothing to score."""
        return round > 0 and round % self.score_every == 0

    def local_update(self, client: Client, down: Down, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Score what the client would predict with now, if it is time; then every expert's update."""
        score, scored = torch.zeros_like(down.pi), torch.zeros(len(data), dtype=torch.float64)
        due = self.due(int(down.round[0]))
        if due:
            score, scored = self._judged(client, down, data, keys.fold("score"))
        rho = mixing.posterior(score, down.pi)
        logs: Logs = self._weights(rho) if due else {}
        states, ups = {}, {}
        for name, method in self.learners.items():
            state, message = (self._of(name, which, own.experts) for which, own in ((CLIENT, client), (DOWN, down)))
            states[name], ups[name], found = method.local_update(state, message, self._rows(name, data, keys), keys)
            logs |= {f"{name}.{key}": value for key, value in found.items()}
        losses = [value for key, value in logs.items() if key.endswith(".loss")]
        told = {"loss": torch.stack(losses).mean(0)} if losses else {}
        up = Up(_packed(ups), score, rho, scored)
        return Client(_packed(states)), up, told | logs

    def aggregate(self, server: Server, ups: Up, ids: Tensor) -> Server:
        """Every expert's step, and the prior from the sums of ℓ and ρ."""
        experts = {
            name: method.aggregate(self._of(name, SERVER, server.experts), self._of(name, UP, ups.experts), ids)
            for name, method in self.learners.items()
        }
        pool = server.pool
        if self.due(int(server.round)):
            pool = mixing.heard(pool, ups.score, ups.rho, ups.scored, int(server.clients))
        return Server(_packed(experts), pool, server.round + 1, server.clients)

    def shareable(self, server: Server) -> Server:
        """Every expert's."""
        own = {name: m.shareable(self._of(name, SERVER, server.experts)) for name, m in self.learners.items()}
        return server._replace(experts=_packed(own))

    def personalise(self, client: Client, down: Down, data: ClientData, keys: Keys) -> Personal:
        """Every expert's model, and the weights by the site's own scores under the prior."""
        models = self._models("", client, down, data, keys)
        score, _ = self._judged(client, down, data, keys, models)
        return Personal(_packed(models), self.family.shares(mixing.posterior(score, down.pi)))

    def explain(self, server: Server, personal: Personal, names: Names) -> Explanation:
        """The weights of the experts and the temperature, of all sites together and of each."""
        shares = torch.cat([self.family.shares(server.pool.pi.unsqueeze(0)), personal.shares])
        titles = [method.about.title for method in self.parts.values()]
        return of_mixture(titles, names.clients, *(part.numpy() for part in self.family.summary(shares)))

    @torch.no_grad()
    def predict(self, personal: Personal, x: Tensor, keys: Keys) -> Tensor:
        """Σ A[e, T] p_e^{1/T} / Z_e."""
        models = {name: self._of(name, PERSONAL, personal.experts) for name in self.parts}
        return self.family.predictive(self.task.likelihood, self._predict(models, x, keys), personal.shares)

    @torch.no_grad()
    def predict_global(self, server: Server, x: Tensor) -> Tensor | None:
        """The experts' global models under the prior; None if one of them has none."""
        found = []
        for name, method in self.parts.items():
            each = method.predict_global(self._of(name, SERVER, server.experts), x)
            if each is None:
                return None
            found.append(each.unsqueeze(0))
        shares = self.family.shares(server.pool.pi.unsqueeze(0))
        return self.family.predictive(self.task.likelihood, torch.stack(found), shares).squeeze(0)


def _packed(trees: Mapping[str, Any]) -> Params:
    """Trees side by side as one flat dict: path -> tensor."""
    flat = tree.flatten(dict(trees))
    return {path: flat[path] for path in sorted(flat)}
