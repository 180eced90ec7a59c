"""What the server asks of a site and what comes back, whatever carries it: a document and named arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedprior.errors import FedpriorError
from fedprior.flower.codec import RejectedError
from fedprior.methods import METHODS

LARGEST = 1 << 22
"""Bytes of a reply's document."""
LOGS = frozenset(
    {
        "alpha",
        "beta",
        "beta_covariance",
        "centre_shift",
        "cluster",
        "deviation",
        "gap",
        "kl",
        "largest_weight",
        "log_omega",
        "loss",
        "mask_share",
        "personal_loss",
        "rho",
        "self_weight",
        "tau",
        "uncertainty",
        "variance",
        "within",
    }
)
"""What methods log of a local update and a site may tell; anything else that a method logs stays at the site."""


def may_tell(log: str) -> bool:
    """Whether a log may leave a site; a mixture of methods puts a method's name before it."""
    method, dot, name = log.rpartition(".")
    return name in LOGS and (not dot or method.split("+")[0] in METHODS)


class Order(NamedTuple):
    """To one site."""

    site: str
    document: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]] = MappingProxyType({})


class Reply(NamedTuple):
    """From one site."""

    document: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]] = MappingProxyType({})


class Link(Protocol):
    """Whatever carries orders to sites."""

    def exchange(self, orders: Sequence[Order]) -> Mapping[str, Reply | str]:
        """Every site's reply, or why there is none; sites that are not in it did not answer in time."""


STRICT = ConfigDict(extra="forbid", frozen=True)


class RoundOrder(BaseModel):
    """Evaluate after `round` rounds and train in the next, or one of both, from the state after `counted` rounds."""

    model_config = STRICT

    kind: Literal["round"] = "round"
    site: str = ""
    round: Annotated[int, Field(ge=0)]
    counted: Annotated[int, Field(ge=0)]
    splits: tuple[Literal["train", "validation", "test"], ...] | None = None
    train: bool = False
    report: bool = False


class RoundReply(BaseModel):
    """What a site tells beside its uplink: logs of the update, and metrics of its personal model by split."""

    model_config = STRICT

    round: int
    refused: str | None = None
    logs: dict[str, float] = {}
    scores: dict[str, dict[str, float | None]] = {}


def parsed(model: type[Any], document: Mapping[str, Any]) -> Any:
    """A document as what it must be; otherwise it is rejected, without a word of what is in it."""
    try:
        return model(**document)
    except ValidationError as error:
        known = sorted({str(part["loc"][0]) for part in error.errors() if part["loc"]} & set(model.model_fields))
        raise RejectedError(f"its '{known[0]}' is not valid" if known else "it is not such a document") from None


def check_answers(replies: Mapping[str, Reply | str], sites: Sequence[str], what: str) -> dict[str, Reply]:
    """Everyone's reply, where the work cannot go on without all of them."""
    silent = {site: replies.get(site, "no answer") for site in sites if not isinstance(replies.get(site), Reply)}
    if silent:
        told = "; ".join(f"'{site}': {why}" for site, why in silent.items())
        raise FedpriorError(f"{what} needs an answer from every site, and {len(silent)} did not give one ({told}).")
    return {site: reply for site, reply in replies.items() if isinstance(reply, Reply)}
