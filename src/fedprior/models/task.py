"""A task is a model and a likelihood, as pure functions of explicit weights for a stack of clients.

Any `nn.Module` can be used. Its weights are kept in a dict, and the module provides only the computation: models that
can be stacked run as batched matrix products, all others one client at a time through a resident module whose parameter
slots are pointed at the given tensors (a dictionary assignment each, no copy, no `functional_call`).

Buffers (the running statistics of batch normalisation) are entries of the same dict. Their policy:
`averaged` – they train in place and travel with the weights, so a method that averages weights averages them too,
and a method that keeps weights personal keeps them personal; `frozen` – the module always runs in evaluation mode.
Integer counters are left out: nothing may average them.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections import OrderedDict
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedprior.data.client import Batch, ClientData
from fedprior.errors import FedpriorError, unknown
from fedprior.models.likelihood import Likelihood, linear_coefficients
from fedprior.models.stack import Forward, linear, stacked
from fedprior.rng import Key
from fedprior.tree import Params

EVALUATION_BATCH = 500


class Task:
    """A network and the likelihood of its outputs: what a method calls as `self.task`.

    Its functions take weights `w`, a dict of tensors [C, ...] by name. `run` makes the task from a `module` for single
    examples and the `likelihood` of its outputs. `head` names the last layer (by default the last `nn.Linear`);
    `buffers` says whether running statistics follow training; `dtype` is that of the weights, and with `mixed` training
    computes in bfloat16; `shape` is that of one example.
    """

    def __init__(
        self,
        module: nn.Module,
        likelihood: Likelihood,
        *,
        head: str | None = None,
        buffers: Literal["averaged", "frozen"] = "averaged",
        dtype: torch.dtype = torch.float32,
        mixed: bool = False,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        _check(module, head)
        if isinstance(module, nn.Linear):
            module = nn.Sequential(OrderedDict(head=module))
        self.module = copy.deepcopy(module).to(dtype)
        self.likelihood = likelihood
        self.dtype = dtype
        self.mixed = mixed  # training passes compute in bfloat16; weights, updates and predictions stay in `dtype`
        self.shape = shape  # of one example; None: unknown, which networks do not mind
        self.policy = buffers
        self.head = head or _last_linear(module)
        self.buffers = frozenset(k for k, b in module.named_buffers() if b.is_floating_point())
        _check_outputs(self.module.get_submodule(self.head), self.head, likelihood)

    def __getstate__(self) -> dict[str, object]:
        lazy = ("_stacked", "_stacked_base", "_full", "_base", "head_alone")  # closures and live modules: rebuilt
        return {k: v for k, v in vars(self).items() if k not in lazy}

    # Weights

    def init(self, key: Key) -> Params:
        """Fresh weights by each layer's own default initialisation, determined by the key alone."""
        module = copy.deepcopy(self.module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key.word >> 32)
            for layer in module.modules():
                reset = getattr(layer, "reset_parameters", getattr(layer, "_reset_parameters", None))
                if callable(reset):
                    reset()
        return self.weights(module)

    def weights(self, module: nn.Module) -> Params:
        """A module's tensors as a dict."""
        named = dict(module.named_parameters()) | {k: b for k, b in module.named_buffers() if k in self.buffers}
        return {k: named[k].detach().clone() for k in sorted(named)}

    def parameters(self, w: Params) -> Params:
        """The entries of `w` that have gradients: no buffers."""
        return {k: v for k, v in w.items() if k not in self.buffers}

    def split(self, w: Params) -> tuple[Params, Params]:
        """`w` as (base, head)."""
        ours = f"{self.head}."
        return (
            {k: v for k, v in w.items() if not k.startswith(ours)},
            {k: v for k, v in w.items() if k.startswith(ours)},
        )

    @cached_property
    def size(self) -> int:
        """Number of trainable scalars."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def inputs(self) -> int:
        """The numbers that an example consists of, for methods that ignore the network."""
        if self.shape is None:
            raise FedpriorError("the task does not know the shape of an example: pass Task(…, shape=federation.shape).")
        return math.prod(self.shape)

    @property
    def coefficients(self) -> int:
        """Those of a linear model."""
        return linear_coefficients(self.likelihood, self.inputs)

    @property
    def features_width(self) -> int:
        """The number of inputs of the head."""
        width: int = self.module.get_submodule(self.head).in_features  # type: ignore[assignment]
        return width

    @cached_property
    def head_alone(self) -> Task:
        """The head as a task of its own, with the same names: a linear model on features."""
        layer: nn.Module = self.module.get_submodule(self.head)
        for part in reversed(self.head.split(".")):
            layer = nn.Sequential(OrderedDict({part: layer}))
        shape = (self.features_width,)
        return Task(layer, self.likelihood, head=self.head, dtype=self.dtype, mixed=self.mixed, shape=shape)

    @torch.no_grad()
    def embedded(self, base: Params, data: ClientData) -> ClientData:
        """The data that `head_alone` sees: features of every example under a frozen base, in evaluation mode."""
        parts: list[list[Tensor]] = [[torch.empty(0, self.features_width, dtype=self.dtype)] for _ in data.size]
        for batch in data.batches(EVALUATION_BATCH):
            z = self.features(base, batch.x)
            for c, m in enumerate(batch.counts()):
                parts[c].append(z[c, :m])
        z = torch.cat([part for client in parts for part in client])
        y = torch.cat([data.client(c)[1] for c in range(len(data))])
        ends = list(itertools.accumulate(data.size, initial=0))
        return ClientData(z, y, tuple(ends[:-1]), data.size)

    @property
    def smallest_batch(self) -> int:
        """Smallest batch: batch normalisation needs at least two examples."""
        return 2 if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules()) else 1

    # Forward passes

    @cached_property
    def _stacked(self) -> Forward | None:
        return stacked(self.module)

    @cached_property
    def _stacked_base(self) -> Forward | None:
        return stacked(_without_head(self.module, self.head))

    @cached_property
    def _full(self) -> Resident:
        return Resident(self.module)

    @cached_property
    def _base(self) -> Resident:
        return Resident(_without_head(self.module, self.head))

    @property
    def stackable(self) -> bool:
        """Whether a stack of clients runs as one batched pass; the clients of other models train one by one."""
        return self._stacked is not None

    def outputs(self, w: Params, x: Tensor, shares: Tensor | None = None) -> Tensor:
        """The last layer under `w`: x [C, B, ...] -> [C, B, o]; in training if given `shares`, a batch's weights."""
        return self._run(self._stacked or self._full.each, w, x, shares)

    def _run(self, forward: Forward, w: Params, x: Tensor, shares: Tensor | None) -> Tensor:
        mixed = self.mixed and shares is not None
        with torch.autocast("cpu", torch.bfloat16) if mixed else contextlib.nullcontext():
            return forward(w, x, shares if self.policy == "averaged" else None).to(self.dtype)

    def features(self, w: Params, x: Tensor, shares: Tensor | None = None) -> Tensor:
        """The head's input under `w`: x [C, B, ...] -> [C, B, d]; in training if given `shares`, a batch's weights."""
        return self._run(self._stacked_base or self._base.each, w, x, shares)

    def head_outputs(self, w: Params, z: Tensor) -> Tensor:
        """Features `z` [C, B, d] -> outputs [C, B, o], under the head in `w`."""
        return linear(w, self.head, z)

    # Likelihood

    def losses(self, w: Params, batch: Batch, *, train: bool = True) -> Tensor:
        """-log p(y | x, w) of every example of `batch`, [C, B]; with `train`, in training mode."""
        return self.likelihood.losses(self.outputs(w, batch.x, batch.weight if train else None), batch.y)

    def nll(self, w: Params, batch: Batch, *, train: bool = True) -> Tensor:
        """Mean negative log-likelihood under `w` of each client's `batch`, [C]; with `train`, in training mode."""
        return (self.losses(w, batch, train=train) * batch.weight).sum(1)

    @torch.no_grad()
    def data_nll(self, w: Params, data: ClientData) -> Tensor:
        """Mean negative log-likelihood under `w` of all examples of `data`, in evaluation mode, [C] float64."""
        total = torch.zeros(len(data), dtype=torch.float64)
        for batch in data.batches(EVALUATION_BATCH):
            real = (batch.weight > 0).double()
            total += (self.losses(w, batch, train=False).double() * real).sum(1)
        return total / data.n

    @torch.no_grad()
    def predictive(self, w: Params, x: Tensor) -> Tensor:
        """p(y | x, w) in evaluation mode: x [C, N, ...] -> [C, N, P]."""
        return self.likelihood.predictive(self.outputs(w, x))

    def predictive_shared(self, w: Params, x: Tensor) -> Tensor:
        """The same for one network `w` without a client axis: x [N, ...] -> [N, P]."""
        return self.predictive({k: v.unsqueeze(0) for k, v in w.items()}, x.unsqueeze(0)).squeeze(0)


