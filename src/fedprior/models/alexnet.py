"""AlexNet with a norm after every hidden layer; parameter counts are tested."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt
from torch import nn

from fedprior.models.cnn import image_channels
from fedprior.models.layers import ChannelsLast, Norm, classifier, norm


def alexnet(
    shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Annotated[PositiveInt, Field(description="width of the two linear layers before the head")] = 4096,
    norm_layer: Norm = "group",
) -> nn.Module:
    """FedBN's AlexNet, FedMAP's network for Office-31, 4,096 features (57,149,535 parameters with 31 outputs).

    The papers' norm is `batch`; `group` has as many parameters. FedMAP's images have 224×224 pixels, FedBN's 256×256,
    and an average pool to 6×6 accepts any size from 63×63. `hidden` is the width of the two linear layers before the
    head. Pools overlap without padding and precede the activation, which gives the same function since it is monotonic.
    """
    relu, pool = nn.ReLU(), nn.MaxPool2d(3, 2)
    base: list[nn.Module] = [
        *(ChannelsLast(), nn.Conv2d(image_channels(shape, "alexnet", 63), 64, 11, 4, padding=2)),
        *(*norm(norm_layer, 64, images=True), pool, relu),
        *(nn.Conv2d(64, 192, 5, padding=2), *norm(norm_layer, 192, images=True), pool, relu),
        *(nn.Conv2d(192, 384, 3, padding=1), *norm(norm_layer, 384, images=True), relu),
        *(nn.Conv2d(384, 256, 3, padding=1), *norm(norm_layer, 256, images=True), relu),
        *(nn.Conv2d(256, 256, 3, padding=1), *norm(norm_layer, 256, images=True), pool, relu),
        *(nn.AdaptiveAvgPool2d(6), nn.Flatten()),
        *(nn.Linear(9216, hidden), *norm(norm_layer, hidden, images=False), relu),
        *(nn.Linear(hidden, hidden), *norm(norm_layer, hidden, images=False), relu),
    ]
    return classifier(base, hidden, outputs)
