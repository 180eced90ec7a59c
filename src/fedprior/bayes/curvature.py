"""The diagonal of a network's curvature at given weights, for a Laplace approximation.

Two estimates of the Hessian of the summed negative log-likelihood, both non-negative:

    Fisher   h_j = Σ_s (∂ log p(y_s | x_s) / ∂w_j)²                      the empirical Fisher
    GGN      h_j = Σ_s Σ_c a_c(x_s) (∂ f_c(x_s) / ∂w_j)²                 the expected Fisher, by `Likelihood.curvature`;
                                                                         for classes f_c = log p_c and a_c = p_c

Both need the square of every example's own gradient; squaring a batch's mean gradient would be wrong. Linear and
convolutional layers have closed forms for that, from the layer's inputs and the gradients by its outputs.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedprior.data.client import ClientData
from fedprior.errors import FedpriorError
from fedprior.models.layers import ChannelsLast
from fedprior.models.likelihood import Likelihood
from fedprior.models.task import Task
from fedprior.tree import Params

Estimate = Literal["fisher", "ggn"]
BATCH = 128
GRADIENT_SCALARS = 50_000_000  # limit on per-example gradients in memory at once


def diagonal(task: Task, w: Params, data: ClientData, estimate: Estimate = "fisher") -> Params:
    """h of each client at its weights over all its training examples, in evaluation mode: [C, ...] per parameter."""
    module = _plain(task.module)
    parameters = task.parameters(w)
    batch = max(1, min(BATCH, GRADIENT_SCALARS // task.size))
    clients = []
    for c in range(len(data)):
        own = {k: v[c].detach() for k, v in w.items()}
        x, y = data.client(c)
        total = {k: torch.zeros_like(own[k]) for k in parameters}
        cuts = list(range(batch, len(x), batch))
        for xs, ys in zip(x.tensor_split(cuts), y.tensor_split(cuts), strict=True):
            for k, h in _squared_gradients(task.likelihood, module, own, parameters, xs, ys, estimate).items():
                total[k] += h
        clients.append(total)
    return {k: torch.stack([total[k] for total in clients]) for k in parameters}


def _plain(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode for vmap, which supports neither memory formats nor fused recurrent kernels."""
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        raise FedpriorError("curvature is not available for recurrent models: choose a method without it.")
    copied = copy.deepcopy(module).eval()
    for name, layer in list(copied.named_modules()):
        if isinstance(layer, ChannelsLast):
            copied.set_submodule(name, nn.Identity())
    return copied


def _squared_gradients(
    likelihood: Likelihood, module: nn.Module, w: Params, parameters: Params, x: Tensor, y: Tensor, estimate: Estimate
) -> Params:
    """Σ_s (∂l_s/∂w)² over a batch, per parameter."""
    layers: dict[str, nn.Module] = {n: m for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    covered = {f"{n}.{p}" for n, m in layers.items() for p, _ in m.named_parameters(recurse=False)}
    if covered == set(parameters) and all(_closed_form(m) for m in layers.values()):
        found = _by_layers(likelihood, module, layers, w, x, y, estimate)
        if found is not None:
            return found
    return _by_vmap(likelihood, module, w, parameters, x, y, estimate)


def _closed_form(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return True


def _targets(likelihood: Likelihood, out: Tensor, y: Tensor, estimate: Estimate) -> list[tuple[Tensor, Tensor]]:
    """Functions [B] of the outputs [B, o] with weights [B], whose squared gradients add up to h."""
    if estimate == "ggn":
        return likelihood.curvature(out)
    log_p = likelihood.log_density(likelihood.predictive(out), y)
    return [(log_p, torch.ones_like(log_p))]


def _by_layers(
    likelihood: Likelihood,
    module: nn.Module,
    layers: dict[str, nn.Module],
    w: Params,
    x: Tensor,
    y: Tensor,
    estimate: Estimate,
) -> Params | None:
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    calls: list[tuple[str, int]] = []

    def watch(name: str) -> object:
        def hook(layer: nn.Module, given: tuple[Tensor], made: Tensor) -> Tensor:
            calls.append((name, given[0].dim()))
            inputs[name], outputs[name] = given[0].detach(), made
            return made.clone()  # an activation may work in place

        return layers[name].register_forward_hook(hook)

    handles = [watch(name) for name in layers]
    try:
        with torch.enable_grad():
            needing = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in w.items()}
            targets = _targets(likelihood, functional_call(module, needing, (x,)), y, estimate)
    finally:
        for handle in handles:
            handle.remove()  # type: ignore[attr-defined]
    if len(calls) > len(outputs) or any(isinstance(layers[n], nn.Linear) and dim != 2 for n, dim in calls):
        return None  # a layer used twice, or on sequences
    total: Params = {}
    for value, weight in targets:
        grads = torch.autograd.grad(value, list(outputs.values()), torch.ones_like(value), retain_graph=True)
        for name, g in zip(outputs, grads, strict=True):
            for suffix, h in _layer(layers[name], inputs[name], g, weight).items():
                key = f"{name}.{suffix}"
                total[key] = total.get(key, torch.zeros_like(h)) + h
    return {k: h.view_as(w[k]) for k, h in total.items()}


def _layer(layer: nn.Module, x: Tensor, g: Tensor, weight: Tensor) -> Params:
    """Σ_s weight_s (∂l_s/∂W)² and the same for the bias, from inputs x and output gradients g of one layer."""
    if isinstance(layer, nn.Linear):
        # ∂l_s/∂W = g_s x_sᵀ, so its square is (g_s²)(x_s²)ᵀ
        squared = g.square() * weight[:, None]
        found = {"weight": squared.T @ x.square()}
        return found if layer.bias is None else found | {"bias": squared.sum(0)}
    assert isinstance(layer, nn.Conv2d)
    assert not isinstance(layer.padding, str)
    patches = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # [B, in·k·k, L]
    per_example = g.flatten(2) @ patches.transpose(1, 2)  # [B, out, in·k·k]
    found = {"weight": torch.einsum("b,boi->oi", weight, per_example.square())}
    return found if layer.bias is None else found | {"bias": weight @ g.flatten(2).sum(2).square()}


def _by_vmap(
    likelihood: Likelihood, module: nn.Module, w: Params, parameters: Params, x: Tensor, y: Tensor, estimate: Estimate
) -> Params:
    """The same for any module, one example's gradient at a time under vmap."""
    rest = {k: v for k, v in w.items() if k not in parameters}
    own = {k: w[k] for k in parameters}
    count = likelihood.parameters if estimate == "ggn" else 1
    total = {k: torch.zeros_like(v) for k, v in own.items()}
    for c in range(count):

        def target(trained: Params, one: Tensor, label: Tensor, c: int = c) -> tuple[Tensor, Tensor]:
            out = functional_call(module, {**trained, **rest}, (one.unsqueeze(0),))
            value, weight = _targets(likelihood, out, label.unsqueeze(0), estimate)[c]
            return value.squeeze(0), weight.squeeze(0)

        grads, weight = vmap(grad(target, has_aux=True), in_dims=(None, 0, 0))(own, x, y)
        for k, g in grads.items():
            total[k] += torch.einsum("b,b...->...", weight, g.square())
    return total
