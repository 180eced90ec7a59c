"""The curvature's diagonal against loops over examples, second derivatives by autograd, and closed forms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from fedprior import tree
from fedprior.bayes import curvature
from fedprior.bayes.curvature import Estimate, diagonal
from fedprior.data.client import ClientData
from fedprior.errors import FedpriorError
from fedprior.models import build
from fedprior.models.likelihood import FLOOR, Categorical, Gaussian
from fedprior.models.task import Task
from fedprior.rng import Key
from fedprior.tree import Params
from support import same

K = 3
ESTIMATES: tuple[Estimate, Estimate] = ("fisher", "ggn")
estimates = pytest.mark.parametrize("estimate", ESTIMATES)


def weights(task: Task, clients: int, seed: int = 1) -> Params:
    """Different weights for each client; buffers of batch normalisation away from their defaults."""
    rows = [task.init(Key.from_seed(seed).fold(c)) for c in range(clients)]
    gen = torch.Generator().manual_seed(seed)
    stack = {k: torch.stack([row[k] for row in rows]) for k in rows[0]}
    return {k: v + 0.1 * torch.rand(v.shape, generator=gen, dtype=v.dtype) for k, v in stack.items()}


def examples(shape: tuple[int, ...], sizes: tuple[int, ...], classes: int = K, seed: int = 2) -> ClientData:
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), *shape, generator=gen, dtype=torch.float64)
    y = torch.randint(classes, (sum(sizes),), generator=gen)
    return ClientData(x, y, tuple(sum(sizes[:c]) for c in range(len(sizes))), sizes)


def log_p(module: nn.Module, w: Params, x: Tensor) -> Tensor:
    """log p(y | x) of one example, [K]."""
    out = functional_call(module, w, (x.unsqueeze(0),))
    return F.log_softmax(F.pad(out, (1, 0)) if out.shape[1] == 1 else out, dim=1)[0]


def naive(task: Task, w: Params, x: Tensor, y: Tensor, estimate: Estimate) -> Params:
    """One client's h, one backward pass for each example (and each class)."""
    module = copy.deepcopy(task.module).eval()
    names = list(task.parameters(w))
    total = {k: torch.zeros_like(w[k]) for k in names}
    for one, label in zip(x, y, strict=True):
        leaves = {k: v.detach().clone().requires_grad_(k in names) for k, v in w.items()}
        values = log_p(module, leaves, one)
        for c, value in enumerate(values):
            weight = float(value.detach().exp()) if estimate == "ggn" else float(c == int(label))
            grads = torch.autograd.grad(value, [leaves[k] for k in names], retain_graph=True, allow_unused=True)
            for k, g in zip(names, grads, strict=True):
                if g is not None:
                    total[k] += weight * g.square()
    return total


def second_derivatives(loss: Callable[..., Tensor], at: Any) -> Any:
    return hessian(loss, at)  # type: ignore[no-untyped-call]


def agrees(module: nn.Module, shape: tuple[int, ...], estimate: Estimate, classes: int = K) -> None:
    """Two clients of different size and weights, compared with the loop."""
    task = Task(module, Categorical(classes), dtype=torch.float64)
    w, data = weights(task, 2), examples(shape, (6, 3), classes)
    found = diagonal(task, w, data, estimate)
    assert list(found) == sorted(task.parameters(w))
    for c in range(2):
        expected = naive(task, tree.index(w, c), *data.client(c), estimate)
        for k, h in expected.items():
            assert found[k][c].shape == h.shape
            assert torch.allclose(found[k][c], h, rtol=1e-9, atol=1e-12), k
            assert h.abs().max() > 0, "a network without a gradient would prove nothing"


def conv(kernel_size: Any, kind: str = "conv", **options: Any) -> nn.Module:
    """Convolution, perhaps a norm or a second one, nonlinearity, and a linear head on pooled features."""
    layer = nn.Conv2d(2, 4, kernel_size, **options)
    between: dict[str, list[nn.Module]] = {
        "conv": [],
        "group": [nn.GroupNorm(2, 4)],
        "batch": [nn.BatchNorm2d(4)],
        "deep": [nn.Tanh(), nn.Conv2d(4, 4, 2, bias=False)],
    }
    return nn.Sequential(layer, *between[kind], nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, K))


