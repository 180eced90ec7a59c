"""The stacked forward pass: the same function as the module, client by client, and who has one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedprior.models.stack import StackedLinear, keep_factors, linear, stacked
from fedprior.tree import Params

CLIENTS = 3


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def modules(make: Callable[[], nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    return [make().double() for _ in range(CLIENTS)]


def weights(clients: list[nn.Module]) -> Params:
    return {
        k: torch.stack([dict(m.named_parameters())[k].detach() for m in clients])
        for k, _ in clients[0].named_parameters()
    }


def assert_stack_equals_modules(make: Callable[[], nn.Module], *shape: int) -> None:
    """Outputs and gradients by every weight, from different weights and inputs for every client."""
    clients = modules(make)
    forward = stacked(clients[0])
    assert forward is not None
    w = {k: v.requires_grad_() for k, v in weights(clients).items()}
    x = normal(1, CLIENTS, 5, *shape)
    out = forward(w, x)
    pull = normal(2, *out.shape)
    grads = dict(zip(w, torch.autograd.grad(out, list(w.values()), pull), strict=True))
    for c, module in enumerate(clients):
        expected = module(x[c])
        torch.testing.assert_close(out[c], expected, rtol=1e-12, atol=1e-12)
        expected.backward(pull[c])
        for k, p in module.named_parameters():
            torch.testing.assert_close(grads[k][c], p.grad, rtol=1e-12, atol=1e-12)


MAKERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 3)), (4,)),
    "no bias": (lambda: nn.Sequential(nn.Linear(4, 3, bias=False)), (4,)),
    "flatten": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (3, 2, 2)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (4,)),
    "nested": (
        lambda: nn.Sequential(
            OrderedDict(
                base=nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.GELU(), nn.Identity())), head=nn.Linear(6, 2)
            )
        ),
        (4,),
    ),
    "large": (lambda: nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3)), (100,)),
    "options": (
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.LeakyReLU(0.3), nn.ELU(2.0), nn.Softplus(3.0), nn.SiLU(), nn.Sigmoid()
        ),
        (4,),
    ),
}


@pytest.mark.parametrize(("make", "shape"), MAKERS.values(), ids=MAKERS.keys())
def test_a_stack_is_the_module_of_each_client(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    assert_stack_equals_modules(make, *shape)


def test_an_activation_may_be_used_twice() -> None:
    def make() -> nn.Module:
        relu = nn.ReLU()
        return nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 5), relu, nn.Linear(5, 3))

    assert_stack_equals_modules(make, 4)


def test_a_layer_may_be_used_twice() -> None:
    def make() -> nn.Module:
        layer = nn.Linear(4, 4)
        return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))

    clients = modules(make)
    forward = stacked(clients[0])
    if forward is None:
        return  # runs client by client
    x = normal(1, CLIENTS, 5, 4)
    out = forward(weights(clients), x)
    for c, module in enumerate(clients):
        torch.testing.assert_close(out[c], module(x[c]), rtol=1e-12, atol=1e-12)


class Doubled(nn.Linear):
    """A layer of the user's that is a Linear by inheritance only."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Skip(nn.Sequential):
    """A container of the user's that is a Sequential by inheritance only."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return input + out


def test_a_subclass_of_linear_keeps_its_forward() -> None:
    forward = stacked(nn.Sequential(Doubled(4, 4), nn.Linear(4, 3)))
    if forward is not None:
        assert_stack_equals_modules(lambda: nn.Sequential(Doubled(4, 4), nn.Linear(4, 3)), 4)


def test_a_parametrised_layer_has_no_stacked_form() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    assert stacked(nn.Sequential(layer, nn.Linear(4, 3))) is None


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 1, 1),
        nn.BatchNorm1d(3),
        nn.GroupNorm(1, 3),
        nn.LayerNorm(3),
        nn.Flatten(2),
        nn.PReLU(),
        Skip(nn.Linear(3, 3)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_any_other_layer_has_none(layer: nn.Module) -> None:
    """Alone or deep inside."""
    assert stacked(layer) is None
    assert stacked(nn.Sequential(nn.Linear(3, 3), nn.Sequential(layer))) is None


@pytest.mark.parametrize(
    "wanted", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)]
)
def test_stacked_linear_gradients(wanted: tuple[bool, bool, bool]) -> None:
    """∂x, ∂W and ∂b against finite differences, all or each alone; second derivatives too."""
    parts = (normal(0, 2, 4, 3), normal(1, 2, 5, 3), normal(2, 2, 5))
    inputs = [part.requires_grad_(want) for part, want in zip(parts, wanted, strict=True)]
    layer: Callable[..., Tensor] = lambda *parts: StackedLinear.apply(*parts, None)  # type: ignore[no-untyped-call]  # noqa: E731
    assert torch.autograd.gradcheck(layer, inputs)
    assert torch.autograd.gradgradcheck(layer, inputs)


def test_stacked_linear_by_hand() -> None:
    """Client 0: (1, 2)·(3, 4) + 1 = 12; client 1: (5, 6)·(1, 0) + 2 = 7."""
    x, weight = torch.tensor([[[1.0, 2.0]], [[5.0, 6.0]]]), torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]]])
    bias = torch.tensor([[1.0], [2.0]])
    out = StackedLinear.apply(x, weight, bias, None)  # type: ignore[no-untyped-call]
    assert out.flatten().tolist() == [12.0, 7.0]


def test_the_gradient_of_a_weight_is_contiguous() -> None:
    """What StackedLinear is for."""
    weight = normal(1, 2, 100, 90).requires_grad_()
    out = linear({"a.weight": weight, "a.bias": normal(2, 2, 100)}, "a", normal(0, 2, 7, 90))
    (grad,) = torch.autograd.grad(out.sum(), weight)
    assert grad.is_contiguous()


def test_a_leaf_that_keeps_factors_gets_no_gradient_of_its_own() -> None:
    """The two factors multiply out to ∂W; bias and input have theirs as ever."""
    x, weight, bias = normal(0, 2, 7, 4).requires_grad_(), normal(1, 2, 3, 4), normal(2, 2, 3).requires_grad_()
    dense, leaf = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    expected = torch.autograd.grad(linear({"a.weight": dense, "a.bias": bias}, "a", x).square().sum(), [dense, bias, x])
    kept = keep_factors(leaf)
    value = linear({"a.weight": leaf, "a.bias": bias}, "a", x).square().sum()
    none, by_bias, by_x = torch.autograd.grad(value, [leaf, bias, x], allow_unused=True)
    assert none is None
    torch.testing.assert_close(by_bias, expected[1])
    torch.testing.assert_close(by_x, expected[2])
    ((g, seen),) = kept.products
    torch.testing.assert_close(g.transpose(1, 2) @ seen, expected[0])


def test_a_weight_used_twice_keeps_two_factors() -> None:
    leaf, bias = normal(1, 2, 4, 4).requires_grad_(), normal(2, 2, 4)
    kept = keep_factors(leaf)
    w = {"a.weight": leaf, "a.bias": bias}
    torch.autograd.grad(linear(w, "a", linear(w, "a", normal(0, 2, 7, 4))).sum(), leaf, allow_unused=True)
    assert len(kept.products) == 2
