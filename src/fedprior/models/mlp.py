"""Softmax regression and multi-layer perceptrons."""

from __future__ import annotations

import itertools
import math

from pydantic import PositiveInt
from torch import nn

from fedprior.errors import FedpriorError
from fedprior.models.layers import Activation, Norm, activation, classifier, norm


def softmax(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression: one linear layer on the flattened input (7,850 parameters for 784 inputs, 10 classes)."""
    return classifier([nn.Flatten()], math.prod(shape), classes)


def mlp(
    shape: tuple[int, ...],
    classes: int,
    *,
    hidden: tuple[PositiveInt, ...] = (100,),
    act: Activation = "relu",
    slope: float = 0.01,
    norm_layer: Norm = "none",
    single_logit: bool = False,
) -> nn.Module:
    """Fully connected layers.

    FedMAP's synthetic network is `hidden=(32, 16), single_logit=True` on 30 inputs (1,537 parameters); pFedVEM's and
    pFedMe's is `hidden=(100,)` on 784 (79,510); pFedBreD's is the same with `act="leaky_relu", slope=0.1`.
    """
    if single_logit and classes != 2:
        raise FedpriorError(f"single_logit tells two classes apart, but the data has {classes}: leave it out.")
    widths = (math.prod(shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), *norm(norm_layer, outputs, images=False), activation(act, slope)]
    return classifier(layers, widths[-1], 1 if single_logit else classes)