# Against loops over examples

PERCEPTRONS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(5, K),
    "tanh": lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, K)),
    "relu, three layers": lambda: nn.Sequential(
        nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, K)
    ),
    "no bias": lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.Tanh(), nn.Linear(6, K)),
    "layer norm": lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, K)),
    "batch norm": lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, K)),
}


@estimates
@pytest.mark.parametrize("name", PERCEPTRONS)
def test_perceptrons(name: str, estimate: Estimate) -> None:
    agrees(PERCEPTRONS[name](), (5,), estimate)


@estimates
def test_one_output_is_two_classes(estimate: Estimate) -> None:
    agrees(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)), (5,), estimate, classes=2)


@estimates
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "dilation": 2, "padding": 2},
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1)},
        {"kernel_size": 1, "bias": False},
        {"kernel_size": 3, "groups": 2},
        {"kernel_size": 3, "kind": "deep"},
        {"kernel_size": 3, "kind": "group"},
        {"kernel_size": 3, "kind": "batch"},
    ],
    ids=str,
)
def test_convolutions(options: dict[str, Any], estimate: Estimate) -> None:
    """Strides, paddings, dilations, groups; norms, whose parameters need another way than linear layers do."""
    agrees(conv(**options), (2, 7, 7), estimate)


@pytest.mark.parametrize(
    "options", [{"padding": "same"}, {"padding": "valid"}, {"padding": 1, "padding_mode": "circular"}], ids=str
)
def test_other_paddings(options: dict[str, Any]) -> None:
    """Paddings by name, and paddings with something other than zeros."""
    agrees(conv(3, **options), (2, 7, 7), "fisher")


def test_activations_in_place() -> None:
    """nn.ReLU(inplace=True), as in most published networks: its mask is part of the gradient."""
    agrees(nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, K)), (5,), "fisher")


class Twice(nn.Module):
    """The same layer twice in a row: an example's gradient is the sum over both uses, then squared."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 5), nn.Linear(5, K)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))
        return out


def test_a_layer_used_twice() -> None:
    agrees(Twice(), (5,), "fisher")


class Sequence(nn.Module):
    """A linear layer on every element of a sequence [B, L, 5], then their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 4), nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.inner(x)).mean(1))
        return out


def test_a_linear_layer_on_sequences() -> None:
    """An example's gradient is the sum over the elements of its sequence, then squared."""
    agrees(Sequence(), (7, 5), "fisher")


