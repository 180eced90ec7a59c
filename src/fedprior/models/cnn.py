"""The convolutional networks of the papers; parameter counts are tested."""

from __future__ import annotations

from pydantic import NonNegativeInt
from torch import nn

from fedprior.errors import FedpriorError
from fedprior.models.layers import ChannelsLast, Norm, activation, classifier, conv_block


def _image(shape: tuple[int, ...], size: int, name: str) -> int:
    if len(shape) != 3 or shape[1:] != (size, size):
        raise FedpriorError(f"model '{name}' takes images of {size}×{size} pixels, but the data has shape {shape}.")
    return shape[0]


def lenet5(
    shape: tuple[int, ...], classes: int, *, padding: NonNegativeInt = 2, norm_layer: Norm = "none"
) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling.

    FedBPS uses it on 28×28 images (61,706 parameters), pFedBreD on 32×32 ones with padding 0 (62,006).
    """
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] < 16:
        raise FedpriorError(
            f"model 'lenet5' takes square images of at least 16 pixels, but the data has shape {shape}."
        )
    side = ((shape[1] + 2 * padding - 4) // 2 - 4) // 2
    relu = nn.ReLU()
    base: list[nn.Module] = [
        ChannelsLast(),
        *conv_block((shape[0], 6), 5, padding, relu, norm_layer),
        *conv_block((6, 16), 5, 0, relu, norm_layer),
        nn.Flatten(),
        *(nn.Linear(16 * side * side, 120), relu, nn.Linear(120, 84), relu),
    ]
    return classifier(base, 84, classes)


def cnn_cifar(shape: tuple[int, ...], classes: int, *, norm_layer: Norm = "none") -> nn.Module:
    """pFedFDA's CIFAR network, 128 features (base of 106,400 parameters)."""
    act = activation("leaky_relu")
    base: list[nn.Module] = [
        ChannelsLast(),
        *conv_block((_image(shape, 32, "cnn_cifar"), 16), 5, 0, act, norm_layer),
        *conv_block((16, 32), 5, 1, act, norm_layer),
        *conv_block((32, 64), 3, 1, act, norm_layer),
        *(nn.Flatten(), nn.Linear(576, 128), act),
    ]
    return classifier(base, 128, classes)


def cnn_emnist(shape: tuple[int, ...], classes: int, *, norm_layer: Norm = "none") -> nn.Module:
    """pFedFDA's EMNIST network, 128 features (base of 115,776 parameters)."""
    act = activation("leaky_relu")
    base: list[nn.Module] = [
        ChannelsLast(),
        *conv_block((_image(shape, 28, "cnn_emnist"), 16), 5, 0, act, norm_layer),
        *conv_block((16, 32), 5, 1, act, norm_layer),
        *(nn.Flatten(), nn.Linear(800, 128), act),
    ]
    return classifier(base, 128, classes)


def cnn_cifar_lenet(shape: tuple[int, ...], classes: int, *, norm_layer: Norm = "none") -> nn.Module:
    """pFedVEM's CIFAR10 network, 84 features (base of 120,332 parameters)."""
    relu = nn.ReLU()
    base: list[nn.Module] = [
        ChannelsLast(),
        *conv_block((_image(shape, 32, "cnn_cifar_lenet"), 16), 5, 0, relu, norm_layer),
        *conv_block((16, 32), 5, 0, relu, norm_layer),
        nn.Flatten(),
        *(nn.Linear(800, 120), relu, nn.Linear(120, 84), relu),
    ]
    return classifier(base, 84, classes)
