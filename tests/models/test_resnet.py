"""Residual networks: parameter counts, maps, the initial law, and the function as the papers write it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.client import Batch
from fedprior.errors import FedpriorError
from fedprior.models import build
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.rng import Key

DEPTHS = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9}


def meta(name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model of shapes without numbers, for counting."""
    with torch.device("meta"):
        return build(name, options, shape, classes)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# Parameters


@pytest.mark.parametrize(
    ("norm_layer", "affine"),
    # 64 · 5 + 128 · 5 + 256 · 5 + 512 · 5 = 4,800 channels are normalised: 150 groups of 32
    [("group32", 2 * 150), ("group", 2 * 4_800), ("batch", 2 * 4_800)],
)
def test_resnet18_parameters(norm_layer: str, affine: int) -> None:
    """Kernels, none with a bias, and the norms' scales and shifts; pFedFDA's Table 8 has 11,167,212 and 102,600.

    Stem 49·3·64 = 9,408; stage one 4 · 9·64² = 147,456; a stage from c to 2c channels 9·c·2c + 3 · 9·(2c)² + c·2c,
    that is 524,288 from 64, four times that from 128 and sixteen times that from 256.
    """
    kernels = 9_408 + 147_456 + 524_288 * (1 + 4 + 16)
    module = meta("resnet18", {"norm_layer": norm_layer}, (3, 64, 64), 200)
    assert count(module.get_submodule("base")) == kernels + affine
    assert kernels + affine == {"group32": 11_167_212}.get(norm_layer, 11_176_512)
    assert count(module.get_submodule("head")) == 513 * 200 == 102_600


@pytest.mark.parametrize("norm_layer", ["group", "batch"])
@pytest.mark.parametrize(
    ("name", "zeros", "conv"),
    [
        ("resnet20", 269_722, 272_474),
        ("resnet32", 464_154, 466_906),
        ("resnet44", 658_586, 661_338),
        ("resnet56", 853_018, 855_770),
    ],
)
def test_cifar_resnet_parameters(name: str, zeros: int, conv: int, norm_layer: str) -> None:
    """With n blocks a stage of 2n convolutions, 9·a·b weights each and 2·b for the norm after it.

    Stem 27·16 + 32; stage one 2n (9·16² + 32); stage two 9·16·32 + (2n - 1) 9·32² + 2n·64; stage three
    9·32·64 + (2n - 1) 9·64² + 2n·128; head 650. Shortcuts with weights add 16·32 + 64 + 32·64 + 128 = 2,752.
    """
    n = 2 * DEPTHS[name]
    total = 464 + n * 2_336 + (4_608 + (n - 1) * 9_216 + n * 64) + (18_432 + (n - 1) * 36_864 + n * 128) + 650
    options = {"norm_layer": norm_layer}
    assert count(meta(name, options, (3, 32, 32), 10)) == total == zeros
    assert count(meta(name, options | {"shortcut": "conv"}, (3, 32, 32), 10)) == total + 2_752 == conv


# Shapes


def test_maps() -> None:
    """64 pixels: 32 after the stem, 16 after the pool, then 16, 8, 4, 2. CIFAR's 32 pixels: 32, 16, 8."""

    def blocks(name: str, size: int) -> list[tuple[int, ...]]:
        module, shapes = meta(name, {}, (3, size, size), 10), []
        for layer in module.get_submodule("base").children():
            layer.register_forward_hook(lambda layer, given, made: shapes.append(tuple(made.shape[1:])))
        module(torch.empty(1, 3, size, size, device="meta"))
        return list(dict.fromkeys(shape for shape in shapes if len(shape) == 3))

    tail = [(512, 1, 1)]
    stages = [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]
    assert blocks("resnet18", 64) == [(3, 64, 64), (64, 32, 32), *stages, *tail]
    assert blocks("resnet20", 32) == [(3, 32, 32), (16, 32, 32), (32, 16, 16), (64, 8, 8), (64, 1, 1)]


# The function

Norm = Callable[[Tensor, Tensor, Tensor], Tensor]