class Idle(nn.Module):
    """A layer that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.head = nn.Linear(5, 5), nn.Linear(5, K)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


def test_a_layer_without_part_has_no_curvature() -> None:
    task = Task(Idle(), Categorical(K), dtype=torch.float64)
    found = diagonal(task, weights(task, 1), examples((5,), (6,)))
    assert (found["idle.weight"] == 0).all()
    assert (found["idle.bias"] == 0).all()
    assert (found["head.bias"] > 0).all()


# Against second derivatives


def logistic() -> tuple[Task, Params, ClientData]:
    task = Task(nn.Linear(5, 1), Categorical(2), dtype=torch.float64)
    return task, weights(task, 1), examples((5,), (40,), 2)


def test_logistic_regression_is_exact() -> None:
    """The Hessian of the summed loss has the diagonal Σ_s x_sj² p_s (1 - p_s): the GGN is exact for a linear model."""
    task, w, data = logistic()
    x, y = data.client(0)
    found = diagonal(task, w, data, "ggn")
    p = (x @ w["head.weight"][0].T + w["head.bias"][0]).sigmoid()[:, 0]
    assert torch.allclose(found["head.weight"][0, 0], (x.square() * (p * (1 - p))[:, None]).sum(0), rtol=1e-12)
    assert torch.allclose(found["head.bias"][0, 0], (p * (1 - p)).sum(), rtol=1e-12)

    def loss(flat: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x @ flat[:5] + flat[5], y.double(), reduction="sum")

    second = second_derivatives(loss, torch.cat([w["head.weight"][0, 0], w["head.bias"][0]])).diagonal()
    assert torch.allclose(torch.cat([found["head.weight"][0, 0], found["head.bias"][0]]), second, rtol=1e-6)


def test_softmax_regression_is_exact() -> None:
    """The same with Σ_s x_sj² p_sc (1 - p_sc) for the weight of input j to class c."""
    task = Task(nn.Linear(5, K), Categorical(K), dtype=torch.float64)
    w, data = weights(task, 1), examples((5,), (40,))
    x, y = data.client(0)
    found = diagonal(task, w, data, "ggn")
    p = (x @ w["head.weight"][0].T + w["head.bias"][0]).softmax(1)
    assert torch.allclose(found["head.weight"][0], torch.einsum("sj,sc->cj", x.square(), p * (1 - p)), rtol=1e-12)

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        return F.cross_entropy(x @ weight.T + bias, y, reduction="sum")

    second = second_derivatives(loss, (w["head.weight"][0], w["head.bias"][0]))
    for argument, name in enumerate(("head.weight", "head.bias")):
        size = w[name][0].numel()
        own = second[argument][argument].reshape(size, size).diagonal()
        assert torch.allclose(found[name][0].flatten(), own, rtol=1e-6)


def test_fisher_of_the_bias_by_hand() -> None:
    """At w = 0, two classes: p = ½, so ∂l/∂b = ±½ for every example, and n of them give h = n/4; so does the GGN.

    For the weight of input j: Σ_s x_sj²/4.
    """
    task = Task(nn.Linear(5, 1), Categorical(2), dtype=torch.float64)
    w, data = tree.zeros_like(weights(task, 1)), examples((5,), (40,), 2)
    for estimate in ESTIMATES:
        found = diagonal(task, w, data, estimate)
        assert float(found["head.bias"]) == pytest.approx(10.0, abs=1e-12)
        assert torch.allclose(found["head.weight"][0, 0], data.x.square().sum(0) / 4, rtol=1e-12)


# Numbers


NUMBER = Gaussian(120.0, 15.0)
REGRESSORS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 2), (5,)),
    "tanh": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)), (5,)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)), (2, 5, 5)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)), (5,)),
}


def numbers(shape: tuple[int, ...], sizes: tuple[int, ...]) -> ClientData:
    data = examples(shape, sizes)
    gen = torch.Generator().manual_seed(3)
    return replace(data, y=120 + 15 * torch.randn(sum(sizes), generator=gen, dtype=torch.float64))


def naive_number(task: Task, w: Params, x: Tensor, y: Tensor, estimate: Estimate) -> Params:
    """One client's h, one backward pass for each example and function, by torch's normal distribution.

    Fisher: the squared gradient of log N(y; m, v). GGN: by the information that a normal distribution has of its mean,
    1/v, and of its standard deviation, 2/v: another parametrisation than ours, which must not change it.
    """
    module = copy.deepcopy(task.module).eval()
    names = list(task.parameters(w))
    total = {k: torch.zeros_like(w[k]) for k in names}
    for one, label in zip(x, y, strict=True):
        leaves = {k: v.detach().clone().requires_grad_(k in names) for k, v in w.items()}
        out = functional_call(module, leaves, (one.unsqueeze(0),))[0]
        mean, sigma = 120 + 15 * out[0], 15 * (out[1].exp() + FLOOR).sqrt()
        v = float(sigma.detach().square())
        pairs = [(mean, 1 / v), (sigma, 2 / v)]
        if estimate == "fisher":
            known: Any = torch.distributions.Normal(mean, sigma)
            pairs = [(known.log_prob(label), 1.0)]
        for value, weight in pairs:
            for k, g in zip(
                names, torch.autograd.grad(value, [leaves[k] for k in names], retain_graph=True), strict=True
            ):
                total[k] += weight * g.square()
    return total


@estimates
@pytest.mark.parametrize("name", REGRESSORS)
def test_numbers_agree_with_loops_over_examples(name: str, estimate: Estimate) -> None:
    make, shape = REGRESSORS[name]
    task, data = Task(make(), NUMBER, dtype=torch.float64), numbers(shape, (6, 3))
    w = weights(task, 2)
    found = diagonal(task, w, data, estimate)
    for c in range(2):
        for k, h in naive_number(task, tree.index(w, c), *data.client(c), estimate).items():
            assert torch.allclose(found[k][c], h, rtol=1e-9, atol=1e-12), k
            assert h.abs().max() > 0


@estimates
@pytest.mark.parametrize("name", ["linear", "tanh", "convolution"])
def test_closed_forms_and_vmap_agree_for_numbers(
    name: str, estimate: Estimate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers' closed forms, and the way of all other networks, on the same weights; both ways are really taken."""
    make, shape = REGRESSORS[name]
    task, data = Task(make(), NUMBER, dtype=torch.float64), numbers(shape, (6, 3))
    w, calls = weights(task, 2), []
    by_vmap = curvature._by_vmap

    def counted(*args: Any) -> Params:
        calls.append(args)
        return by_vmap(*args)

    monkeypatch.setattr(curvature, "_by_vmap", counted)
    layers = diagonal(task, w, data, estimate)
    assert not calls
    monkeypatch.setattr(curvature, "_by_layers", lambda *args: None)
    general = diagonal(task, w, data, estimate)
    assert calls
    for k, h in layers.items():
        assert torch.allclose(general[k], h, rtol=1e-10, atol=1e-13), k


