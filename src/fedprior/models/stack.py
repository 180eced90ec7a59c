"""One forward pass for a whole stack of clients, for models made of layers that can be stacked.

Linear layers become batched matrix products; what acts element by element needs no change. A model with any other
layer (a convolution, a norm) has no stacked form, and its clients run one after another: grouped convolutions are
slower than a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedprior.optim import Factors, Product
from fedprior.tree import Params

ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Identity)

Forward = Callable[[Params, Tensor], Tensor]
"""(weights [C, ...], inputs [C, B, ...]) -> outputs [C, B, ...]."""


def keep_factors(weight: Tensor) -> Factors:
    """Let stacked linear layers and squared distances leave their share of this leaf's gradient where it is returned.

    A batch's weight gradient is a product gᵀ x of two thin matrices, and a Gaussian prior's is a multiple of w - μ.
    Gradient descent can add both to the weights as it computes them, and then a tensor as large as the weights is
    neither written nor read.
    """
    found = Factors([], [])
    weight.products, weight.pulls = found  # type: ignore[attr-defined]  # on the tensor: it survives every dict
    return found


class StackedLinear(torch.autograd.Function):
    """y = x Wᵀ + b per client. Its own backward keeps ∂W contiguous, or leaves it in factors."""

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
            grad @ weight if needs_x else None,
            grad.transpose(1, 2) @ x if needs_weight else None,
            grad.sum(1) if needs_bias else None,
            None,
        )


def linear(w: Params, name: str, x: Tensor) -> Tensor:
    """The stacked linear layer `name`: x [C, B, in] -> [C, B, out]."""
    weight = w[f"{name}.weight"]
    bias = w.get(f"{name}.bias")
    if bias is None:
        return x @ weight.transpose(1, 2)
    if torch.is_autocast_enabled("cpu"):
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
    products = getattr(weight, "products", None)
    out: Tensor = StackedLinear.apply(x, weight, bias, products)  # type: ignore[no-untyped-call]
    return out


def stacked(module: nn.Module, name: str = "") -> Forward | None:
    """The stacked forward pass of a module, or None when it has none."""
    if type(module) is nn.Linear:
        return lambda w, x: linear(w, name, x)
    if isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
        return lambda w, x: x.flatten(2)
    if isinstance(module, ELEMENTWISE):
        return lambda w, x: module(x)
    if type(module).forward is nn.Sequential.forward:
        return _sequential(module, name)
    return None


def _sequential(module: nn.Module, name: str) -> Forward | None:
    if len(list(module.parameters())) < len(list(module.named_parameters(remove_duplicate=False))):
        return None  # layers that share weights
    children = [(key, child) for key, child in module._modules.items() if child is not None]  # repeated ones too
    parts = [stacked(child, f"{name}.{key}" if name else key) for key, child in children]
    layers = [part for part in parts if part is not None]
    if len(layers) < len(parts):
        return None

    def chain(w: Params, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(w, x)
        return x

    return chain
