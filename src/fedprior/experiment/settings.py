"""Settings of a run that apply to any method and data: rounds, seed, participation, selection, workers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedprior.engine import RunnerFactory
from fedprior.experiment.participation import Participation
from fedprior.options import STRICT

MOST = 10**9
"""Maximum number of rounds."""


def _count(value: Any) -> Any:
    if value != "auto" and (type(value) is not int or not 1 <= value <= 10_000):
        raise ValueError("give a whole number of at least 1, or auto")
    return value


def _participation(value: Any) -> Any:
    return Participation(**value) if isinstance(value, dict) else value


Count = Annotated[int | Literal["auto"], BeforeValidator(_count)]


class Settings(BaseModel):
    """Settings of a run that apply to any method and data."""

    model_config = ConfigDict(**STRICT, frozen=True)

    rounds: Annotated[int, Field(ge=1, le=MOST, description="communication rounds")] = 50
    seed: Annotated[int, Field(ge=0, lt=2**63, description="determines the partition, the weights and every draw")] = 0
    participation: Annotated[
        Participation, BeforeValidator(_participation), Field(description="who reports in each round")
    ] = Participation()
    eval_every: Annotated[int, Field(ge=0, le=MOST, description="rounds between evaluations; 0 means ten per run")] = 0
    select: Annotated[
        Literal["validation", "last"],
        Field(description="the round whose personal models are kept and shown: chosen by validation, or the last"),
    ] = "validation"
    min_answers: Annotated[
        int,
        Field(ge=1, description="minimum number of usable uplinks in a round; with fewer, the prior stays as it is"),
    ] = 1
    checkpoint_every: Annotated[
        int, Field(ge=0, le=MOST, description="rounds between checkpoints; 0 means ten per run")
    ] = 0
    precision: Annotated[
        Literal["float32", "float64", "bfloat16"],
        Field(description="of weights and inputs; bfloat16: float32, with training passes computed in bfloat16"),
    ] = "float32"
    workers: Annotated[Count, Field(description="worker processes; results do not depend on it")] = "auto"
    chunk: Annotated[Count, Field(description="clients per stack")] = "auto"
    engine: Annotated[Literal["local", "ray"], Field(description="where the stacks of clients run")] = "local"
    ray_address: Annotated[
        str | None, Field(description="the cluster to join; default: RAY_ADDRESS, or this machine")
    ] = None

    @property
    def dtype(self) -> torch.dtype:
        """The precision as a torch type."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def mixed(self) -> bool:
        """Whether training passes compute in bfloat16."""
        return self.precision == "bfloat16"

    def runner(self) -> RunnerFactory | None:
        """The runner, if it is not this machine's processes."""
        if self.engine == "local":
            return None
        from fedprior.engine.cluster import ray_cluster

        return ray_cluster(self.ray_address)

    def every(self, given: int) -> int:
        """A period in rounds."""
        return given or max(1, self.rounds // 10)
