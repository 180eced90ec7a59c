"""Personal models as ONNX: from raw rows to probabilities, with the encoder in the graph.

What is exported is `method.predict` itself, traced, so a mixture is exported as a mixture and a fixed set of drawn
networks as those networks. The result is run by onnxruntime on made-up rows before it is written, and refused if it
does not predict what we predict.

The graph's one input is a matrix of float64, one column for each column of the table that is used, in the order of the
metadata: numbers as they are measured, yes/no as 1 and 0, a category as the position of its level (0, 1, …; -1 for any
other), NaN for a missing value. Codes and not text, because few runtimes take text. Models of arrays take the arrays.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprior import __version__
from fedprior.data.encoder import Encoder
from fedprior.data.schema import Schema, by_name
from fedprior.data.target import Classes
from fedprior.engine.memory import single_thread
from fedprior.errors import FedpriorError, cut
from fedprior.experiment.personal import PersonalModel
from fedprior.models.likelihood import Categorical
from fedprior.rng import Keys

TOLERANCE = 1e-4
"""Largest difference to our predictions that is put down to rounding: of probabilities, or in deviations."""
ROWS = 64
"""Made-up rows on which both are compared."""
INPUT = "rows"


def onnx_inputs(encoder: Encoder | None, frame: pd.DataFrame) -> NDArray[np.float64]:
    """A table as the exported network takes it [n, columns]."""
    if encoder is None or encoder.schema is None:
        raise FedpriorError("the model was trained on arrays, not on a table: its network takes the arrays.")
    encoder.schema.matrix(frame.head(0))  # refuses a table that lacks a column
    table = by_name(frame)
    return np.stack([column.codes(table[column.name]) for column in encoder.schema.used], 1)


class Coded(nn.Module):
    """Codes [n, columns] -> a schema's inputs [n, inputs], unscaled, NaN where a value is missing."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        places = [(k, level) for k, column in enumerate(schema.used) for level in _levels(column.kind, column.levels)]
        gaps = [k for k, column in enumerate(schema.used) if column.missing and schema.indicators]
        self.source = torch.tensor([k for k, _ in places])
        self.level = torch.tensor([math.nan if level is None else level for _, level in places], dtype=torch.float64)
        self.gaps = torch.tensor(gaps, dtype=torch.int64)

    def forward(self, rows: Tensor) -> Tensor:
        """A category becomes one input for each level but the first."""
        values = rows.index_select(1, self.source)
        coded = torch.where(values.isnan(), values, (values == self.level).to(rows.dtype))
        inputs = torch.where(self.level.isnan(), values, coded)
        if not len(self.gaps):
            return inputs
        return torch.cat([inputs, rows.index_select(1, self.gaps).isnan().to(rows.dtype)], 1)


def _levels(kind: str, levels: tuple[str, ...]) -> list[float | None]:
    return [float(k) for k in range(1, len(levels))] if kind == "category" else [None]


@dataclass(frozen=True)
class Remembered(Keys):
    """Keys whose draws are constants once they have been drawn: a graph cannot draw by our keys."""

    known: dict[Any, Tensor] = field(default_factory=dict)

    def fold(self, *tags: str | int) -> Remembered:
        """Narrower keys that remember in the same place."""
        return Remembered(self.root, self.origin, self.tags + tags, self, self.known)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same draws as ever."""
        name = (self.tags, shape, dtype)
        if name not in self.known:
            self.known[name] = super().normal(*shape, dtype=dtype)
        return self.known[name]


class Network(nn.Module):
    """A personal model from raw rows to what is read: probabilities, or mean and standard deviation."""

    def __init__(self, model: PersonalModel) -> None:
        super().__init__()
        self.method, encoder = model.method, model.encoder
        self.personal, own = model.tree, model.keys
        self.keys = Remembered(own.root, own.origin, own.tags)
        self.coded = Coded(encoder.schema) if encoder is not None and encoder.schema is not None else nn.Identity()
        scaler = None if encoder is None else encoder.scaler
        self.scaling = None if scaler is None else tuple(torch.from_numpy(part) for part in (scaler.mean, scaler.std))
        self.fill = None if scaler is None or scaler.fill is None else torch.from_numpy(scaler.fill)

    def forward(self, rows: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """[n, ...] -> probabilities [n, K], or mean and standard deviation [n]."""
        x = self.coded(rows)
        if self.fill is not None:
            x = torch.where(x.isnan(), self.fill, x)
        if self.scaling is not None:
            x = (x - self.scaling[0]) / self.scaling[1]
        likelihood = self.method.task.likelihood
        found = self.method.predict(self.personal, x.to(self.method.task.dtype).unsqueeze(0), self.keys).squeeze(0)
        read = likelihood.readable(found).float()
        return read if isinstance(likelihood, Categorical) else (read[:, 0], read[:, 1])


def as_onnx(model: PersonalModel) -> bytes:
    """The content of an ONNX file, checked against our predictions."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError:
        raise FedpriorError("ONNX needs more packages: install them with `pip install 'fedprior[export]'`.") from None
    if model.shape is None:
        raise FedpriorError("the model's file does not say what inputs it takes: create it again.")
    rows = sample(model)
    network = Network(model).eval()
    try:
        with single_thread(), _quiet():
            network(torch.from_numpy(rows))  # so that its draws are known
            program = torch.onnx.export(
                network,
                (torch.from_numpy(rows[:2]),),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("n")},),
                input_names=[INPUT],
                output_names=_outputs(model),
                verbose=False,
            )
        assert program is not None
        proto = program.model_proto
    except Exception as error:  # the exporter has many, and none of its own
        told = f"the network of {model.method.about.title} cannot be written as ONNX ({_reason(error)})"
        raise FedpriorError(f"{told}: use --format safetensors.") from None
    onnx.helper.set_model_props(proto, {"fedprior": json.dumps(described(model))})
    content: bytes = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    with _quiet():  # rows are made up, and their unknown levels no surprise
        _check(model, rows, session.run(None, {INPUT: rows}))
    return content


