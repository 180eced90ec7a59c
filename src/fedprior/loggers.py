"""Runs in TensorBoard and MLflow: pass one of these as `observers` to `fedprior.run` or `fedprior.compare`.

    with loggers.TensorBoard("runs/board") as board:
        fedprior.compare([FedMAP()], federation, observers=board)

Each method has a run of its own with the mean training logs, the bytes sent and the validation metrics of every round.
Test metrics are left out: they are for the end, and a curve of them invites choosing by it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from fedprior.errors import FedpriorError, cut
from fedprior.names import file_name


class Logger(ABC):
    """Gives every run an observer that passes numbers on. A context manager: what it opened is closed at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __call__(self, name: str, rounds: int) -> Any:
        """The observer of one run."""
        sink = self.begin(name, rounds)

        def observe(event: dict[str, Any]) -> None:
            for key, value in scalars(event):
                self.write(sink, key, value, int(event["round"]))

        return observe

    @abstractmethod
    def begin(self, name: str, rounds: int) -> Any:
        """Open the run `name`, which has so many `rounds`; returns what `write` takes as `sink`."""

    @abstractmethod
    def write(self, sink: Any, key: str, value: float, number: int) -> None:
        """One `value` of round `number` under the name `key`, to what `begin` opened (`sink`)."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""


def scalars(event: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of an event by name, without those that are not finite."""
    found: dict[str, Any] = {}
    if event["kind"] == "round":
        found |= {f"train/{key}": value for key, value in event["logs"].items()}
        found |= {f"bytes/{way}": event[f"bytes_{way}"] for way in ("up", "down")}
    elif event["kind"] == "evaluation":
        for kind in ("personal", "global"):
            metrics = event.get(kind, {}).get("validation", {})
            found |= {f"validation/{kind}/{k}": v["mean"] for k, v in metrics.items() if isinstance(v, dict)}
    yield from ((k, float(v)) for k, v in found.items() if v is not None and math.isfinite(v))


class TensorBoard(Logger):
    """Event files in a folder, one sub-folder per method: `tensorboard --logdir FOLDER`. Extra `tensorboard`."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise FedpriorError("TensorBoard is not installed: `pip install 'fedprior[tensorboard]'`.") from None
        self.folder, self.make, self.writers = Path(folder), SummaryWriter, list[Any]()

    def begin(self, name: str, rounds: int) -> Any:
        """A writer."""
        self.writers.append(self.make(str(self.folder / file_name(name))))
        return self.writers[-1]

    def write(self, sink: Any, key: str, value: float, number: int) -> None:
        """A scalar."""
        sink.add_scalar(key, value, number)

    def close(self) -> None:
        """Write down what is left."""
        for writer in self.writers:
            writer.close()


class MLflow(Logger):
    """One MLflow run per method, in an experiment of the server at `uri` (by default MLflow's own). Extra `mlflow`."""

    def __init__(self, experiment: str = "fedprior", uri: str | None = None) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise FedpriorError("MLflow is not installed: `pip install 'fedprior[mlflow]'`.") from None
        try:
            self.client = MlflowClient(tracking_uri=uri)
            found = self.client.get_experiment_by_name(experiment)
            self.experiment = found.experiment_id if found is not None else self.client.create_experiment(experiment)
        except MlflowException as error:
            where = "its default store" if uri is None else f"'{uri}'"
            raise FedpriorError(f"MLflow cannot use {where} ({cut(str(error).splitlines()[0], 200)}).") from None
        self.runs = list[str]()

    def begin(self, name: str, rounds: int) -> str:
        """A run."""
        run: str = self.client.create_run(self.experiment, run_name=name).info.run_id
        self.runs.append(run)
        self.client.log_param(run, "method", name)
        self.client.log_param(run, "rounds", rounds)
        return run

    def write(self, sink: Any, key: str, value: float, number: int) -> None:
        """A metric."""
        self.client.log_metric(sink, key, value, step=number)

    def close(self) -> None:
        """The runs have ended."""
        for run in self.runs:
            self.client.set_terminated(run)