class Resident:
    """A module that runs its forward pass with given weights, one client at a time."""

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.deepcopy(module).requires_grad_(False)
        owners = dict(self.module.named_modules())
        self.slots: list[tuple[dict[str, Tensor | None], str, str]] = []
        named = [
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        ]
        first: dict[int, str] = {}
        for name, tensor in named:
            path, _, short = name.rpartition(".")
            slots = owners[path]._parameters if short in owners[path]._parameters else owners[path]._buffers
            self.slots.append((slots, short, first.setdefault(id(tensor), name)))  # tied weights have one name

    def each(self, w: Params, x: Tensor, shares: Tensor | None) -> Tensor:
        """Run every client's weights on its rows; in training, padded rows are left out and come back as zeros."""
        if self.module.training != (shares is not None):
            self.module.train(shares is not None)
        if len(x) == 1:
            out: Tensor = self._one({k: v.squeeze(0) for k, v in w.items()}, x.squeeze(0))
            return out.unsqueeze(0)
        rows = {k: v.unbind(0) for k, v in w.items()}
        counts = [x.shape[1]] * len(x) if shares is None else (shares > 0).sum(1).tolist()
        outs = []
        for c, m in enumerate(counts):
            out = self._one({k: v[c] for k, v in rows.items()}, x[c, :m])
            outs.append(F.pad(out, (0, 0, 0, x.shape[1] - m)))
        return torch.stack(outs)

    def _one(self, w: Params, x: Tensor) -> Tensor:
        for slots, short, name in self.slots:
            if name in w:
                slots[short] = w[name]
        out: Tensor = self.module(x)
        return out


