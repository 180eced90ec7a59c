"""Models by name. Each is a plain function of the input shape and the number of classes that returns an `nn.Module`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedprior.models.alexnet import alexnet
from fedprior.models.cnn import cnn6, cnn_cifar, cnn_cifar_lenet, cnn_emnist, lenet5, lenet_wide
from fedprior.models.mlp import mlp, softmax
from fedprior.models.recurrent import lstm
from fedprior.models.resnet import resnet18, resnet20, resnet32, resnet44, resnet56
from fedprior.options import call
from fedprior.options import defaults as option_defaults

FACTORIES: tuple[Callable[..., nn.Module], ...] = (
    *(softmax, mlp),
    *(lenet5, lenet_wide, cnn_cifar, cnn_emnist, cnn_cifar_lenet, cnn6),
    *(resnet18, resnet20, resnet32, resnet44, resnet56, alexnet),
    lstm,
)
MODELS: dict[str, Callable[..., nn.Module]] = {f.__name__: f for f in FACTORIES}


def defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A model section with every option spelled out."""
    return option_defaults(MODELS[spec["name"]]) | dict(spec)


def build(name: str, options: Mapping[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model `name` for inputs of `shape`."""
    return call("model", MODELS, name, options, shape=shape, classes=classes)
