"""Residual networks: He, Zhang, Ren & Sun, CVPR 2016; parameter counts are tested.

Convolutions have no bias, since a norm follows each, and start from N(0, 2 / fan_out), as in pFedFDA's code.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedprior.models.cnn import image_channels
from fedprior.models.layers import ChannelsLast, classifier, norm

ResidualNorm = Annotated[Literal["group", "batch"], Field(description="normalisation after each convolution")]
Shortcut = Annotated[
    Literal["zeros", "conv"], Field(description="past blocks that double the width: zeros, or a 1×1 convolution")
]
WideNorm = Annotated[Literal["group32", "group", "batch"], Field(description="normalisation; group32: 32 groups")]


class Conv(nn.Conv2d):
    """A convolution with the initialisation of residual networks."""

    def reset_parameters(self) -> None:
        """He's normal law."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


class SharedAffineNorm(nn.Module):
    """Group normalisation in which the 32 channels of a group share one scale and one shift."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels // 32))
        self.bias = nn.Parameter(torch.empty(channels // 32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scales of one and shifts of zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, H, W] -> the same shape."""
        scale, shift = (p.repeat_interleave(32) for p in (self.weight, self.bias))
        return F.group_norm(x, len(self.weight), scale, shift)


class HalvedWithZeros(nn.Module):
    """The shortcut without parameters: every second pixel, padded with channels of zeros."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C + extra, ⌈H/2⌉, ⌈W/2⌉]."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra))


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> relu(branch(x) + shortcut(x))."""
        return F.relu(self.branch(x) + self.shortcut(x))


def resnet18(shape: tuple[int, ...], outputs: int, *, norm_layer: WideNorm = "group32") -> nn.Module:
    """pFedFDA's ResNet-18 for TinyImageNet, 512 features (base of 11,167,212 parameters), images of any size.

    `group32` is that paper's norm: groups of 32 channels with one scale and one shift per group. With `group` or
    `batch` every channel has its own (base of 11,176,512).
    """
    base: list[nn.Module] = [
        *(ChannelsLast(), *_conv(image_channels(shape, "resnet18"), 64, 7, 2, norm_layer)),
        *(nn.MaxPool2d(3, 2, padding=1), nn.ReLU()),  # the same function as ReLU before the pool
        *_stages((64, 64, 128, 256, 512), 2, norm_layer, "conv"),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ]
    return classifier(base, 512, outputs)


def resnet20(
    shape: tuple[int, ...], outputs: int, *, norm_layer: ResidualNorm = "group", shortcut: Shortcut = "zeros"
) -> nn.Module:
    """FedBPS's ResNet-20 for CIFAR10, 64 features (269,722 parameters with 10 outputs), images of any size.

    The paper's norm is `batch`. With `shortcut="conv"`, 1×1 convolutions with a norm where the width doubles, it has
    272,474 parameters; the paper does not say which it uses.
    """
    return _cifar("resnet20", 3, shape, outputs, norm_layer, shortcut)


def resnet32(
    shape: tuple[int, ...], outputs: int, *, norm_layer: ResidualNorm = "group", shortcut: Shortcut = "zeros"
) -> nn.Module:
    """FedBPS's ResNet-32: as `resnet20` but for its depth (464,154 parameters, 466,906 with `shortcut="conv"`)."""
    return _cifar("resnet32", 5, shape, outputs, norm_layer, shortcut)


def resnet44(
    shape: tuple[int, ...], outputs: int, *, norm_layer: ResidualNorm = "group", shortcut: Shortcut = "zeros"
) -> nn.Module:
    """FedBPS's ResNet-44: as `resnet20` but for its depth (658,586 parameters, 661,338 with `shortcut="conv"`)."""
    return _cifar("resnet44", 7, shape, outputs, norm_layer, shortcut)


def resnet56(
    shape: tuple[int, ...], outputs: int, *, norm_layer: ResidualNorm = "group", shortcut: Shortcut = "zeros"
) -> nn.Module:
    """FedBPS's ResNet-56: as `resnet20` but for its depth (853,018 parameters, 855,770 with `shortcut="conv"`)."""
    return _cifar("resnet56", 9, shape, outputs, norm_layer, shortcut)


def _cifar(
    name: str, depth: int, shape: tuple[int, ...], outputs: int, norm_layer: ResidualNorm, shortcut: Shortcut
) -> nn.Module:
    """A 3×3 convolution, then three stages of `depth` blocks."""
    base: list[nn.Module] = [
        *(ChannelsLast(), *_conv(image_channels(shape, name), 16, 3, 1, norm_layer), nn.ReLU()),
        *_stages((16, 16, 32, 64), depth, norm_layer, shortcut),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ]
    return classifier(base, 64, outputs)


def _stages(widths: tuple[int, ...], depth: int, norm_layer: str, shortcut: Shortcut) -> list[nn.Module]:
    """Stages of `depth` blocks of two 3×3 convolutions; `widths` starts with the width of the input."""
    inputs, *stages = widths
    blocks: list[nn.Module] = []
    for outputs in stages:
        for _ in range(depth):
            blocks.append(_block(inputs, outputs, norm_layer, shortcut))
            inputs = outputs
    return blocks


def _block(inputs: int, outputs: int, norm_layer: str, shortcut: Shortcut) -> nn.Module:
    """Where the width doubles, the image is halved."""
    stride = 1 if inputs == outputs else 2
    first, second = _conv(inputs, outputs, 3, stride, norm_layer), _conv(outputs, outputs, 3, 1, norm_layer)
    if stride == 1:
        past: nn.Module = nn.Identity()
    elif shortcut == "conv":
        past = nn.Sequential(*_conv(inputs, outputs, 1, stride, norm_layer))
    else:
        past = HalvedWithZeros(outputs - inputs)
    return Residual(nn.Sequential(*first, nn.ReLU(), *second), past)


def _conv(inputs: int, outputs: int, kernel: int, stride: int, norm_layer: str) -> list[nn.Module]:
    conv = Conv(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    if norm_layer == "group32":
        return [conv, SharedAffineNorm(outputs)]
    return [conv, *norm("batch" if norm_layer == "batch" else "group", outputs, images=True)]
