"""Softmax regression and multi-layer perceptrons."""

from __future__ import annotations

import itertools
import math
from typing import Annotated

from pydantic import Field, PositiveInt
from torch import nn

from fedprior.errors import FedpriorError
from fedprior.models.layers import Activation, Norm, activation, classifier, norm


def softmax(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Softmax regression: one linear layer on the flattened input (7,850 parameters for 784 inputs, 10 outputs)."""
    return classifier([nn.Flatten()], math.prod(shape), outputs)


def mlp(
    shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Annotated[tuple[PositiveInt, ...], Field(max_length=100, description="width of each hidden layer")] = (
        100,
    ),
    act: Activation = "relu",
    slope: Annotated[float, Field(description="of leaky_relu, below zero")] = 0.01,
    norm_layer: Norm = "none",
    single_logit: Annotated[bool, Field(description="one output instead of two, for two classes")] = False,
) -> nn.Module:
    """Fully connected layers.

    FedMAP's synthetic network is `hidden=(32, 16), single_logit=True` on 30 inputs (1,537 parameters); pFedVEM's and
    pFedMe's is `hidden=(100,)` on 784 (79,510); pFedBreD's is the same with `act="leaky_relu", slope=0.1`.
    """
    if single_logit and outputs != 2:
        raise FedpriorError(f"single_logit requires two classes, but the model needs {outputs} outputs: leave it out.")
    widths = (math.prod(shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, width in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, width), *norm(norm_layer, width, images=False), activation(act, slope)]
    return classifier(layers, widths[-1], 1 if single_logit else outputs)
