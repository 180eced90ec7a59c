"""A client's local work as a careful person writes it, for competitors that leave it to their user."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = dict[str, Tensor]


def batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One shuffled pass over a client's examples, whole batches gathered at once."""
    for rows in torch.split(torch.randperm(len(y)), size):
        yield x[rows], y[rows]


def descend(module: nn.Module, x: Tensor, y: Tensor, lr: float, batch: int) -> None:
    """One epoch of gradient descent on a client's loss."""
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for inputs, labels in batches(x, y, batch):
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def descend_near(
    module: nn.Module, anchor: list[Tensor], pull: float, x: Tensor, y: Tensor, lr: float, batch: int
) -> None:
    """The same with a pull to `anchor`: Ditto's personal objective, F(v) + λ/2 ‖v - w‖²."""
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    parameters = list(module.parameters())
    for inputs, labels in batches(x, y, batch):
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        for parameter, centre in zip(parameters, anchor, strict=True):
            assert parameter.grad is not None
            parameter.grad.add_(parameter.detach() - centre, alpha=pull)
        optimizer.step()


def copied(module: nn.Module) -> State:
    """A network's weights, apart from the network."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
