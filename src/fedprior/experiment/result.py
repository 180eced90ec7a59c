"""What a run gives back: each client's metrics and personal model, and the summary of them all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.data.scaling import Scaler
from fedprior.engine import AnyMethod, Predictions
from fedprior.engine.memory import single_thread
from fedprior.errors import FedpriorError, unknown
from fedprior.experiment.journal import Journal, jsonable
from fedprior.files import file_name, pack, read_tensors, write_bytes, write_text
from fedprior.metrics import METRICS, Gain, cohort_metrics, correct, gain
from fedprior.rng import Key, Keys


@dataclass(frozen=True)
class PersonalModel:
    """One client's model, able to predict by itself."""

    client: str
    method: AnyMethod
    arrays: Mapping[str, NDArray[Any]]
    seed: int = 0
    scaler: Scaler | None = None

    def predict(self, x: ArrayLike, *, raw: bool = False) -> NDArray[np.float32]:
        """Class probabilities [n, K] for inputs [n, ...], scaled as in the federation or `raw` as a site has them."""
        scaled = self.scaler(x) if raw and self.scaler is not None else np.asarray(x)
        inputs = torch.as_tensor(scaled, dtype=self.method.task.dtype)
        flat = {k: torch.as_tensor(v).unsqueeze(0) for k, v in self.arrays.items()}
        personal = tree.unflatten(self.method.types[-1], flat)
        keys = Keys.of(Key.from_seed(self.seed), [self.client]).fold("predict")
        with single_thread():
            log_p = self.method.predict(personal, inputs.unsqueeze(0), keys).squeeze(0)
        return log_p.exp().float().numpy()

    def save(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write it as safetensors; `about` says how to build the method again."""
        scaler = None if self.scaler is None else self.scaler.document()
        told = {**about, "client": self.client, "scaler": scaler}
        write_bytes(path, pack(self.arrays, {"fedprior": json.dumps(told)}))


@dataclass(frozen=True)
class Result:
    """A finished run."""

    method: AnyMethod
    federation: Federation
    seed: int
    journal: Journal
    predictions: Predictions  # of the personal models after the last round
    models: list[dict[str, NDArray[Any]]]
    summary: dict[str, Any]
    reference: Result | None = field(default=None)

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.about.name

    @property
    def clients(self) -> pd.DataFrame:
        """One row a client: its examples, the metrics of its personal model on its test split after the last round."""
        data, names = self.federation, self.federation.clients
        frame = pd.DataFrame({"client": names, "train": data.train.size, "test": data.test.size}).set_index("client")
        cohort = cohort_metrics(labelled(self.predictions["test"], data, "test"))
        for metric in METRICS:
            frame[metric] = cohort.clients[metric]
        if self.reference is not None:
            found = self.gain()
            other = cohort_metrics(labelled(self.reference.predictions["test"], data, "test"))
            frame["local_accuracy"] = other.clients["accuracy"]
            frame["gain"], frame["gain_low"], frame["gain_high"] = found.clients, found.low, found.high
        return frame

    def gain(self) -> Gain:
        """The gain in test accuracy over the reference, with a paired bootstrap over test examples."""
        if self.reference is None:
            raise FedpriorError("this run has no reference to compare with: pass reference=… or use fedprior.compare.")
        ours = [correct(*pair) for pair in labelled(self.predictions["test"], self.federation, "test")]
        theirs = [correct(*pair) for pair in labelled(self.reference.predictions["test"], self.federation, "test")]
        return gain(ours, theirs, names=self.federation.clients, seed=self.seed)

    def model(self, client: str) -> PersonalModel:
        """One client's personal model."""
        if client not in self.federation.clients:
            raise unknown("client", client, self.federation.clients)
        arrays = self.models[self.federation.clients.index(client)]
        return PersonalModel(client, self.method, arrays, self.seed, self.federation.scaler(client))

    def predict(self, client: str, x: ArrayLike, *, raw: bool = False) -> NDArray[np.float32]:
        """A client's class probabilities [n, K] for inputs [n, ...], scaled as in the federation or `raw`."""
        return self.model(client).predict(x, raw=raw)

    def save(self, folder: Path) -> None:
        """Write the models, the test predictions and, last, the summary: a folder with a summary is complete."""
        about = {k: self.summary[k] for k in ("version", "method", "model", "classes", "shape", "precision", "seed")}
        for client in self.federation.clients:
            self.model(client).save(folder / "models" / f"{file_name(client)}.safetensors", about)
        test = dict(zip(self.federation.clients, self.predictions["test"], strict=True))
        write_bytes(folder / "predictions.safetensors", pack(test))
        write_text(folder / "summary.json", json.dumps(jsonable(self.summary), indent=2) + "\n")


def load_result(folder: Path, method: AnyMethod, federation: Federation, reference: Result | None = None) -> Result:
    """A finished run from its folder, given the bound method and the federation that its config builds."""
    journal = Journal(folder)
    journal.load()
    try:
        summary = json.loads((folder / "summary.json").read_text())
        seed = summary["seed"]
    except (ValueError, KeyError, TypeError) as error:
        raise FedpriorError(f"'{folder / 'summary.json'}' is damaged and cannot be read: {error}.") from None
    test, _ = read_tensors(folder / "predictions.safetensors")
    models = [read_tensors(folder / "models" / f"{file_name(c)}.safetensors")[0] for c in federation.clients]
    return Result(
        method,
        federation,
        seed,
        journal,
        {"test": [test[c].numpy() for c in federation.clients]},
        [{k: v.numpy() for k, v in model.items()} for model in models],
        summary,
        reference,
    )


def labelled(
    predictions: list[NDArray[np.float32]], federation: Federation, split: str
) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Each client's predictions beside its labels."""
    data = federation.split(split)
    return [(log_p, data.client(c)[1].numpy()) for c, log_p in enumerate(predictions)]


def load_model(path: str | Path, module: nn.Module | None = None) -> PersonalModel:
    """A personal model from its file; `module` is needed where the network was not one of ours."""
    from fedprior import methods, models
    from fedprior.models.task import Task

    arrays, metadata = read_tensors(Path(path))
    if "fedprior" not in metadata:
        raise FedpriorError(f"'{path}' holds no fedprior model: it lacks the description that ours carry.")
    about = json.loads(metadata["fedprior"])
    if module is None:
        spec = dict(about["model"])
        if spec.get("name") == "custom":
            raise FedpriorError(f"'{path}' was made with a network of your own: pass it as load_model(path, module).")
        module = models.build(spec.pop("name"), spec, tuple(about["shape"]), about["classes"])
    options = dict(about["method"])
    method = methods.build(options.pop("name"), options)
    task = Task(module, about["classes"], dtype=torch.float64 if about["precision"] == "float64" else torch.float32)
    scaler = Scaler.from_document(about["scaler"]) if about.get("scaler") else None
    numbers = {k: v.numpy() for k, v in arrays.items()}
    return PersonalModel(about["client"], method.bind(task, method.train), numbers, about["seed"], scaler)