def groups_of_eight(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.group_norm(x, x.shape[1] // 8, scale, shift)


def batch(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, scale, shift, training=True)


def pfedfda(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Mean and variance by hand over 32 channels and all pixels; a scale and a shift for each such group."""
    z = x.contiguous().view(x.shape[0], -1, 32, *x.shape[2:])
    mean = z.mean((2, 3, 4), keepdim=True)
    spread = ((z - mean).square().mean((2, 3, 4), keepdim=True) + 1e-5).sqrt()
    return ((z - mean) / spread * scale.view(1, -1, 1, 1, 1) + shift.view(1, -1, 1, 1, 1)).view(x.shape)


NORMS: dict[str, Norm] = {"group": groups_of_eight, "batch": batch, "group32": pfedfda}


def stage(x: Tensor, w: Iterator[Tensor], norm: Norm, depth: int, *, halve: bool, conv: bool) -> Tensor:
    """Blocks as the paper draws them, weights in order: two convolutions, then the shortcut's."""
    for k in range(depth):
        stride = 2 if halve and k == 0 else 1
        out = F.relu(norm(F.conv2d(x, next(w), stride=stride, padding=1), next(w), next(w)))
        out = norm(F.conv2d(out, next(w), padding=1), next(w), next(w))
        if stride == 2:
            if conv:
                x = norm(F.conv2d(x, next(w), stride=2), next(w), next(w))
            else:
                x = F.avg_pool2d(x, 1, 2)
                x = torch.cat([x, torch.zeros_like(x)], 1)
        x = F.relu(x + out)
    return x


def textbook18(w: Iterator[Tensor], x: Tensor, norm: Norm) -> Tensor:
    x = F.relu(norm(F.conv2d(x, next(w), stride=2, padding=3), next(w), next(w)))
    x = F.max_pool2d(x, 3, 2, padding=1)
    for k in range(4):
        x = stage(x, w, norm, 2, halve=k > 0, conv=True)
    return F.linear(x.mean((2, 3)), next(w), next(w))


def textbook_cifar(w: Iterator[Tensor], x: Tensor, norm: Norm, depth: int, *, conv: bool) -> Tensor:
    x = F.relu(norm(F.conv2d(x, next(w), padding=1), next(w), next(w)))
    for k in range(3):
        x = stage(x, w, norm, depth, halve=k > 0, conv=conv)
    return F.linear(x.mean((2, 3)), next(w), next(w))


def lively(module: nn.Module) -> nn.Module:
    """Scales and shifts away from 1 and 0, so that a mistaken one shows."""
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn_like(p))
    return module.double()


def agree(module: nn.Module, x: Tensor, textbook: Callable[[Iterator[Tensor], Tensor], Tensor]) -> None:
    w = iter(module.parameters())
    ours, theirs = module(x), textbook(w, x)
    assert next(w, None) is None
    assert ours.std() > 1e-2
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    weights, pull = list(module.parameters()), torch.randn_like(ours)
    for a, b in zip(torch.autograd.grad(ours, weights, pull), torch.autograd.grad(theirs, weights, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("norm_layer", ["group32", "batch"])
def test_resnet18_is_that_of_the_paper(norm_layer: str) -> None:
    torch.manual_seed(0)
    module = lively(build("resnet18", {"norm_layer": norm_layer}, (3, 33, 32), 4))
    x = torch.randn(2, 3, 33, 32, dtype=torch.float64)
    agree(module, x, lambda w, x: textbook18(w, x, NORMS[norm_layer]))


@pytest.mark.parametrize("shortcut", ["zeros", "conv"])
@pytest.mark.parametrize(("name", "norm_layer"), [("resnet20", "group"), ("resnet20", "batch"), ("resnet32", "group")])
def test_cifar_resnets_are_those_of_the_paper(name: str, norm_layer: str, shortcut: str) -> None:
    torch.manual_seed(0)
    module = lively(build(name, {"norm_layer": norm_layer, "shortcut": shortcut}, (3, 9, 8), 4))
    x = torch.randn(3, 3, 9, 8, dtype=torch.float64)
    agree(module, x, lambda w, x: textbook_cifar(w, x, NORMS[norm_layer], DEPTHS[name], conv=shortcut == "conv"))


def test_images_stay_channels_last() -> None:
    """From block to block, or every convolution would lay its input out anew."""
    module = build("resnet20", {}, (3, 8, 8), 4)
    blocks = [layer for layer in module.get_submodule("base").children() if hasattr(layer, "branch")]
    seen: list[bool] = []
    for block in blocks:
        block.register_forward_hook(
            lambda block, given, made: seen.append(made.is_contiguous(memory_format=torch.channels_last))
        )
    module(torch.randn(2, 3, 8, 8))
    assert len(seen) == 9
    assert all(seen)


# The initial law, batch normalisation, and what is refused


def test_convolutions_start_from_hes_law() -> None:
    """N(0, 2 / (k² · outputs)): 3×3 kernels from 32 to 64 channels have a deviation of 1/√288, and 18,432 draws."""
    w = Task(build("resnet20", {}, (3, 8, 8), 10), Categorical(10)).init(Key.from_seed(0))
    kernel = w["base.10.branch.0.weight"]
    assert kernel.shape == (64, 32, 3, 3)
    assert kernel.std().item() == pytest.approx(1 / math.sqrt(288), rel=0.02)
    assert kernel.mean().abs() < 5 / math.sqrt(288 * kernel.numel())
    assert kernel.abs().max() > 3.5 / math.sqrt(288)  # not a uniform law, which ends at √3 deviations
    assert all((w[f"base.2.{k}"] == v).all() for k, v in (("weight", 1), ("bias", 0)))


def test_batch_normalisation_has_buffers_and_trains() -> None:
    """Two statistics for each of 19 norms; a training pass moves them all for each client of a stack."""
    task = Task(build("resnet20", {"norm_layer": "batch"}, (3, 8, 8), 4), Categorical(4))
    assert len(task.buffers) == 2 * 19
    assert task.smallest_batch == 2
    w = tree.clone(tree.expand(task.init(Key.from_seed(0)), 2))
    before = tree.clone(w)
    y = torch.arange(6).view(2, 3)
    task.nll(w, Batch(torch.randn(2, 3, 3, 8, 8), y % 4, torch.full((2, 3), 1 / 3)))
    assert all(not torch.equal(w[k][c], before[k][c]) for k in task.buffers for c in range(2))


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("resnet20", {"norm_layer": "none"}, "norm_layer = 'none' is not valid"),
        ("resnet18", {"norm_layer": "none"}, "norm_layer = 'none' is not valid"),
        ("resnet20", {"shortcut": "pool"}, "shortcut = 'pool' is not valid"),
    ],
)
def test_bad_values(name: str, options: dict[str, Any], part: str) -> None:
    with pytest.raises(FedpriorError, match=part):
        build(name, options, (3, 8, 8), 4)
