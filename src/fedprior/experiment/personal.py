"""A personal model on its own: how it predicts, what its file contains, and how the file is checked.

A file is safetensors with a description of the model and a checksum of both. Its entries must be those of the method,
which a dummy client that trains for zero steps shows. Files of older versions have no checksum.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.client import ClientData
from fedprior.data.encoder import Encoder
from fedprior.data.federation import Federation
from fedprior.data.scaling import Scaler
from fedprior.data.target import Classes, Target, from_document
from fedprior.engine import AnyMethod, personal_model
from fedprior.engine.memory import single_thread
from fedprior.errors import FedpriorError, FedpriorWarning
from fedprior.experiment import signed
from fedprior.files import write_bytes
from fedprior.models.likelihood import likelihood_of
from fedprior.names import on_screen
from fedprior.rng import Key, Keys
from fedprior.training import Train

Arrays = Mapping[str, NDArray[Any]]
Outline = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""The shape and the type of every entry."""


@dataclass(frozen=True)
class PersonalModel:
    """One client's model, able to predict by itself."""

    client: str
    method: AnyMethod
    arrays: Arrays
    seed: int = 0
    encoder: Encoder | None = None
    shape: tuple[int, ...] | None = None  # of one example; None: unknown
    target: Target | None = None

    @property
    def tree(self) -> Any:
        """As a stack of one, P [1, ...]."""
        flat = {k: torch.as_tensor(v).unsqueeze(0) for k, v in self.arrays.items()}
        return tree.unflatten(self.method.types[-1], flat)

    @property
    def keys(self) -> Keys:
        """What a prediction draws by, where it draws."""
        return Keys.of(Key.from_seed(self.seed), [self.client]).fold("predict")

    def predict(self, x: ArrayLike | pd.DataFrame, *, raw: bool = False) -> NDArray[np.float32]:
        """The predictive distribution of every row.

        Args:
            x: A DataFrame, whose columns are found by name, or inputs [n, ...].
            raw: Whether an array holds values as measured, to be scaled as in training; a DataFrame always does.

        Returns:
            Class probabilities [n, classes]; or, for a number, its mean and standard deviation [n, 2].

        Raises:
            FedpriorError: If a column is missing, or a row has a value that is not finite.
        """
        inputs = self._checked(self._inputs(x, raw=raw))
        with single_thread():
            found = self.method.predict(self.tree, inputs.unsqueeze(0), self.keys).squeeze(0)
        return self.method.task.likelihood.readable(found).float().numpy()

    def _inputs(self, x: ArrayLike | pd.DataFrame, *, raw: bool) -> NDArray[Any]:
        if not isinstance(x, pd.DataFrame):
            return np.asarray(x) if self.encoder is None or not raw else self.encoder(x)
        if self.encoder is None:
            raise FedpriorError("the model was trained on arrays, not on a table: give it an array of inputs.")
        unknown_levels = {name: count for name, count in self.encoder.unknown(x).items() if count}
        if unknown_levels:
            told = ", ".join(f"'{on_screen(name)}' in {count} rows" for name, count in unknown_levels.items())
            warnings.warn(
                f"levels that did not occur in training are treated as unknown: {told}", FedpriorWarning, stacklevel=3
            )
        return self.encoder.encode(x)

    def _checked(self, inputs: NDArray[Any]) -> Tensor:
        """Refuse inputs that do not fit the model, even where arithmetic would accept them."""
        if not (np.issubdtype(inputs.dtype, np.number) or inputs.dtype == np.bool_):
            raise FedpriorError("the inputs are not numbers: encode them as numbers first.")
        if self.shape is not None and (inputs.ndim == 0 or inputs.shape[1:] != self.shape):
            expected = ", ".join(["n", *map(str, self.shape)])
            raise FedpriorError(
                f"the inputs have shape {list(inputs.shape)} where the model takes [{expected}]: give one row for each "
                "example, with every input."
            )
        given = torch.as_tensor(inputs, dtype=self.method.task.dtype)
        if not bool(torch.isfinite(given).all()):
            row = int(torch.isfinite(given).flatten(1).all(1).logical_not().nonzero()[0])
            raise FedpriorError(f"row {row} of the inputs has a missing or infinite value: fill it in or drop the row.")
        return given

    def save(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write the model as safetensors.

        Args:
            path: The file to write.
            about: How to build the method again; `result.summary` and `prior.told` have these entries.
        """
        write_bytes(path, packed(self.client, self.arrays, self.encoder, about))


def packed(client: str, arrays: Arrays, encoder: Encoder | None, about: Mapping[str, Any]) -> bytes:
    """The content of a model's file."""
    document = None if encoder is None else encoder.document()
    return signed.packed(arrays, {**about, "client": client, "encoder": document})


def read_model(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The entries and the description in a file, as they were written."""
    return signed.read(path, "model")


def load_model(path: str | Path, module: nn.Module | None = None) -> PersonalModel:
    """A personal model from its file.

    Args:
        path: `models/<client>.safetensors` in a run's folder, or what `fedprior export --format safetensors` wrote.
        module: The network, if it is your own; its weights come from the file.

    Returns:
        The model, which predicts by itself.

    Raises:
        FedpriorError: If the file is damaged, was altered, or needs `module`.
    """
    arrays, about = read_model(Path(path))
    try:
        target = from_document(about["target"]) if "target" in about else Classes.numbered(about["classes"])
        method = described_method(Path(path), about, target, module)
        shape, client, seed = tuple(map(int, about["shape"])), str(about["client"]), int(about["seed"])
        encoder = _encoder(about)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise signed.unreadable(path, "model", error) from None
    check(Path(path), arrays, outline(method, shape, target))
    return PersonalModel(client, method, arrays, seed, encoder, shape, target)


def described_method(path: Path, about: Mapping[str, Any], target: Target, module: nn.Module | None) -> AnyMethod:
    """The method that a description tells of, bound to its task, with its local training where that is told."""
    from fedprior import methods
    from fedprior.experiment.config import CUSTOM, build_model
    from fedprior.models.task import Task

    likelihood = likelihood_of(target)
    if module is None:
        if about["model"].get("name") == CUSTOM:
            raise FedpriorError(f"'{path}' was made with a network of your own: pass it as load_model(path, module).")
        module = build_model(about["model"], tuple(about["shape"]), likelihood.outputs)
    options = dict(about["method"])
    method = methods.build(options.pop("name"), options)
    dtype = torch.float64 if about["precision"] == "float64" else torch.float32
    shape = tuple(about["shape"])
    task = Task(module, likelihood, dtype=dtype, mixed=about["precision"] == "bfloat16", shape=shape)
    return method.bind(task, Train(**about["train"]) if "train" in about else method.train)


def _encoder(about: Mapping[str, Any]) -> Encoder | None:
    if about.get("encoder"):
        return Encoder.from_document(about["encoder"])
    return Encoder(None, Scaler.from_document(about["scaler"])) if about.get("scaler") else None  # an older file


def outline(method: AnyMethod, shape: tuple[int, ...], target: Target) -> Outline:
    """The entries of a method's personal models for examples of a shape, found with a dummy client."""
    dtype = method.task.dtype
    labels = torch.zeros(2, dtype=dtype if target.dtype.is_floating_point else target.dtype)
    data = ClientData.single(torch.zeros(2, *shape, dtype=dtype), labels)
    with single_thread():
        found = personal_model(method, Federation(("",), data, data, data, target))
    return {path: (tuple(leaf.shape[1:]), leaf[0].numpy().dtype) for path, leaf in tree.items(found)}


def check(path: Path, arrays: Arrays, expected: Outline) -> None:
    """Refuse a model whose entries are not exactly those of its method."""
    for name, (shape, dtype) in expected.items():
        if name not in arrays:
            raise FedpriorError(f"the model in '{path}' lacks '{name}': copy or create it again.")
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            given, wanted = (f"{kind} {list(size)}" for size, kind in (_kind(arrays[name]), (shape, dtype)))
            raise FedpriorError(
                f"'{name}' of the model in '{path}' is {given} and should be {wanted}: create it again."
            )
    if extra := sorted(arrays.keys() - expected.keys()):
        raise FedpriorError(f"the model in '{path}' has '{extra[0]}', which its method does not have: create it again.")


def _kind(values: NDArray[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return values.shape, values.dtype
