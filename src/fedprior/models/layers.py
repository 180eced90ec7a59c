"""Pieces that the model families share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

Activation = Annotated[Literal["relu", "leaky_relu", "tanh"], Field(description="function after each hidden layer")]
Norm = Annotated[Literal["none", "group", "batch"], Field(description="normalisation after each hidden layer")]


def activation(name: Activation, slope: float = 0.01) -> nn.Module:
    """An activation by name; `slope` is that of leaky ReLU."""
    return {"relu": nn.ReLU(), "leaky_relu": nn.LeakyReLU(slope), "tanh": nn.Tanh()}[name]


def norm(name: Norm, width: int, *, images: bool) -> list[nn.Module]:
    """A norm layer, or none. Groups have 8 channels if that divides the width; otherwise there is one group."""
    if name == "none":
        return []
    if name == "batch":
        return [nn.BatchNorm2d(width) if images else nn.BatchNorm1d(width)]
    return [nn.GroupNorm(width // 8 if width % 8 == 0 else 1, width)]


def classifier(base: list[nn.Module], features: int, outputs: int) -> nn.Sequential:
    """`base` then a linear `head`: the names by which methods with a personal head split it."""
    return nn.Sequential(OrderedDict(base=nn.Sequential(*base), head=nn.Linear(features, outputs)))


class ChannelsLast(nn.Module):
    """Lay images out with channels last in memory: the same numbers, faster convolutions and pooling on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same, channels last."""
        return x.contiguous(memory_format=torch.channels_last)


def conv_block(
    channels: tuple[int, int], kernel: int, padding: int, act: nn.Module, norm_name: Norm = "none"
) -> list[nn.Module]:
    """Convolution, norm, 2×2 max-pool, activation.

    The papers put the activation before the pool. It is monotonic, so it commutes with the maximum: the same
    function with a quarter of the work.
    """
    return [
        nn.Conv2d(*channels, kernel, padding=padding),
        *norm(norm_name, channels[1], images=True),
        nn.MaxPool2d(2),
        act,
    ]
