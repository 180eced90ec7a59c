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
        k: torch.stack([m.state_dict()[k] for m in clients])
        for k, v in clients[0].state_dict().items()
        if v.is_floating_point()
    }


def assert_stack_equals_modules(make: Callable[[], nn.Module], *shape: int, counts: list[int] | None = None) -> None:
    """Outputs, gradients by every weight and running statistics, all different for every client.

    With `counts` in training mode, where only so many of a client's five examples are real.
    """
    clients = [module.train(counts is not None) for module in modules(make)]
    forward = stacked(clients[0])
    assert forward is not None
    w = weights(clients)
    names = [k for k, _ in clients[0].named_parameters()]
    for k in names:
        w[k].requires_grad_()
    x = normal(1, CLIENTS, 5, *shape)
    real = torch.arange(5) < torch.tensor(counts or [5] * CLIENTS).unsqueeze(1)
    out = forward(w, x, real / real.sum(1, keepdim=True).double() if counts else None)
    pull = normal(2, *out.shape) * real.unsqueeze(2)
    grads = dict(zip(names, torch.autograd.grad(out, [w[k] for k in names], pull), strict=True))
    for c, module in enumerate(clients):
        expected = module(x[c, real[c]])
        torch.testing.assert_close(out[c, real[c]], expected, rtol=1e-12, atol=1e-12)
        expected.backward(pull[c, real[c]])
        for k, p in module.named_parameters():
            torch.testing.assert_close(grads[k][c], p.grad, rtol=1e-10, atol=1e-12)
        for k, b in module.named_buffers():
            if k in w:
                torch.testing.assert_close(w[k][c], b, rtol=1e-12, atol=1e-12)


MAKERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 3)), (4,)),
    "sequences": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(6, 3)), (2, 4)),
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


def normed(*norms: nn.Module) -> nn.Module:
    """Flat features and norms of them, whose weights and statistics have moved from where they start."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Sequential(*norms, nn.Tanh()), nn.Linear(6, 3))
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(torch.rand_like(tensor))
    return module


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: normed(nn.BatchNorm1d(6)),
    "batch, other options": lambda: normed(nn.BatchNorm1d(6, eps=0.1, momentum=0.4)),
    "batch, no affine": lambda: normed(nn.BatchNorm1d(6, affine=False)),
    "group": lambda: normed(nn.GroupNorm(2, 6)),
    "group, no affine": lambda: normed(nn.GroupNorm(3, 6, eps=0.1, affine=False)),
    "layer": lambda: normed(nn.LayerNorm(6)),
    "layer, no bias": lambda: normed(nn.LayerNorm(6, eps=0.1, bias=False)),
    "all": lambda: normed(nn.BatchNorm1d(6), nn.GroupNorm(2, 6), nn.LayerNorm(6)),
}


@pytest.mark.parametrize("counts", [None, [5, 5, 5], [5, 2, 3]], ids=["evaluation", "full", "padded"])
@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS.keys())
def test_norms_of_flat_features(make: Callable[[], nn.Module], counts: list[int] | None) -> None:
    """In training each client has the statistics of its own real examples, and its running ones move."""
    assert_stack_equals_modules(make, 4, counts=counts)


def test_batch_norm_by_hand() -> None:
    """Client 0 has examples 1 and 3 (mean 2, variance 1, unbiased 2), client 1 has 5, 7 and 9 (7, 8/3, 4).

    Normalised: -1 and 1; -√1.5, 0 and √1.5. From 0 and 1 with momentum 0.5 the running statistics become 1 and 1.5;
    3.5 and 2.5.
    """
    forward = stacked(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1, eps=0.0, momentum=0.5)))
    assert forward is not None
    ones, zeros = torch.ones(2, 1), torch.zeros(2, 1)
    w = {"1.weight": ones, "1.bias": zeros, "1.running_mean": zeros.clone(), "1.running_var": ones.clone()}
    x = torch.tensor([[[1.0], [3.0], [100.0]], [[5.0], [7.0], [9.0]]])
    out = forward(w, x, torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]))
    torch.testing.assert_close(out[0, :2].flatten(), torch.tensor([-1.0, 1.0]))
    torch.testing.assert_close(out[1].flatten(), torch.tensor([-(1.5**0.5), 0.0, 1.5**0.5]))
    torch.testing.assert_close(w["1.running_mean"].flatten(), torch.tensor([1.0, 3.5]))
    torch.testing.assert_close(w["1.running_var"].flatten(), torch.tensor([1.5, 2.5]))


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(6, track_running_stats=False), nn.BatchNorm2d(6), nn.LayerNorm((1, 6)), nn.InstanceNorm1d(6)],
    ids=["no running statistics", "of images", "of two axes", "instance"],
)
def test_other_norms_have_none(layer: nn.Module) -> None:
    assert stacked(nn.Sequential(nn.Flatten(), nn.Linear(4, 6), layer)) is None


def test_norms_of_what_may_not_be_flat_have_none() -> None:
    assert stacked(nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6))) is None
    assert stacked(nn.Sequential(nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(6, 3))) is None
    assert stacked(nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(4, 6)), nn.GroupNorm(2, 6))) is not None


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
    out = forward(weights(clients), x, None)
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


def test_the_gradient_of_an_input_has_its_layout() -> None:
    """Two outputs for seven examples are stored outputs first; the layer after them must answer in kind."""
    w = {
        "a.weight": normal(1, 2, 2, 9),
        "a.bias": normal(2, 2, 2),
        "b.weight": normal(3, 2, 3, 2),
        "b.bias": normal(4, 2, 3),
    }
    hidden = linear(w, "a", normal(0, 2, 7, 9)).detach().requires_grad_()
    assert not hidden.is_contiguous()
    coefficients = normal(5, 2, 7, 3)
    (grad,) = torch.autograd.grad((linear(w, "b", hidden) * coefficients).sum(), hidden)
    assert grad.stride() == hidden.stride()
    torch.testing.assert_close(grad, coefficients @ w["b.weight"])


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