def _reason(error: BaseException) -> str:
    """The first line of what went wrong at first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return cut((str(error).strip() or type(error).__name__).splitlines()[0], 200).rstrip(".")


def _outputs(model: PersonalModel) -> list[str]:
    return ["probabilities"] if isinstance(model.method.task.likelihood, Categorical) else ["mean", "sd"]


def described(model: PersonalModel) -> dict[str, Any]:
    """What whoever runs the network must know: the columns of its input and the names of its classes."""
    schema = None if model.encoder is None else model.encoder.schema
    told: dict[str, Any] = {"site": model.client, "method": model.method.about.name, "version": __version__}
    target = model.target if schema is None else schema.target
    classes = {"classes": list(target.levels)} if isinstance(target, Classes) else {}
    if schema is None:
        named = classes if model.encoder is not None and model.encoder.takes_pixels else {}
        return {**told, "shape": list(model.shape or ()), **named}
    columns = [column.document() for column in schema.used]
    return {**told, "columns": columns, "target": schema.target_name, **classes}


def sample(model: PersonalModel) -> NDArray[Any]:
    """Made-up rows as the network takes them: numbers about the mean, any level, gaps where they may be."""
    rng, encoder = np.random.default_rng(0), model.encoder
    shape = (ROWS, *(model.shape or ()))
    if encoder is None or encoder.schema is None:
        x = rng.normal(size=shape)
        return x.astype(np.float32) if encoder is None else encoder.scaler.mean + encoder.scaler.std * x
    schema, columns = encoder.schema, []
    for column in schema.used:
        if column.kind == "category":
            values = rng.integers(-1, len(column.levels), ROWS).astype(np.float64)
        elif column.kind == "yes/no":
            values = rng.integers(0, 2, ROWS).astype(np.float64)
        else:
            k = schema.inputs.index(column.name)
            values = encoder.scaler.mean[k] + encoder.scaler.std[k] * rng.normal(size=ROWS)
        gaps = column.missing and encoder.scaler.fill is not None
        columns.append(np.where((rng.random(ROWS) < 0.2) & gaps, np.nan, values))
    return np.stack(columns, 1)


def _check(model: PersonalModel, rows: NDArray[Any], found: list[NDArray[Any]]) -> None:
    """Compare with the personal model, which takes its own road from rows to inputs where it has a schema."""
    ours = model.predict(_table(model, rows), raw=True)
    theirs = np.stack(found, 1) if len(found) > 1 else found[0]
    unit = 1.0 if isinstance(model.method.task.likelihood, Categorical) else np.abs(ours[:, 1:]) + np.abs(ours).max()
    if not np.isfinite(theirs).all() or np.abs((theirs - ours) / unit).max() > TOLERANCE:
        raise FedpriorError(
            f"the exported network of {model.method.about.title} does not predict what the model predicts: nothing was "
            "written; use --format safetensors."
        )


def _table(model: PersonalModel, rows: NDArray[Any]) -> Any:
    """Coded rows as a table, with levels by name."""
    encoder = model.encoder
    if encoder is None or encoder.schema is None:
        return rows
    table: dict[str, Any] = {}
    for k, column in enumerate(encoder.schema.used):
        names = dict(enumerate(column.levels)) if column.kind == "category" else {}
        values = [names.get(int(v), "\0other") if names and not math.isnan(v) else v for v in rows[:, k]]
        table[column.name] = pd.Series([None if isinstance(v, float) and math.isnan(v) else v for v in values])
    return pd.DataFrame(table)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
