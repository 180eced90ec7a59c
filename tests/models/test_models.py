"""Models by name: parameter counts of the papers, and the same function as the textbook writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedprior.errors import FedpriorError
from fedprior.models import MODELS, build
from fedprior.models.layers import norm
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task

SHAPES: dict[str, tuple[int, ...]] = {
    "softmax": (1, 28, 28),
    "mlp": (1, 28, 28),
    "lenet5": (1, 28, 28),
    "cnn_cifar": (3, 32, 32),
    "cnn_emnist": (1, 28, 28),
    "cnn_cifar_lenet": (3, 32, 32),
}


def count(module: nn.Module, part: str = "") -> int:
    return sum(p.numel() for p in module.get_submodule(part).parameters())


def refusal(name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int = 10) -> str:
    with pytest.raises(FedpriorError) as error:
        build(name, options, shape, classes)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("name", "options", "shape", "classes", "expected"),
    [
        # 784 · 10 + 10
        ("softmax", {}, (1, 28, 28), 10, 7_850),
        # 784 · 100 + 100 + 100 · 10 + 10
        ("mlp", {}, (784,), 10, 79_510),
        ("mlp", {"act": "leaky_relu", "slope": 0.1}, (1, 28, 28), 10, 79_510),
        # 30 · 32 + 32 + 32 · 16 + 16 + 16 + 1
        ("mlp", {"hidden": [32, 16], "single_logit": True}, (30,), 2, 1_537),
        # and a scale and a shift for each of 48 units
        ("mlp", {"hidden": [32, 16], "single_logit": True, "norm_layer": "batch"}, (30,), 2, 1_537 + 96),
        # 25·6 + 6 + 150·16 + 16 + 400·120 + 120 + 120·84 + 84 + 84·10 + 10
        ("lenet5", {}, (1, 28, 28), 10, 61_706),
        # two more input channels: 50 · 6
        ("lenet5", {"padding": 0}, (3, 32, 32), 10, 62_006),
        ("cnn_cifar", {}, (3, 32, 32), 10, 106_400 + 1_290),
        ("cnn_cifar", {}, (3, 32, 32), 100, 106_400 + 12_900),
        ("cnn_emnist", {}, (1, 28, 28), 62, 115_776 + 7_998),
        ("cnn_cifar_lenet", {}, (3, 32, 32), 10, 120_332 + 850),
    ],
)
def test_number_of_parameters(
    name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int, expected: int
) -> None:
    module = build(name, options, shape, classes)
    assert count(module) == Task(module, Categorical(classes)).size == expected
    outputs = 1 if options.get("single_logit") else classes
    assert module(torch.zeros(2, *shape)).shape == (2, outputs)


@pytest.mark.parametrize(
    ("name", "classes", "base", "head"),
    [
        # 75·16 + 16 + 400·32 + 32 + 288·64 + 64 + 576·128 + 128; (128 + 1) · classes
        ("cnn_cifar", 10, 106_400, 1_290),
        ("cnn_cifar", 100, 106_400, 12_900),
        # 25·16 + 16 + 400·32 + 32 + 800·128 + 128
        ("cnn_emnist", 62, 115_776, 7_998),
        # 75·16 + 16 + 400·32 + 32 + 800·120 + 120 + 120·84 + 84; (84 + 1) · 10
        ("cnn_cifar_lenet", 10, 120_332, 850),
    ],
)
def test_parameters_of_base_and_head(name: str, classes: int, base: int, head: int) -> None:
    module = build(name, {}, SHAPES[name], classes)
    assert (count(module, "base"), count(module, "head")) == (base, head)


# The same function as in the papers


def normalised(w: Mapping[str, Tensor], layer: str, x: Tensor, norm_layer: str) -> Tensor:
    """Groups of 8 channels where that divides their number, else one group; batch statistics in training."""
    if norm_layer == "none":
        return x
    scale, shift = w[f"{layer}.weight"], w[f"{layer}.bias"]
    if norm_layer == "batch":
        return F.batch_norm(x, None, None, scale, shift, training=True)
    return F.group_norm(x, x.shape[1] // 8 if x.shape[1] % 8 == 0 else 1, scale, shift)


def textbook(
    module: nn.Module, x: Tensor, paddings: list[int], act: Callable[[Tensor], Tensor], norm_layer: str = "none"
) -> Tensor:
    """conv → norm → activation → 2×2 max-pool, then linear layers with activations, then the head."""
    w = dict(module.named_parameters())
    layers = list(dict.fromkeys(k.rpartition(".")[0] for k in w if k.startswith("base")))
    convs = [k for k in layers if w[f"{k}.weight"].dim() == 4]
    norms = [k for k in layers if w[f"{k}.weight"].dim() == 1] or convs
    for conv, norm_name, padding in zip(convs, norms, paddings, strict=True):
        x = F.conv2d(x, w[f"{conv}.weight"], w[f"{conv}.bias"], padding=padding)
        x = F.max_pool2d(act(normalised(w, norm_name, x, norm_layer)), 2)
    x = x.flatten(1)
    for k in layers:
        if w[f"{k}.weight"].dim() == 2:
            x = act(F.linear(x, w[f"{k}.weight"], w[f"{k}.bias"]))
    return F.linear(x, w["head.weight"], w["head.bias"])


@pytest.mark.parametrize("norm_layer", ["none", "group", "batch"])
@pytest.mark.parametrize(
    ("name", "paddings", "act"),
    [
        ("lenet5", [2, 0], F.relu),
        ("cnn_cifar", [0, 1, 1], F.leaky_relu),
        ("cnn_emnist", [0, 1], F.leaky_relu),
        ("cnn_cifar_lenet", [0, 0], F.relu),
    ],
)
def test_convolutional_networks_are_those_of_the_papers(
    name: str, paddings: list[int], act: Callable[[Tensor], Tensor], norm_layer: str
) -> None:
    """Pooling before the activation and channels-last memory change the speed and no number: value and gradient."""
    torch.manual_seed(0)
    module = build(name, {"norm_layer": norm_layer}, SHAPES[name], 10).double()
    x = torch.randn(4, *SHAPES[name], dtype=torch.float64)
    ours, theirs = module(x), textbook(module, x, paddings, act, norm_layer)
    assert ours.std() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    weights = list(module.parameters())
    pull = torch.randn_like(ours)
    for a, b in zip(torch.autograd.grad(ours, weights, pull), torch.autograd.grad(theirs, weights, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("act", "function"),
    [("relu", F.relu), ("tanh", torch.tanh), ("leaky_relu", lambda z: torch.where(z > 0, z, 0.1 * z))],
)
def test_mlp(act: str, function: Callable[[Tensor], Tensor]) -> None:
    """Linear layers with the activation in between and none at the end; slope is that of leaky ReLU."""
    torch.manual_seed(0)
    module = build("mlp", {"hidden": [5, 4], "act": act, "slope": 0.1}, (2, 3), 3).double()
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    z = x.flatten(1)
    (w1, b1, w2, b2, w3, b3) = module.parameters()
    expected = function(function(z @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
    torch.testing.assert_close(module(x), expected, rtol=1e-12, atol=1e-12)


def test_softmax_is_linear() -> None:
    module = build("softmax", {}, (2, 3), 4)
    weight, bias = module.parameters()
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(module(x), x.flatten(1) @ weight.T + bias)


def test_group_norm_groups() -> None:
    """Groups of 8 channels where that divides the width, else one group."""
    for width, groups in ((64, 8), (8, 1), (6, 1), (12, 1)):
        (layer,) = norm("group", width, images=True)
        assert isinstance(layer, nn.GroupNorm)
        assert layer.num_groups == groups
    assert norm("none", 8, images=True) == []


# What is refused


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet5", (784,)),
        ("lenet5", (1, 28, 27)),
        ("lenet5", (1, 8, 8)),
        ("cnn_cifar", (3, 28, 28)),
        ("cnn_cifar", (3, 32)),
        ("cnn_emnist", (1, 32, 32)),
        ("cnn_cifar_lenet", (30,)),
    ],
)
def test_a_wrong_input_shape(name: str, shape: tuple[int, ...]) -> None:
    got = refusal(name, {}, shape)
    assert f"model '{name}'" in got
    assert f"shape {shape}" in got


@pytest.mark.parametrize("size", range(16, 34))
@pytest.mark.parametrize("padding", [0, 2])
def test_lenet5_fits_every_size_it_accepts(size: int, padding: int) -> None:
    module = build("lenet5", {"padding": padding}, (1, size, size), 10)
    assert module(torch.zeros(1, 1, size, size)).shape == (1, 10)


def test_unknown_names() -> None:
    assert refusal("mpl", {}, (4,)) == "unknown model 'mpl': did you mean 'mlp'?"
    assert all(name in refusal("qqqqq", {}, (4,)) for name in MODELS)
    assert refusal("mlp", {"hiden": [3]}, (4,)) == "unknown option 'hiden' in model 'mlp': did you mean 'hidden'?"
    assert "unknown option 'act' in model 'softmax'" in refusal("softmax", {"act": "relu"}, (4,))
    assert "unknown option 'classes'" in refusal("mlp", {"classes": 3}, (4,))


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("mlp", {"act": "rely"}, "act = 'rely'"),
        ("mlp", {"hidden": "wide"}, "hidden = 'wide'"),
        ("mlp", {"norm_layer": "layer"}, "norm_layer = 'layer'"),
        ("mlp", {"single_logit": "perhaps"}, "single_logit = 'perhaps'"),
        ("mlp", {"hidden": [0]}, "hidden"),
        ("lenet5", {"padding": -3}, "padding = -3"),
    ],
)
def test_bad_values(name: str, options: dict[str, Any], part: str) -> None:
    assert part in refusal(name, options, SHAPES[name])


def test_a_single_logit_is_for_two_classes() -> None:
    assert "single_logit" in refusal("mlp", {"single_logit": True}, (4,), classes=3)
