"""The contract: a method is a frozen dataclass of hyperparameters, and its functions are pure.

The server's state is the prior, a client's state its posterior. Every tensor of a client carries the client axis
first, so a method is written once, for a stack of C clients: 40 small models in simulation, a single one at a hospital.

    down   = broadcast(server, ids)                              server -> clients
    client = init_client(down, data, keys)                       when a client joins
    client, up, logs = local_update(client, down, data, keys)    clients -> server
    server = aggregate(server, ups, ids)
    model  = personalise(client, down, data, keys)               what a client predicts with
    p      = predict(model, x, keys)                             its predictive distribution
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.data.naming import Names
from fedprior.declaration import About as About  # noqa: PLC0414 - part of the contract
from fedprior.declaration import Hints as Hints  # noqa: PLC0414 - part of the contract
from fedprior.declaration import Moment as Moment  # noqa: PLC0414 - part of the contract
from fedprior.declaration import Space as Space  # noqa: PLC0414 - part of the contract
from fedprior.errors import FedpriorError
from fedprior.explanation import Explanation
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.options import STRICT, one_sentence
from fedprior.rng import Key, Keys
from fedprior.training import AUTO, Train
from fedprior.tree import Params

S = TypeVar("S")  # server state
C = TypeVar("C")  # client state, [C, ...]
D = TypeVar("D")  # downlink: one for all, or [C, ...]
U = TypeVar("U")  # uplink, [C, ...]
P = TypeVar("P")  # personal model, [C, ...]

Logs = dict[str, Tensor]
"""Values that a method logs in a local update: name -> [C]."""


class Empty(NamedTuple):
    """No state, or nothing to send. A type of its own, because `None` is not a tree."""


class Weights(NamedTuple):
    """A whole network: the server state, message or personal model of many methods."""

    w: Params


class _Unbound(Task):
    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise FedpriorError("this method has no task yet: call method.bind(task), or pass it to fedprior.run.")


UNBOUND = _Unbound()


@dataclass(frozen=True, kw_only=True, config=ConfigDict(**STRICT, arbitrary_types_allowed=True))
class Method(ABC, Generic[S, C, D, U, P]):
    """One way to learn a prior and the posteriors under it: options as fields, and pure functions of explicit state.

    `Method[S, C, D, U, P]` names the types of the server's state, a client's state, the message down, the message up
    and the personal model. Every tensor of a client has the client axis first, [C, ...].
    """

    about: ClassVar[About]
    hints: ClassVar[Hints] = Hints()
    renamed: ClassVar[Mapping[str, str]] = {}  # former names of options: old -> new
    space: ClassVar[Mapping[str, Space]] = {}  # the options that `fedprior tune` searches

    task: Task = UNBOUND
    train: Train = AUTO

    @property
    def types(self) -> Types:
        """(S, C, D, U, P), for decoding files and messages."""
        return types_of(type(self))

    @property
    def moment(self) -> Moment:
        """When the personal model is taken; an option may change it."""
        return self.about.moment

    @property
    def uses_validation(self) -> bool:
        """Whether the client's validation examples are in `data.validation`; an option may change it."""
        return self.about.uses_validation

    @property
    def class_means(self) -> bool:
        """Whether the uplink has means over the rows of each class; a mixture's has those of its experts."""
        return self.about.class_means

    @property
    def trajectory(self) -> str:
        """Two methods with one task, one training and equal trajectories have equal states in every round.

        They differ in `personalise` and `predict` alone, so that one training serves both.
        """
        return f"{self.about.name} {self.hyperparameters()}"

    @property
    def memoryless(self) -> bool:
        """Whether `local_update` ignores the client's state: clients that do not report train only for evaluations."""
        return False

    @property
    def pull(self) -> float:
        """λ, where each client's objective has a term λ/2 ‖w - centre‖² and trains by `train`; 0 where it has none."""
        return 0.0

    def _check_pull(self, train: Train) -> None:
        """Refuse a pull that overshoots: a step multiplies the distance to the centre by 1 - lr λ."""
        if train.steepest is not None and self.pull >= train.steepest:
            size, most = train.lr * self.pull, train.lr * train.steepest / self.pull
            raise FedpriorError(
                f"method '{self.about.name}': train.lr · {self.pull:.4g} = {size:.4g} makes the pull to the prior "
                f"overshoot further with every step: lower train.lr below {most:.4g}, weaken the pull, or use "
                "train.optimizer=adam."
            )

    def refusal(self, task: Task) -> str | None:
        """Why the method cannot run on a task, in one sentence; None if it can."""
        if self.about.needs_classes and not isinstance(task.likelihood, Categorical):
            return f"{self.about.title} predicts classes, but the target here is a number: choose another method."
        most = self.about.most_coefficients
        if most is not None and task.coefficients > most:
            return (
                f"{self.about.title} is a linear model of at most {most:,} coefficients, but {task.inputs:,} inputs "
                f"need {task.coefficients:,} here: choose fewer inputs, or another method."
            )
        return None

    def bind(self, task: Task, train: Train) -> Self:
        """The method for a task; `train` is used where the method was given none. A wrapped method is bound too."""
        refusal = self.refusal(task)
        if refusal is not None:
            raise FedpriorError(refusal)
        chosen = train if self.train is AUTO else self.train
        self._check_pull(chosen)
        inner = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Method)}
        return replace(self, task=task, train=chosen, **{k: m.using(task, chosen) for k, m in inner.items()})

    def using(self, task: Task, train: Train) -> Self:
        """The method with this `task` and this `train`, whatever it was given before."""
        return replace(self, train=AUTO).bind(task, train)

    def hyperparameters(self) -> dict[str, Any]:
        """The method's own options; neither the task nor the shared local training.

        A wrapper's options are under its name, beside those of the wrapped method: `build` accepts them.
        """
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("task", "train", "inner")}
        inner = getattr(self, "inner", None)
        if not isinstance(inner, Method):
            return own
        return {**inner.hyperparameters(), self.about.name.rpartition("+")[2]: own}

    @abstractmethod
    def init_server(self, key: Key, clients: int = 1) -> S:
        """The prior before the first round, in a federation with that many clients.

        `key` is the run's root, so all methods start from the same weights.
        """

    @abstractmethod
    def broadcast(self, server: S, ids: Tensor) -> D:
        """What `server` sends to clients `ids` [C]: a message, or a stack [C, ...] (`hints.personal_downlink`)."""

    @abstractmethod
    def init_client(self, down: D, data: ClientData, keys: Keys) -> C:
        """The state [C, ...] of clients that join now: at their first round, or after training has ended.

        `down` is the newest message, `data` are their training examples; `keys`, one per client, are for what is drawn.
        """

    @abstractmethod
    def local_update(self, client: C, down: D, data: ClientData, keys: Keys) -> tuple[C, U, Logs]:
        """One round at the clients: new states [C, ...], uplinks [C, ...], and numbers to log, each [C].

        `data` are the clients' training examples. Personal state is never in the uplink; `client` and `down` are not
        written to; `keys` differ in every round.
        """

    @abstractmethod
    def aggregate(self, server: S, ups: U, ids: Tensor) -> S:
        """The new prior from the old, `server`, and the uplinks `ups` [C, ...] of the clients `ids` [C] that report."""

    @abstractmethod
    def personalise(self, client: C, down: D, data: ClientData, keys: Keys) -> P:
        """The model [C, ...] each client predicts with, given its state and the newest message `down`; a pure function.

        `keys` are for what is drawn. With `uses_validation`, the validation examples are in `data.validation`.
        """

    def converged(self, server: S) -> bool:
        """Whether further rounds would not change `server` by what matters: the run then ends before its last round."""
        return False

    def shareable(self, server: S) -> S:
        """The server's state as it may be given to a new site: without what it remembers of single clients."""
        return server

    def predict(self, personal: P, x: Tensor, keys: Keys) -> Tensor:
        """The predictive distribution, Monte-Carlo draws already averaged: x [C, N, ...] -> [C, N, P].

        `keys` are for what is drawn. By default, a `personal` model that is plain `Weights` predicts with them.
        """
        assert isinstance(personal, Weights), f"{self.about.name} must define predict"
        return self.task.predictive(personal.w, x)

    def explain(self, server: S, personal: P, names: Names) -> Explanation:
        """What was learned, as tables and sentences, from the prior `server` and all clients' `personal` models.

        `names` are those of the clients, inputs and classes. By default there is nothing to say.
        """
        return Explanation()

    def predict_global(self, server: S, x: Tensor) -> Tensor | None:
        """The same under the prior alone, x [N, ...] -> [N, P]; None where there is no global model.

        By default, a server that holds plain `Weights` predicts with them.
        """
        return self.task.predictive_shared(server.w, x) if isinstance(server, Weights) else None