def test_linear_regression_by_closed_form() -> None:
    """Mean w·x + b and a log-variance s = -1 that depends on nothing: Σ_s x_sj²/v for the mean, in deviations.

    v = e⁻¹ + FLOOR; the row of s has Σ_s x_sj² · ½ (e⁻¹/v)², and the biases the same with x = 1. The unit cancels.
    """
    task, data = Task(nn.Linear(5, 2), NUMBER, dtype=torch.float64), numbers((5,), (40,))
    w = weights(task, 1)
    w["head.weight"][0, 1], w["head.bias"][0, 1] = 0, -1
    found = diagonal(task, w, data, "ggn")
    v = math.exp(-1) + FLOOR
    squares, of_s = data.x.square().sum(0), 0.5 * (math.exp(-1) / v) ** 2
    assert torch.allclose(found["head.weight"][0], torch.stack([squares / v, squares * of_s]), rtol=1e-12)
    assert found["head.bias"][0].tolist() == pytest.approx([40 / v, 40 * of_s])

    def loss(weight: Tensor) -> Tensor:  # the mean's part of the Hessian is that of least squares, whatever the labels
        z = (data.y - 120) / 15
        return 0.5 * ((z - data.x @ weight - w["head.bias"][0, 0]).square() / v).sum()

    second = second_derivatives(loss, w["head.weight"][0, 0]).diagonal()
    assert torch.allclose(found["head.weight"][0, 0], second, rtol=1e-8)


# Properties


def perceptron() -> Task:
    return Task(nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, K)), Categorical(K), dtype=torch.float64)


def normed() -> Task:
    return Task(conv(3, kind="batch"), Categorical(K), dtype=torch.float64)


@estimates
@pytest.mark.parametrize("make", [perceptron, normed])
def test_data_add_up(make: Callable[[], Task], estimate: Estimate) -> None:
    """h(D₁ ∪ D₂) = h(D₁) + h(D₂), over more data than one pass holds; and twice the data is twice h."""
    task = make()
    shape = (5,) if make is perceptron else (2, 5, 5)
    data = examples(shape, (300,))
    w = weights(task, 1)
    whole = diagonal(task, w, data, estimate)
    parts = [diagonal(task, w, ClientData(data.x, data.y, (a,), (n,)), estimate) for a, n in ((0, 17), (17, 283))]
    x, y = data.client(0)
    twice = diagonal(task, w, ClientData.single(torch.cat([x, x]), torch.cat([y, y])), estimate)
    for k, h in whole.items():
        assert torch.allclose(parts[0][k] + parts[1][k], h, rtol=1e-10, atol=1e-14)
        assert torch.allclose(twice[k], 2 * h, rtol=1e-10, atol=1e-14)
        assert (h >= 0).all()


@estimates
def test_a_dead_input_has_no_curvature(estimate: Estimate) -> None:
    """An input that is always 0 has ∂l/∂W = g · 0: exactly no curvature; the others have some."""
    task, data = perceptron(), examples((5,), (20,))
    data.x[:, 2] = 0
    found = diagonal(task, weights(task, 1), data, estimate)["0.weight"][0]
    assert (found[:, 2] == 0).all()
    assert (found[:, [0, 1, 3, 4]].sum(0) > 0).all()


