"""A network of one's own is tried on blank examples before it trains: what it takes, and what it gives."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedprior.errors import FedpriorError, cut
from fedprior.models.likelihood import Likelihood

EXAMPLES = 2


def try_network(module: nn.Module, shape: tuple[int, ...], likelihood: Likelihood) -> None:
    """Refuse a network that cannot take examples of this shape, or whose outputs do not fit the target."""
    trial = copy.deepcopy(module).eval()
    dtype = next((p.dtype for p in trial.parameters() if p.is_floating_point()), torch.float32)
    try:
        with torch.no_grad():
            out = trial(torch.zeros(EXAMPLES, *shape, dtype=dtype))
    except FedpriorError:
        raise
    except Exception as error:  # whatever its author wrote
        why = cut((str(error).strip() or type(error).__name__).splitlines()[0], 160).rstrip(".")
        told = f"the network cannot take a batch of examples, whose shape is [n, {_listed(shape)}] ({why})"
        raise FedpriorError(f"{told}: change its inputs.") from None
    if not isinstance(out, Tensor):
        raise FedpriorError(
            f"the network gives a {type(out).__name__} and not one tensor: return the last layer alone."
        )
    if out.dim() != 2 or len(out) != EXAMPLES or not likelihood.fits(out.shape[1]):
        raise FedpriorError(
            f"the network gives outputs of shape [{_listed(('n', *out.shape[1:]))}] for n examples, but the target "
            f"needs [n, {likelihood.outputs}]: change its last layer."
        )


def _listed(shape: tuple[object, ...]) -> str:
    return ", ".join(map(str, shape))
