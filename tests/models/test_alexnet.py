"""AlexNet: parameter counts, maps, and the function as the papers write it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedprior.models import build


def meta(options: dict[str, Any], size: int = 224, classes: int = 31) -> nn.Module:
    """A model of shapes without numbers: 57 million are slow to draw."""
    with torch.device("meta"):
        return build("alexnet", options, (3, size, size), classes)


@pytest.mark.parametrize("norm_layer", ["batch", "group", "none"])
def test_parameters(norm_layer: str) -> None:
    """FedMAP's table, layer by layer: k²·in·out + out for a convolution, in·out + out for a linear layer.

    Norms add a scale and a shift for each of 64 + 192 + 384 + 256 + 256 + 4096 + 4096 = 9,344 units.
    """
    kernels = [121 * 3 * 64 + 64, 25 * 64 * 192 + 192, 9 * 192 * 384 + 384, 9 * 384 * 256 + 256, 9 * 256 * 256 + 256]
    assert kernels == [23_296, 307_392, 663_936, 884_992, 590_080]
    linear = [9_216 * 4_096 + 4_096, 4_096 * 4_096 + 4_096, 4_096 * 31 + 31]
    assert linear == [37_752_832, 16_781_312, 127_007]
    total = sum(kernels) + sum(linear) + (0 if norm_layer == "none" else 2 * 9_344)
    module = meta({"norm_layer": norm_layer})
    assert sum(p.numel() for p in module.parameters()) == total
    assert total == 57_149_535 - (18_688 if norm_layer == "none" else 0)
    buffers = [b.numel() for b in module.buffers()]
    assert sum(buffers) == (18_695 if norm_layer == "batch" else 0)  # with a counter for each of seven norms


@pytest.mark.parametrize(("size", "sides"), [(224, (55, 27, 13)), (256, (63, 31, 15)), (63, (15, 7, 3))])
def test_maps(size: int, sides: tuple[int, ...]) -> None:
    module, shapes = meta({}, size), []
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda layer, given, made: shapes.append(tuple(made.shape[1:])))
    module(torch.empty(2, 3, size, size, device="meta"))
    a, b, c = sides
    maps = [(64, a, a), (192, b, b), (384, c, c), (256, c, c), (256, c, c)]
    assert shapes == [*maps, (4096,), (4096,), (31,)]


def textbook(module: nn.Module, x: Tensor, norm_layer: str) -> Tensor:
    """conv → norm → ReLU → pool, pools after layers one, two and five; weights in order."""
    w = iter(module.parameters())

    def normalised(x: Tensor) -> Tensor:
        if norm_layer == "batch":
            return F.batch_norm(x, None, None, next(w), next(w), training=True)
        return F.group_norm(x, x.shape[1] // 8, next(w), next(w))

    for stride, padding, pool in ((4, 2, True), (1, 2, True), (1, 1, False), (1, 1, False), (1, 1, True)):
        x = F.relu(normalised(F.conv2d(x, next(w), next(w), stride, padding)))
        x = F.max_pool2d(x, 3, 2) if pool else x
    x = F.adaptive_avg_pool2d(x, 6).flatten(1)
    for _ in range(2):
        x = F.relu(normalised(F.linear(x, next(w), next(w))))
    out = F.linear(x, next(w), next(w))
    assert next(w, None) is None
    return out


@pytest.mark.parametrize("norm_layer", ["group", "batch"])
def test_the_function_is_that_of_the_papers(norm_layer: str) -> None:
    """Values and gradients. Batch normalisation takes out the bias before it: its gradient, and no other, is zero."""
    torch.manual_seed(0)
    module = build("alexnet", {"norm_layer": norm_layer, "hidden": 16}, (3, 95, 80), 5).double()
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn_like(p))
    x = torch.randn(3, 3, 95, 80, dtype=torch.float64)
    ours, theirs = module(x), textbook(module, x, norm_layer)
    assert ours.std() > 1e-2
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    named, pull = dict(module.named_parameters()), torch.randn_like(ours)
    grads = [torch.autograd.grad(out, list(named.values()), pull) for out in (ours, theirs)]
    for k, a, b in zip(named, *grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)
        owner = module.get_submodule(k.rpartition(".")[0])
        before_a_norm = isinstance(owner, nn.Conv2d | nn.Linear) and k.startswith("base")
        cancelled = norm_layer == "batch" and before_a_norm and k.endswith("bias")
        assert (a.abs().max() < 1e-9) == cancelled, k
