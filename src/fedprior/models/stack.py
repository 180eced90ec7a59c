"""One forward pass for a whole stack of clients, for models made of layers that can be stacked.

Linear layers become batched matrix products, norms of flat features reduce over their own axis; element-wise layers
need no change. A model with any other layer (such as a convolution) has no stacked form, and its clients
run one after another: grouped convolutions are slower than a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedprior.optim import Factors, Product
from fedprior.tree import Params

ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Identity)

Forward = Callable[[Params, Tensor, Tensor | None], Tensor]
"""(weights [C, ...], inputs [C, B, ...], in training each example's share [C, B] of its batch, 0 for padding) ->
outputs [C, B, ...]."""


def keep_factors(weight: Tensor) -> Factors:
    """Let stacked linear layers and squared distances store this leaf's gradient as factors in the returned list.

    A batch's weight gradient is a product gᵀ x of two thin matrices, and a Gaussian prior's is a multiple of w - μ.
    Gradient descent can add both to the weights directly, without writing and reading a tensor as large as the
    weights.
    """
    found = Factors([], [])
    weight.products, weight.pulls = found  # type: ignore[attr-defined]  # on the tensor: it survives every dict
    return found


class StackedLinear(torch.autograd.Function):
    """y = x Wᵀ + b per client. Its backward pass keeps ∂W contiguous, or leaves it as factors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, products: list[Product] | None) -> Tensor:
        """x [C, B, in], weight [C, out, in], bias [C, out] -> [C, B, out]."""
        ctx.save_for_backward(x, weight)
        ctx.products = products
        if weight.shape[1] < x.shape[1]:  # W xᵀ takes half the time of x Wᵀ where outputs are fewer than examples
            return torch.baddbmm(bias.unsqueeze(2), weight, x.transpose(1, 2)).transpose(1, 2)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """∂x = g W, ∂W = gᵀ x, ∂b = Σ g."""
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        if needs_weight and ctx.products is not None:
            ctx.products.append((grad, x))
            needs_weight = False
        return (
            _pulled(grad, weight, x) if needs_x else None,
            grad.transpose(1, 2) @ x if needs_weight else None,
            grad.sum(1) if needs_bias else None,
            None,
        )


def _pulled(grad: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """g W [C, B, in] in the layout of x: the activation before multiplies the two, ten times as fast if they match."""
    if x.stride(1) == 1 and not x.is_contiguous():
        return (weight.transpose(1, 2) @ grad.transpose(1, 2)).transpose(1, 2)
    return grad @ weight


def linear(w: Params, name: str, x: Tensor) -> Tensor:
    """The stacked linear layer `name`: x [C, B, ..., in] -> [C, B, ..., out]."""
    if x.dim() > 3:
        return linear(w, name, x.flatten(1, -2)).view(*x.shape[:-1], -1)
    weight = w[f"{name}.weight"]
    bias = w.get(f"{name}.bias")
    if bias is None:
        return x @ weight.transpose(1, 2)
    if torch.is_autocast_enabled("cpu"):
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
    products = getattr(weight, "products", None)
    out: Tensor = StackedLinear.apply(x, weight, bias, products)  # type: ignore[no-untyped-call]
    return out


def _affine(w: Params, name: str, x: Tensor) -> Tensor:
    """What a norm does last: x [C, B, F] times its weight plus its bias, where it has them."""
    weight, bias = w.get(f"{name}.weight"), w.get(f"{name}.bias")
    x = x if weight is None else x * weight.unsqueeze(1)
    return x if bias is None else x + bias.unsqueeze(1)


def _batch_norm(layer: nn.BatchNorm1d, name: str) -> Forward:
    """Batch normalisation of [C, B, F]; in training it writes to the running statistics in `w`."""
    momentum, statistics = layer.momentum or 0.0, (f"{name}.running_mean", f"{name}.running_var")

    def forward(w: Params, x: Tensor, shares: Tensor | None) -> Tensor:
        mean, variance = (w[k].unsqueeze(1) for k in statistics)  # [C, 1, F]
        x = x.to(mean.dtype)
        if shares is not None:
            running, share = (mean, variance), shares.unsqueeze(1)  # [C, 1, B]
            with torch.autocast("cpu", enabled=False):  # statistics in full, where training passes are in bfloat16
                mean = share @ x
                variance = share @ (x - mean).square()
            count = (share > 0).sum(2, keepdim=True)
            with torch.no_grad():
                running[0].lerp_(mean, momentum)
                running[1].lerp_(variance * count / (count - 1), momentum)
        return _affine(w, name, (x - mean) * (variance + layer.eps).rsqrt())

    return forward


def _group_norm(layer: nn.GroupNorm, name: str) -> Forward:
    def forward(w: Params, x: Tensor, shares: Tensor | None) -> Tensor:
        normed = F.group_norm(x.flatten(0, 1), layer.num_groups, eps=layer.eps)
        return _affine(w, name, normed.view_as(x))

    return forward


def _norm(module: nn.Module, name: str) -> Forward | None:
    """The norms of flat features [C, B, F]."""
    if type(module) is nn.BatchNorm1d and module.track_running_stats:
        return _batch_norm(module, name)
    if type(module) is nn.GroupNorm:
        return _group_norm(module, name)
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        return lambda w, x, _: _affine(w, name, F.layer_norm(x, module.normalized_shape, eps=module.eps))
    return None


def stacked(module: nn.Module, name: str = "", *, flat: bool = False) -> Forward | None:
    """The stacked forward pass of a module, or None if it has none; `flat` if its input is known to be [C, B, F]."""
    if type(module) is nn.Linear:
        return lambda w, x, _: linear(w, name, x)
    if isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
        return lambda w, x, _: x.flatten(2)
    if isinstance(module, ELEMENTWISE):
        return lambda w, x, _: module(x)
    if type(module).forward is nn.Sequential.forward:
        return _sequential(module, name, flat)
    return _norm(module, name) if flat else None


def _sequential(module: nn.Module, name: str, flat: bool) -> Forward | None:
    if len(list(module.parameters())) < len(list(module.named_parameters(remove_duplicate=False))):
        return None  # layers that share weights
    children = [(key, child) for key, child in module._modules.items() if child is not None]  # repeated ones too
    layers: list[Forward] = []
    for key, child in children:
        layer = stacked(child, f"{name}.{key}" if name else key, flat=flat)
        if layer is None:
            return None
        layers.append(layer)
        flat = flat or any(isinstance(part, nn.Flatten) for part in child.modules())

    def chain(w: Params, x: Tensor, shares: Tensor | None) -> Tensor:
        for layer in layers:
            x = layer(w, x, shares)
        return x

    return chain
