"""An input-convex network as the energy of a prior, which the server learns.

Amos, Xu & Kolter, ICML 2017. One network for every tensor, of the client's tensor θ and the centre's γ, both flat:

    f(θ, γ) = w₃' s(W₂ s(W₁ [θ; γ] + b₁) + b₂) + b₃,   s the softplus;  W₂, w₃ ≥ 0 make it convex in (θ, γ)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedprior.rng import Key
from fedprior.tree import Params

WIDTHS = (64, 32)
NON_NEGATIVE = ("/weight2", "/weight3")


def init(w: Params, key: Key) -> Params:
    """A network for every tensor of `w` (no client axis): uniform by fan-in as linear layers are, then clamped."""
    network: Params = {}
    for name in sorted(w):
        widths, gen = (2 * w[name].numel(), *WIDTHS, 1), key.fold(name).generator()
        for layer, (before, after) in enumerate(itertools.pairwise(widths), start=1):
            bound = 1 / math.sqrt(before)
            for part, shape in ((f"{name}/bias{layer}", (after,)), (f"{name}/weight{layer}", (after, before))):
                network[part] = torch.empty(shape, dtype=w[name].dtype).uniform_(-bound, bound, generator=gen)
    return {k: _clamped(k, network[k]) for k in sorted(network)}


def energy(network: Params, theta: Params, gamma: Params) -> Tensor:
    """Σ over tensors of f(θ, γ), [C]; all three have the client axis first."""
    return torch.stack([_output(network, k, theta[k].flatten(1), gamma[k].flatten(1)) for k in theta]).sum(0)


def _output(network: Params, name: str, theta: Tensor, gamma: Tensor) -> Tensor:
    z = torch.cat([theta, gamma.expand_as(theta)], 1)
    for layer in (1, 2, 3):
        weight, bias = network[f"{name}/weight{layer}"], network[f"{name}/bias{layer}"]
        z = torch.matmul(weight, z.unsqueeze(2)).squeeze(2) + bias
        z = F.softplus(z) if layer < 3 else z
    return z.squeeze(1)


def lowered(network: Params, mean_energy: Callable[[Params], Tensor], lr: float, steps: int) -> Params:
    """Plain gradient steps of the networks that lower the clients' mean energy as long as it is positive."""
    for _ in range(steps):
        with torch.enable_grad():
            leaves = {k: v.detach().requires_grad_() for k, v in network.items()}
            value = mean_energy(leaves)
            if value <= 0:
                break
            grads = torch.autograd.grad(value, list(leaves.values()))
        network = {k: _clamped(k, network[k] - lr * g) for k, g in zip(leaves, grads, strict=True)}
    return network


def _clamped(name: str, leaf: Tensor) -> Tensor:
    return leaf.clamp(min=0) if name.endswith(NON_NEGATIVE) else leaf