AnyMethod = Method[Any, Any, Any, Any, Any]
Types = tuple[Any, Any, Any, Any, Any]


def types_of(cls: type[Any]) -> Types:
    """The generic arguments of `Method` that a class specifies, through all its bases."""

    def search(kind: Any, known: dict[Any, Any]) -> Types | None:
        origin = get_origin(kind) or kind
        arguments = tuple(known.get(a, a) for a in get_args(kind))
        if origin is Method:
            return arguments if len(arguments) == len(Types.__args__) else None  # type: ignore[attr-defined]
        inner = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
        bases = vars(origin).get("__orig_bases__", origin.__bases__)
        return next((found for base in bases if (found := search(base, inner)) is not None), None)

    found = search(cls, {})
    assert found is not None, f"{cls.__name__} must derive from Method[S, C, D, U, P]"
    return found


T = TypeVar("T")

METHODS: dict[str, type[Method[Any, Any, Any, Any, Any]]] = {}
"""Every method by name. `fedprior.methods` fills it by importing each of its files."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def register(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass of hyperparameters, and register it as `cls.about.name`."""
    assert issubclass(cls, Method)
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    METHODS[cls.about.name] = one_sentence(f"method '{cls.about.name}'")(made)
    return METHODS[cls.about.name]  # type: ignore[return-value]
