"""Models by name. Each is a plain function of the input shape and the number of outputs that returns an `nn.Module`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedprior.models.alexnet import alexnet
from fedprior.models.cnn import cnn6, cnn_cifar, cnn_cifar_lenet, cnn_emnist, lenet5, lenet_wide
from fedprior.models.mlp import mlp, softmax
from fedprior.models.recurrent import lstm
from fedprior.models.resnet import resnet18, resnet20, resnet32, resnet44, resnet56
from fedprior.options import call
from fedprior.options import defaults as option_defaults
from fedprior.room import check_room

FACTORIES: tuple[Callable[..., nn.Module], ...] = (
    *(softmax, mlp),
    *(lenet5, lenet_wide, cnn_cifar, cnn_emnist, cnn_cifar_lenet, cnn6),
    *(resnet18, resnet20, resnet32, resnet44, resnet56, alexnet),
    lstm,
)
LEAST_COPIES = 4
"""Of a model's weights in any run: the network, its task's, the server's and a client's."""
MODELS: dict[str, Callable[..., nn.Module]] = {f.__name__: f for f in FACTORIES}


def defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A model section with every option made explicit."""
    return option_defaults(MODELS[spec["name"]]) | dict(spec)


def build(name: str, options: Mapping[str, Any], shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The model `name` for inputs of `shape`; one that cannot fit into memory is refused before it is made."""

    def make() -> nn.Module:
        return call("model", MODELS, name, options, shape=shape, outputs=outputs)

    with torch.device("meta"):  # shapes without numbers
        try:
            size = sum(tensor.numel() for tensor in _tensors(make()))
        except (RuntimeError, OverflowError, MemoryError):  # more numbers than 64 bits can count
            size = 2**60
    check_room(f"model '{name}'", LEAST_COPIES * 4 * size, "use a smaller one")
    return make()


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers, and tensors that a layer has beside them."""
    yield from module.parameters()
    yield from module.buffers()
    for layer in module.modules():
        yield from (value for value in vars(layer).values() if isinstance(value, Tensor))
