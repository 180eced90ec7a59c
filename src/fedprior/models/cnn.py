"""The convolutional networks of the papers; parameter counts are tested."""

from __future__ import annotations

import itertools
from typing import Annotated

from pydantic import Field, NonNegativeInt
from torch import nn

from fedprior.errors import FedpriorError
from fedprior.models.layers import ChannelsLast, Norm, activation, classifier, conv_block, norm


def _image(shape: tuple[int, ...], size: int, name: str) -> int:
    if len(shape) != 3 or shape[1:] != (size, size):
        raise FedpriorError(f"model '{name}' takes images of {size}×{size} pixels, but the data has shape {shape}.")
    return shape[0]


def image_channels(shape: tuple[int, ...], name: str, least: int = 1) -> int:
    """The channels of images whose height and width are at least `least`."""
    if len(shape) != 3 or min(shape) < 1 or min(shape[1:]) < least:
        size = f" of at least {least}×{least} pixels" if least > 1 else " (channels, height, width)"
        raise FedpriorError(f"model '{name}' takes images{size}, but the data has shape {shape}.")
    return shape[0]


def lenet5(
    shape: tuple[int, ...],
    outputs: int,
    *,
    padding: Annotated[NonNegativeInt, Field(description="pixels around the image")] = 2,
    norm_layer: Norm = "none",
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
    return classifier(base, 84, outputs)


def lenet_wide(shape: tuple[int, ...], outputs: int, *, norm_layer: Norm = "none") -> nn.Module:
    """FedBPS's wide LeNet for CIFAR10, 192 features (797,962 parameters with 10 outputs).

    The paper specifies two convolutions with pooling and three linear layers, wider than LeNet-5; the widths (64, 64,
    384,
    192), 5×5 kernels without padding, ReLU and max-pooling are ours.
    """
    relu = nn.ReLU()
    base: list[nn.Module] = [
        ChannelsLast(),
        *conv_block((_image(shape, 32, "lenet_wide"), 64), 5, 0, relu, norm_layer),
        *conv_block((64, 64), 5, 0, relu, norm_layer),
        nn.Flatten(),
        *(nn.Linear(1600, 384), relu, nn.Linear(384, 192), relu),
    ]
    return classifier(base, 192, outputs)


def cnn_cifar(shape: tuple[int, ...], outputs: int, *, norm_layer: Norm = "none") -> nn.Module:
    """pFedFDA's CIFAR network, 128 features (base of 106,400 parameters)."""
    act = activation("leaky_relu")
    base: list[nn.Module] = [
        ChannelsLast(),
        *conv_block((_image(shape, 32, "cnn_cifar"), 16), 5, 0, act, norm_layer),
        *conv_block((16, 32), 5, 1, act, norm_layer),
        *conv_block((32, 64), 3, 1, act, norm_layer),
        *(nn.Flatten(), nn.Linear(576, 128), act),
    ]
    return classifier(base, 128, outputs)


def cnn_emnist(shape: tuple[int, ...], outputs: int, *, norm_layer: Norm = "none") -> nn.Module:
    """pFedFDA's EMNIST network, 128 features (base of 115,776 parameters)."""
    act = activation("leaky_relu")
    base: list[nn.Module] = [
        ChannelsLast(),
        *conv_block((_image(shape, 28, "cnn_emnist"), 16), 5, 0, act, norm_layer),
        *conv_block((16, 32), 5, 1, act, norm_layer),
        *(nn.Flatten(), nn.Linear(800, 128), act),
    ]
    return classifier(base, 128, outputs)


def cnn_cifar_lenet(shape: tuple[int, ...], outputs: int, *, norm_layer: Norm = "none") -> nn.Module:
    """pFedVEM's CIFAR10 network, 84 features (base of 120,332 parameters)."""
    relu = nn.ReLU()
    base: list[nn.Module] = [
        ChannelsLast(),
        *conv_block((_image(shape, 32, "cnn_cifar_lenet"), 16), 5, 0, relu, norm_layer),
        *conv_block((16, 32), 5, 0, relu, norm_layer),
        nn.Flatten(),
        *(nn.Linear(800, 120), relu, nn.Linear(120, 84), relu),
    ]
    return classifier(base, 84, outputs)


def cnn6(shape: tuple[int, ...], outputs: int, *, norm_layer: Norm = "none") -> nn.Module:
    """pFedVEM's six layers for CIFAR100 and SUN397, 100 features (base of 618,916 parameters), images of any size.

    Its pools are padded by one pixel: 32 pixels become 17, 9, 5 and 3. Every window still holds a pixel of the image,
    so the activation may follow the pool here too.
    """
    relu = nn.ReLU()
    base: list[nn.Module] = [ChannelsLast()]
    for channels in itertools.pairwise((image_channels(shape, "cnn6"), 32, 64, 128, 256)):
        base += [nn.Conv2d(*channels, 3, padding=1), *norm(norm_layer, channels[1], images=True)]
        base += [nn.MaxPool2d(2, padding=1), relu]
    base += [nn.Conv2d(256, 100, 3, padding=1), *norm(norm_layer, 100, images=True), relu]
    base += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return classifier(base, 100, outputs)
