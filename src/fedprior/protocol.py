"""The contract: a method is a frozen dataclass of hyperparameters, and its functions are pure.

The server's state is the prior, a client's state its posterior. Every tensor of a client carries the client axis
first, so a method is written once, for a stack of C clients: 40 small models in simulation, one at a hospital's node.

    down   = broadcast(server, ids)                              server -> clients
    client = init_client(down, data, keys)                       when a client joins
    client, up, logs = local_update(client, down, data, keys)    clients -> server
    server = aggregate(server, ups, ids)
    model  = personalise(client, down, data, keys)               what a client predicts with
    log_p  = predict(model, x, keys)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.errors import FedpriorError
from fedprior.local import AUTO, Train
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.tree import Params

S = TypeVar("S")  # server state
C = TypeVar("C")  # client state, [C, ...]
D = TypeVar("D")  # downlink: one for all, or [C, ...]
U = TypeVar("U")  # uplink, [C, ...]
P = TypeVar("P")  # personal model, [C, ...]

Logs = dict[str, Tensor]
"""What a method tells about a local update: name -> [C]."""

Group = Literal["baseline", "Bayesian prior", "regularised", "split", "meta", "clustered", "mixture"]


class Empty(NamedTuple):
    """No state, or nothing to send. A type of its own, because `None` is not a tree."""


class Weights(NamedTuple):
    """A whole network: the server state, message or personal model of many methods."""

    w: Params


Moment = Literal["after local training", "after aggregation"]


class About(NamedTuple):
    """What a method says of itself."""

    name: str
    title: str
    paper: str
    year: int
    group: Group
    personal: str  # what each client keeps for itself
    moment: Moment  # when the personal model is taken
    private: tuple[str, ...] = ()  # fields of the client state that no uplink may carry
    everyone_trains: bool = False  # every client trains every round, and a sample reports
    personal_downlink: bool = False  # `broadcast` makes one message per client
    fixed_state: bool = False  # what a client keeps stays as it was when it joined
    head_phase: bool = False  # there are phases in which only heads train, on features that are computed once
    plain_sgd: bool = False  # the method's identities need plain SGD: momentum, Adam and clipping are not used


class _Unbound(Task):
    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise FedpriorError("this method has no task yet: call method.bind(task), or hand it to fedprior.run.")


UNBOUND = _Unbound()


@dataclass(frozen=True, kw_only=True, config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
class Method(ABC, Generic[S, C, D, U, P]):
    """One way to learn a prior and the posteriors under it. Leaves are final: nothing concrete is overridden."""

    about: ClassVar[About]
    types: ClassVar[tuple[Any, Any, Any, Any, Any]]  # (S, C, D, U, P), for decoding files and messages

    task: Task = UNBOUND
    train: Train = AUTO

    @property
    def moment(self) -> Moment:
        """When the personal model is taken; an option may move it."""
        return self.about.moment

    @property
    def memoryless(self) -> bool:
        """Whether `local_update` ignores the client's state: who does not report then trains for an evaluation only."""
        return False

    def bind(self, task: Task, train: Train) -> Self:
        """The method for a task; `train` is used where the method was given none. A wrapped method is bound along."""
        chosen = train if self.train is AUTO else self.train
        inner = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Method)}
        return replace(self, task=task, train=chosen, **{k: m.using(task, chosen) for k, m in inner.items()})

    def using(self, task: Task, train: Train) -> Self:
        """The method with this task and this training, whatever it was given before."""
        return replace(self, train=AUTO).bind(task, train)

    def hyperparameters(self) -> dict[str, Any]:
        """The method's own options; not the task, nor the local training all methods share.

        A wrapper's stand under its name beside those of the method inside: `build` takes them back.
        """
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("task", "train", "inner")}
        inner = getattr(self, "inner", None)
        if not isinstance(inner, Method):
            return own
        return {**inner.hyperparameters(), self.about.name.rpartition("+")[2]: own}

    @abstractmethod
    def init_server(self, key: Key, clients: int = 1) -> S:
        """The prior before the first round, in a federation of so many clients.

        `key` is the run's root, so all methods start from the same weights.
        """

    @abstractmethod
    def broadcast(self, server: S, ids: Tensor) -> D:
        """What the clients `ids` receive: one message for all, or a stack if `about.personal_downlink`."""

    @abstractmethod
    def init_client(self, down: D, data: ClientData, keys: Keys) -> C:
        """The state of clients that join now: at their first round, or after training has ended."""

    @abstractmethod
    def local_update(self, client: C, down: D, data: ClientData, keys: Keys) -> tuple[C, U, Logs]:
        """One round at the clients. Personal state is never in the uplink."""

    @abstractmethod
    def aggregate(self, server: S, ups: U, ids: Tensor) -> S:
        """The new prior from the uplinks of the clients that report."""

    @abstractmethod
    def personalise(self, client: C, down: D, data: ClientData, keys: Keys) -> P:
        """The model each client predicts with, given its state and the newest message. Leaves no trace."""

    @abstractmethod
    def predict(self, personal: P, x: Tensor, keys: Keys) -> Tensor:
        """log p(y | x), Monte-Carlo draws already averaged: x [C, N, ...] -> [C, N, K]."""

    @abstractmethod
    def predict_global(self, server: S, x: Tensor) -> Tensor | None:
        """log p(y | x) under the prior alone, x [N, ...] -> [N, K]; None where there is no global model."""


T = TypeVar("T")

METHODS: dict[str, type[Method[Any, Any, Any, Any, Any]]] = {}
"""Every method by name. `fedprior.methods` fills it by importing each of its files."""


def register(cls: type[T]) -> type[T]:
    """Make a method known by `cls.about.name`."""
    assert issubclass(cls, Method)
    METHODS[cls.about.name] = cls
    return cls
