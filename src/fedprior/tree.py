"""Trees of tensors: the only shape that state and messages may have.

A tree is a tensor, a dict of trees with string keys in sorted order, or a NamedTuple of trees. Nothing else: no
`None`, no Python numbers, no modules. So every tree can be stacked, sliced, counted, written to a file and read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""A model's named tensors, each with the client axis first when it belongs to a stack."""

T = TypeVar("T")

AVERAGED_SCALARS = 400_000  # converted to float64 at a time: they stay in the cache


def map(f: Callable[..., Tensor], tree: T, *rest: Any) -> T:
    """Apply `f` leaf by leaf to `tree` and the trees `rest` of the same structure: a tree of the results."""
    if isinstance(tree, Tensor):
        return f(tree, *rest)  # type: ignore[return-value]
    if isinstance(tree, dict):
        return {k: map(f, v, *(r[k] for r in rest)) for k, v in tree.items()}  # type: ignore[return-value]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map(f, *fields) for fields in zip(tree, *rest, strict=True)))
    raise TypeError(f"{type(tree).__name__} is not a tree: only tensors, dicts and NamedTuples are")


def items(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The leaves of `tree` with their paths, such as `theta/base.0.weight`, in structure order; `path` is a prefix."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for k, v in tree.items():
            yield from items(v, f"{path}/{k}" if path else k)
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        for k, v in zip(tree._fields, tree, strict=True):
            yield from items(v, f"{path}/{k}" if path else k)
    else:
        raise TypeError(f"{type(tree).__name__} at '{path}' is not a tree: only tensors, dicts and NamedTuples are")


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in structure order."""
    return [leaf for _, leaf in items(tree)]


def flatten(tree: Any) -> dict[str, Tensor]:
    """`tree` as path -> tensor: what a file or a message holds. `unflatten` is the inverse."""
    return dict(items(tree))


def unflatten(kind: Any, flat: Mapping[str, Tensor], path: str = "") -> Any:
    """Rebuild a tree of type `kind` (a NamedTuple class, `Params` or `Tensor`) from its `flat` form, below `path`."""
    if kind is Tensor:
        return flat[path]
    prefix = f"{path}/" if path else ""
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return kind(*(unflatten(hints[name], flat, prefix + name) for name in kind._fields))
    return {k.removeprefix(prefix): flat[k] for k in sorted(flat) if k.startswith(prefix)}


def index(tree: T, rows: Tensor | slice | int | Sequence[int]) -> T:
    """The `rows` of the client axis of `tree`: a slice gives views, indices give copies."""
    return map(lambda leaf: leaf[rows], tree)


def cat(trees: Sequence[T]) -> T:
    """Join the stacks `trees` along the client axis."""
    first, *rest = trees
    return map(lambda *leaf: torch.cat(leaf), first, *rest) if rest else first


def expand(tree: T, clients: int) -> T:
    """One shared `tree` as a stack of `clients`, without a copy: all see the same memory."""
    return map(lambda leaf: leaf.expand(clients, *leaf.shape), tree)


def clone(tree: T) -> T:
    """A copy of a tree with its own memory."""
    return map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), tree)


def zeros_like(tree: T) -> T:
    """Zeros in the shapes of `tree`."""
    return map(torch.zeros_like, tree)


def sqdist(a: Any, b: Any) -> Tensor:
    """‖a - b‖² of each client's whole tree, [C]: one node in the graph, since every Gaussian prior needs it."""
    (left, right), names = (leaves(a), leaves(b)), ([k for k, _ in items(a)], [k for k, _ in items(b)])
    if names[0] != names[1]:
        raise ValueError("sqdist needs two trees with the same leaves in the same order")
    kept = [getattr(leaf, "pulls", None) for leaf in left]
    distance: Tensor = _SquaredDistance.apply(kept, *left, *right)  # type: ignore[no-untyped-call]
    return distance


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kept: list[list[tuple[Tensor, Tensor]] | None], *both: Tensor) -> Tensor:
        ctx.save_for_backward(*both)
        ctx.kept = kept
        ctx.gaps = torch._foreach_sub(both[: len(kept)], both[len(kept) :])
        flat = [gap.reshape(len(gap), -1) for gap in ctx.gaps]
        return torch.stack([torch.linalg.vector_norm(leaf, dim=1) for leaf in flat]).square().sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        both, gaps = ctx.saved_tensors, ctx.gaps
        half = len(both) // 2
        if torch.is_grad_enabled():  # second derivatives are wanted: the gaps must be in the graph
            gaps = [a - b for a, b in zip(both[:half], both[half:], strict=True)]
        ours: list[Tensor | None] = []
        twice = 2 * grad
        for gap, pulls, need in zip(gaps, ctx.kept, ctx.needs_input_grad[1:], strict=False):
            if need and pulls is not None:  # left to the optimiser, see `models.stack.keep_factors`
                pulls.append((twice, gap))
            ours.append(_scaled(twice, gap) if need and pulls is None else None)
        needs = ctx.needs_input_grad[1 + half :]
        theirs = [_scaled(-twice, gap) if need else None for gap, need in zip(gaps, needs, strict=True)]
        return (None, *ours, *theirs)


def _scaled(scale: Tensor, leaf: Tensor) -> Tensor:
    return leaf * scale.view(-1, *[1] * (leaf.dim() - 1))


def average(tree: T, weights: Tensor) -> T:
    """Weighted mean of `tree` over the client axis, in float64 and cast back; `weights` [C] need not sum to 1."""
    share = weights.double() / weights.double().sum()

    def mean(leaf: Tensor) -> Tensor:
        flat = leaf.reshape(len(leaf), -1)
        total = torch.zeros(flat.shape[1], dtype=torch.float64)
        rows = max(4, AVERAGED_SCALARS // max(1, flat.shape[1]))
        for first in range(0, len(flat), rows):
            block = slice(first, first + rows)
            total.addmv_(flat[block].double().T, share[block])
        return total.view(leaf.shape[1:]).to(leaf.dtype)

    return map(mean, tree)


def nbytes(tree: Any) -> int:
    """Bytes of all leaves of `tree`, as a message would carry them."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))