def test_a_dead_unit_has_no_curvature() -> None:
    """A rectified unit that never fires: its weights, its bias and what leaves it have exactly none."""
    task, data = perceptron(), examples((5,), (20,))
    w = weights(task, 1)
    w["0.bias"][:, 1] = -1e3
    found = diagonal(task, w, data)
    for dead in (found["0.weight"][0, 1], found["0.bias"][0, 1], found["2.weight"][0, :, 1]):
        assert (dead == 0).all()


@estimates
def test_a_louder_input_has_more_curvature(estimate: Estimate) -> None:
    """A weight of 0 lets its input be scaled by 10 without a change of p: its h = Σ g² x² grows 100-fold, no other."""
    task, w, data = logistic()
    w["head.weight"][..., 2] = 0
    louder = ClientData.single(data.x * torch.tensor([1, 1, 10, 1, 1.0], dtype=torch.float64), data.y)
    before, after = (diagonal(task, w, d, estimate)["head.weight"][0, 0] for d in (data, louder))
    ratio = torch.tensor([1, 1, 100, 1, 1.0], dtype=torch.float64)
    assert torch.allclose(after / before, ratio, rtol=1e-12)


@estimates
@pytest.mark.parametrize("make", [perceptron, normed])
def test_the_pass_leaves_no_trace(make: Callable[[], Task], estimate: Estimate) -> None:
    """Weights, buffers, the task's module, its mode and hooks, and the global generator are as before."""
    task = make()
    data = examples((5,) if make is perceptron else (2, 5, 5), (9, 4))
    w = weights(task, 2)
    task.module.train()
    before, module, state = tree.clone(w), task.weights(task.module), torch.random.get_rng_state()
    first = diagonal(task, w, data, estimate)
    assert same(w, before)
    assert same(task.weights(task.module), module)
    assert task.module.training
    assert all(not m._forward_hooks for m in task.module.modules())
    assert all(p.grad is None for p in task.module.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(v.requires_grad for v in [*w.values(), *first.values()])
    assert same(diagonal(task, w, data, estimate), first)


@pytest.mark.parametrize("make", [perceptron, normed])
def test_gradients_are_made_even_where_none_are_wanted(make: Callable[[], Task]) -> None:
    task = make()
    data = examples((5,) if make is perceptron else (2, 5, 5), (9, 4))
    w = weights(task, 2)
    with torch.no_grad():
        quiet = diagonal(task, w, data)
    assert same(quiet, diagonal(task, w, data))


def test_running_statistics_are_used_but_have_no_curvature() -> None:
    """In evaluation mode batch normalisation divides by its running variance: h depends on it, and is not made for it.

    Behind the norm, features scale with 1/√(v + 1e-5): as v grows from 1 to 1e6, hardly any gradient reaches the layer
    before it.
    """
    task = Task(
        nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, K)),
        Categorical(K),
        dtype=torch.float64,
    )
    w, data = weights(task, 1), examples((5,), (20,))
    found = diagonal(task, w, data)
    assert "1.running_var" in w
    assert "1.running_var" not in found
    quiet = diagonal(task, {**w, "1.running_var": torch.full_like(w["1.running_var"], 1e6)}, data)
    assert quiet["0.weight"].sum() < 1e-4 * found["0.weight"].sum()


@estimates
def test_colour_images_in_a_normed_network(estimate: Estimate) -> None:
    """Channels-last memory is a matter of speed, and vmap knows none: the copy it runs has the usual one."""
    network = build("cnn_cifar", {"norm_layer": "group"}, (3, 32, 32), K)
    agrees(network, (3, 32, 32), estimate)


def test_recurrent_networks_are_refused() -> None:
    task = Task(build("lstm", {"vocabulary": 5, "embedding": 2, "hidden": 2, "features": 3}, (4,), K), Categorical(K))
    with pytest.raises(FedpriorError, match="curvature is not available for recurrent models"):
        diagonal(task, weights(task, 1), examples((4,), (3,), K), "fisher")
