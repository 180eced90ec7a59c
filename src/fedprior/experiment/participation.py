"""Who takes part in a round: which clients report to the server, and which ones train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.errors import FedpriorError
from fedprior.options import STRICT, one_sentence, renamed
from fedprior.rng import Key

ATTEMPTS = 1000


class Drawn(NamedTuple):
    """The clients of one round."""

    trainers: list[int]
    reporters: list[int]


@renamed(least="min_reporters")
@one_sentence("participation")
@dataclass(frozen=True, config=STRICT)
class Participation:
    """A rule that draws the reporters of each round. Draws are keyed by client, so the clients' order is irrelevant."""

    rule: Annotated[
        Literal["all", "fraction", "bernoulli"],
        Field(description="everyone; a fixed share; or each client independently with probability `rate`"),
    ] = "all"
    rate: Annotated[float, Field(gt=0, le=1, description="share or probability of reporting")] = 1.0
    min_reporters: Annotated[
        int, Field(ge=1, description="minimum number of reporters; bernoulli redraws until there are that many")
    ] = 1
    last_round_all: Annotated[bool, Field(description="everyone reports in the last round")] = False
    newcomers: Annotated[int, Field(ge=0, description="clients that do not train, and join after the last round")] = 0
    joining: Annotated[Literal["random", "first"], Field(description="which newcomers: drawn, or first by name")] = (
        "random"
    )

    def newcomer_ids(self, root: Key, clients: Sequence[str]) -> list[int]:
        """The clients that do not train, and join after the last round.

        Args:
            root: The key of the run.
            clients: The names of all clients.

        Returns:
            The newcomers' places among `clients`, in ascending order.

        Raises:
            FedpriorError: If nobody would be left to train.
        """
        if self.newcomers >= len(clients):
            raise FedpriorError(
                f"participation.newcomers = {self.newcomers} leaves none of {len(clients)} clients to train: lower it."
            )
        if self.joining == "first":
            return sorted(sorted(range(len(clients)), key=lambda i: clients[i])[: self.newcomers])
        draws = [root.fold("newcomers", name).word for name in clients]
        return sorted(sorted(range(len(clients)), key=lambda i: draws[i])[: self.newcomers])

    def draw(self, root: Key, clients: Sequence[str], number: int, rounds: int, *, everyone_trains: bool) -> Drawn:
        """Who takes part in one round.

        Args:
            root: The key of the run.
            clients: The names of all clients.
            number: The round, from 0.
            rounds: How many rounds the run has.
            everyone_trains: Whether the method trains all clients, also those that do not report.

        Returns:
            The places of the trainers and of the reporters among `clients`.

        Raises:
            FedpriorError: If no draw has enough reporters.
        """
        late = set(self.newcomer_ids(root, clients))
        everyone = [i for i in range(len(clients)) if i not in late]
        if self.rule == "all" or (self.last_round_all and number == rounds - 1):
            reporters = everyone
        else:
            sampled = self._sample(root.fold("participation", number), [clients[i] for i in everyone])
            reporters = [everyone[k] for k in sampled]
        return Drawn(everyone if everyone_trains else reporters, reporters)

    def _sample(self, key: Key, clients: Sequence[str]) -> list[int]:
        least = min(self.min_reporters, len(clients))
        for attempt in range(ATTEMPTS):
            draws = [key.fold("attempt", attempt, name).word / 2**64 for name in clients]
            if self.rule == "fraction":
                count = max(least, round(self.rate * len(clients)))
                return sorted(sorted(range(len(clients)), key=lambda i: draws[i])[:count])
            reporters = [i for i, u in enumerate(draws) if u < self.rate]
            if len(reporters) >= least:
                return reporters
        raise FedpriorError(
            f"no draw with participation.rate = {self.rate} has {least} of {len(clients)} clients: "
            "raise the rate or lower participation.min_reporters."
        )