def _check(module: nn.Module, head: str | None) -> None:
    """Refuse modules that are not a function of weights, inputs and keys."""
    for layer in module.modules():
        drops = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
        if drops or (isinstance(layer, nn.RNNBase) and layer.dropout > 0):
            raise FedpriorError(
                "the model has dropout, whose random numbers cannot be keyed by client and step: set its p to 0 "
                "and use train.weight_decay instead."
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
            raise FedpriorError(
                "the model has batch normalisation with momentum=None, whose statistics depend on a counter that is "
                "not averaged: give it a momentum."
            )
    names = [name for name, _ in module.named_modules()]
    if head is not None and head not in names:
        raise unknown("head", head, [name for name in names if name], "the model")


def _check_outputs(layer: nn.Module, name: str, likelihood: Likelihood) -> None:
    if isinstance(layer, nn.Linear) and not likelihood.fits(layer.out_features):
        raise FedpriorError(
            f"the model's last layer '{name}' has {layer.out_features} outputs, but the target needs "
            f"{likelihood.outputs}: change its width."
        )


def _last_linear(module: nn.Module) -> str:
    names: list[str] = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    if not names:
        raise FedpriorError("the model has no linear layer to serve as its head: end it with nn.Linear.")
    return names[-1]


def _without_head(module: nn.Module, head: str) -> nn.Module:
    """The model up to the input of its head."""
    base = copy.deepcopy(module)
    path, _, short = head.rpartition(".")
    setattr(base.get_submodule(path), short, nn.Identity())
    return base
