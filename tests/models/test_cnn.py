"""The wide LeNet and the six-layer network: parameter counts, maps, and the functions as the papers write them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedprior.models import build


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def convolutions(module: nn.Module, x: Tensor) -> list[tuple[int, ...]]:
    """The shape of every convolution's output."""
    shapes: list[tuple[int, ...]] = []
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, given, made: shapes.append(tuple(made.shape[1:])))
    module(x)
    return shapes


def test_wide_lenet_parameters() -> None:
    """75·64 + 64 = 4,864; 1600·64 + 64 = 102,464; 1600·384 + 384 = 614,784; 384·192 + 192 = 73,920; 192·10 + 10."""
    assert count(build("lenet_wide", {}, (3, 32, 32), 10)) == 4_864 + 102_464 + 614_784 + 73_920 + 1_930 == 797_962


@pytest.mark.parametrize(("classes", "total"), [(20, 620_936), (3, 619_219)])
def test_six_layer_parameters(classes: int, total: int) -> None:
    """27·32 + 32, 288·64 + 64, 576·128 + 128, 1152·256 + 256, 2304·100 + 100 in the base; 101 a class in the head."""
    module = build("cnn6", {}, (3, 32, 32), classes)
    assert count(module.get_submodule("base")) == 896 + 18_496 + 73_856 + 295_168 + 230_500 == 618_916
    assert count(module) == 618_916 + 101 * classes == total


@pytest.mark.parametrize(("size", "sides"), [(32, (32, 17, 9, 5, 3)), (64, (64, 33, 17, 9, 5))])
def test_six_layer_maps(size: int, sides: tuple[int, ...]) -> None:
    """The sides that the paper's code gives; a pool with one pixel of padding makes n // 2 + 1 of n."""
    module = build("cnn6", {}, (3, size, size), 20)
    channels = (32, 64, 128, 256, 100)
    expected = [(c, side, side) for c, side in zip(channels, sides, strict=True)]
    assert convolutions(module, torch.zeros(1, 3, size, size)) == expected


@pytest.mark.parametrize("size", [32, 9])
def test_six_layers_are_those_of_the_paper(size: int) -> None:
    """ReLU before each padded pool, and before the average over the last map."""
    torch.manual_seed(0)
    module = build("cnn6", {}, (3, size, size), 20).double()
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    *convs, head = zip(*[iter(module.parameters())] * 2, strict=True)  # pairs of weight and bias
    z = x
    for k, (weight, bias) in enumerate(convs):
        z = F.relu(F.conv2d(z, weight, bias, padding=1))
        if k < 4:
            z = F.max_pool2d(z, 2, 2, padding=1)
    ours, theirs = module(x), F.linear(z.mean((2, 3)), *head)
    assert ours.std() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert_same_gradients(module, ours, theirs)


def test_the_wide_lenet_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    module = build("lenet_wide", {}, (3, 32, 32), 10).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    c1, c2, l1, l2, head = zip(*[iter(module.parameters())] * 2, strict=True)
    z = F.max_pool2d(F.relu(F.conv2d(x, *c1)), 2)
    z = F.max_pool2d(F.relu(F.conv2d(z, *c2)), 2)
    theirs = F.linear(F.relu(F.linear(F.relu(F.linear(z.flatten(1), *l1)), *l2)), *head)
    torch.testing.assert_close(module(x), theirs, rtol=1e-12, atol=1e-12)
    assert_same_gradients(module, module(x), theirs)


def assert_same_gradients(module: nn.Module, ours: Tensor, theirs: Tensor) -> None:
    weights, pull = list(module.parameters()), torch.randn_like(ours)
    for a, b in zip(torch.autograd.grad(ours, weights, pull), torch.autograd.grad(theirs, weights, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("norm_layer", ["group", "batch"])
def test_norms(norm_layer: str) -> None:
    """A scale and a shift a channel: 2 · (32 + 64 + 128 + 256 + 100) and 2 · (64 + 64)."""
    assert count(build("cnn6", {"norm_layer": norm_layer}, (3, 32, 32), 20)) == 620_936 + 1_160
    assert count(build("lenet_wide", {"norm_layer": norm_layer}, (3, 32, 32), 10)) == 797_962 + 256
