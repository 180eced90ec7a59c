"""Tasks: a stack's likelihood, gradients and statistics against plain torch, one client at a time."""

from __future__ import annotations

import copy
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.errors import FedpriorError
from fedprior.models import build
from fedprior.models import task as task_module
from fedprior.models.likelihood import FLOOR, Categorical, Gaussian, Likelihood
from fedprior.models.task import Task
from fedprior.rng import Key
from fedprior.training import value_and_grad
from fedprior.tree import Params

SIZES = (6, 2, 4)  # of the ragged batch


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Scaled(nn.Module):
    """A user's own network: no Sequential, a parameter of its own that is one number, a second use of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.again = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        out: Tensor = self.out(self.scale * torch.tanh(self.again(torch.tanh(self.again(h)))))
        return out


class Listed(nn.Module):
    """Its head is not the layer that is listed last."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.first = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.first(x)))
        return out


class Recurrent(nn.Module):
    """An LSTM keeps a second list of its weights, which must not go stale."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(x)[0][:, -1])
        return out


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.b(torch.tanh(self.a(x))))
        return out


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    )


def normed() -> nn.Module:
    """Not known to be flat, so client by client."""
    return nn.Sequential(
        OrderedDict(base=nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()), head=nn.Linear(6, 3))
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "mlp": (lambda: build("mlp", {"hidden": [6, 5], "act": "tanh"}, (4,), 3), (4,)),
    "large mlp": (lambda: build("mlp", {"hidden": [100, 90]}, (4,), 3), (4,)),
    "single logit": (lambda: build("mlp", {"hidden": [6], "single_logit": True}, (4,), 2), (4,)),
    "group norm": (lambda: build("mlp", {"hidden": [8], "norm_layer": "group"}, (4,), 3), (4,)),
    "batch norm": (lambda: build("mlp", {"hidden": [8, 6], "norm_layer": "batch"}, (4,), 3), (4,)),
    "batch norm, one by one": (normed, (4,)),
    "sequences": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)), (2, 4)),
    "cnn": (cnn, (1, 6, 6)),
    "lenet5": (lambda: build("lenet5", {"norm_layer": "group"}, (1, 16, 16), 3), (1, 16, 16)),
    "own module": (Scaled, (4,)),
    "lstm": (Recurrent, (7, 4)),
}
models = pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS.keys())


def make_task(make: Callable[[], nn.Module], **options: Any) -> Task:
    module = make()
    outputs = [m for m in module.modules() if isinstance(m, nn.Linear)][-1].out_features
    return Task(module, Categorical(max(2, outputs)), dtype=torch.float64, **options)


def weights(task: Task, clients: int = 3) -> Params:
    """Different for every client, running statistics too."""
    stack = [tree.expand(task.init(Key.from_seed(seed)), 1) for seed in range(clients)]
    w = tree.cat(stack)
    return {k: v + normal(9, *v.shape).abs() if k in task.buffers else v for k, v in w.items()}


def ragged_batch(task: Task, shape: tuple[int, ...], poison: float = 0.0, sizes: tuple[int, ...] = SIZES) -> Batch:
    """Each client's real examples first, then `poison` with weight 0."""
    x = normal(1, len(sizes), max(sizes), *shape)
    y = torch.arange(x.shape[0] * x.shape[1]).view(x.shape[:2]) % task.likelihood.parameters
    weight = torch.zeros(x.shape[:2], dtype=torch.float64)
    for c, m in enumerate(sizes):
        weight[c, :m] = 1 / m
        x[c, m:] = poison
    return Batch(x, y, weight)


def plain_module(make: Callable[[], nn.Module], w: Params, c: int) -> nn.Module:
    """The user's module itself with client c's weights."""
    module = make().double()
    if isinstance(module, nn.Linear):
        w = {k.removeprefix("head."): v for k, v in w.items()}
    module.load_state_dict({k: v[c] for k, v in w.items()}, strict=False)
    return module


def plain_loss(z: Tensor, y: Tensor) -> Tensor:
    if z.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(z.squeeze(-1), y.double())
    return F.cross_entropy(z, y)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def nll(task: Task) -> Any:
    return lambda w, fixed, batch: task.nll(w, batch)


# A stack equals its clients


@models
@pytest.mark.parametrize("clients", [3, 1])
def test_outputs_are_those_of_each_clients_module(
    make: Callable[[], nn.Module], shape: tuple[int, ...], clients: int
) -> None:
    """In evaluation mode; for the predictive distribution a single output z stands for the logits (0, z)."""
    task = make_task(make)
    w, x = weights(task, clients), normal(1, clients, 5, *shape)
    got, told = task.outputs(w, x), task.predictive(w, x)
    assert told.shape == (clients, 5, task.likelihood.parameters)
    for c in range(clients):
        z = plain_module(make, w, c).eval()(x[c]).detach()
        close(got[c].detach(), z)
        close(told[c], (torch.cat([torch.zeros_like(z), z], 1) if z.shape[1] == 1 else z).log_softmax(-1))
    assert not told.requires_grad


@models
@pytest.mark.parametrize("sizes", [SIZES, (5,)], ids=["stack", "single"])
def test_nll_and_gradient_are_those_of_plain_autograd(
    make: Callable[[], nn.Module], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """On ragged batches in training mode, with padding that would be seen: a thousand in every feature."""
    task = make_task(make)
    w, batch = weights(task, len(sizes)), ragged_batch(task, shape, poison=1000.0, sizes=sizes)
    value, grads = value_and_grad(nll(task), tree.clone(w), {}, batch, task.buffers)
    assert set(grads) == set(task.parameters(w))
    for c, m in enumerate(sizes):
        module = plain_module(make, w, c).train()
        loss = plain_loss(module(batch.x[c, :m]), batch.y[c, :m])
        loss.backward()  # type: ignore[no-untyped-call]
        close(value[c], loss.detach())
        for k, p in module.named_parameters():
            assert p.grad is not None
            close(grads[k if k in grads else f"head.{k}"][c], p.grad)


def test_which_models_run_as_one_batched_pass() -> None:
    """Guards the tests above: both ways are taken."""
    assert {name for name, (make, _) in MODELS.items() if make_task(make).stackable} == {
        "linear",
        "mlp",
        "large mlp",
        "single logit",
        "group norm",
        "batch norm",
        "sequences",
    }


@models
def test_losses_are_per_example(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """-log p of the label, of every example in evaluation mode; nll weighs them."""
    task = make_task(make)
    w, batch = weights(task), ragged_batch(task, shape)
    losses = task.losses(w, batch, train=False)
    expected = -task.predictive(w, batch.x).gather(2, batch.y.unsqueeze(2)).squeeze(2)
    close(losses.detach(), expected)
    close(task.nll(w, batch, train=False), (losses * batch.weight).sum(1))


def test_single_logit_is_binary_cross_entropy() -> None:
    """z = head's output: -log σ(z) for label 1, -log σ(-z) for label 0, and probabilities (σ(-z), σ(z))."""
    task = Task(nn.Linear(1, 1), Categorical(2), dtype=torch.float64)
    w = {"head.weight": torch.tensor([[[2.0]]]).double(), "head.bias": torch.tensor([[0.5]]).double()}
    x, y = torch.tensor([[[1.0], [-1.0]]]).double(), torch.tensor([[1, 0]])
    z = torch.tensor([2.5, -1.5]).double()
    losses = task.losses(w, Batch(x, y, torch.full((1, 2), 0.5).double()))[0]
    close(losses, torch.stack([F.softplus(-z[0]), F.softplus(z[1])]))
    close(task.predictive(w, x)[0].exp(), torch.stack([torch.sigmoid(-z), torch.sigmoid(z)], 1))


def test_data_nll_is_the_mean_over_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged clients in batches of 4, the running statistics in use and left alone; float64 for a float32 model."""
    monkeypatch.setattr(task_module, "EVALUATION_BATCH", 4)
    make = MODELS["batch norm"][0]
    task = make_task(make)
    w = weights(task)
    before = tree.clone(w)
    data = ClientData(normal(1, 20, 4), torch.arange(20) % 3, (7, 0, 9), (2, 7, 11))
    got = task.data_nll(w, data)
    for c in range(3):
        x, y = data.client(c)
        close(got[c], F.cross_entropy(plain_module(make, w, c).eval()(x), y).detach())
    assert all(torch.equal(w[k], before[k]) for k in w)
    single = Task(make(), Categorical(3))
    floats = ClientData(data.x.float(), data.y, data.start, data.size)
    assert single.data_nll({k: v.float() for k, v in w.items()}, floats).dtype == torch.float64


def test_data_nll_of_some_clients_never_sees_the_others() -> None:
    task = make_task(MODELS["mlp"][0])
    x = normal(1, 9, 4)
    x[:2] = torch.nan
    data = ClientData(x, torch.arange(9) % 3, (2, 4), (2, 5))
    assert task.data_nll(weights(task, 2), data).isfinite().all()


# Base and head


@models
@pytest.mark.parametrize("clients", [3, 1])
def test_the_head_of_the_features_is_the_logits(
    make: Callable[[], nn.Module], shape: tuple[int, ...], clients: int
) -> None:
    task = make_task(make)
    w, x = weights(task, clients), normal(1, clients, 5, *shape)
    z = task.features(w, x)
    assert z.shape == (clients, 5, w[f"{task.head}.weight"].shape[2])
    close(task.head_outputs(w, z), task.outputs(w, x))


@models
def test_features_need_only_the_base(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    task = make_task(make)
    w, x = weights(task), normal(1, 3, 5, *shape)
    base, head = task.split(w)
    close(task.features(base, x), task.features(w, x))
    close(task.head_outputs(head, task.features(base, x)), task.outputs(w, x))


@pytest.mark.parametrize("name", ["batch norm", "batch norm, one by one"])
def test_features_in_training_mode(name: str) -> None:
    """Batch statistics of the real rows only, and the running ones move; in a stack and client by client."""
    make = MODELS[name][0]
    task = make_task(make)
    assert task.stackable == (name == "batch norm")
    w, batch = weights(task), ragged_batch(task, (4,), poison=1000.0)
    used = tree.clone(w)
    z = task.features(used, batch.x, batch.weight)
    for c, m in enumerate(SIZES):
        module = plain_module(make, w, c).train()
        close(z[c, :m], module.get_submodule("base")(batch.x[c, :m]))
        for k in task.buffers:
            close(used[k][c], dict(module.named_buffers())[k])


@models
def test_split_is_a_partition_in_order(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    task = make_task(make)
    w = weights(task)
    base, head = task.split(w)
    assert set(head) == {f"{task.head}.weight", f"{task.head}.bias"}
    assert not set(base) & set(head)
    assert {**base, **head}.keys() == w.keys()
    assert list(w) == sorted(w)
    assert all({**base, **head}[k] is w[k] for k in w)


def test_split_goes_by_the_whole_name() -> None:
    """A layer whose name begins like the head's belongs to the base."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        head_in=nn.Linear(4, 4), head2=nn.Linear(4, 4), head=nn.Linear(4, 3)
    )
    task = make_task(lambda: nn.Sequential(layers))
    base, head = task.split(weights(task))
    assert {k.split(".")[0] for k in base} == {"head_in", "head2"}
    assert set(head) == {"head.weight", "head.bias"}


def test_the_head_is_the_last_linear_layer_or_the_one_named() -> None:
    assert make_task(lambda: nn.Linear(4, 3)).head == "head"
    assert make_task(MODELS["mlp"][0]).head == "head"
    assert make_task(cnn).head == "5"
    assert make_task(Scaled).head == "out"
    named = Task(Listed(), Categorical(3), head="out")
    assert set(named.split(named.init(Key(1)))[1]) == {"out.weight", "out.bias"}
    assert named.features_width == 6
    with pytest.raises(FedpriorError, match="no linear layer"):
        Task(nn.Sequential(nn.Flatten(), nn.ReLU()), Categorical(3))


def test_a_head_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FedpriorError, match="haed"):
        Task(build("mlp", {}, (4,), 3), Categorical(3), head="haed")


@pytest.mark.parametrize(
    ("make", "likelihood", "words"),
    [
        (lambda: nn.Linear(4, 3), Categorical(2), ("'head' has 3 outputs", "needs 2")),
        (lambda: nn.Linear(4, 1), Categorical(3), ("'head' has 1 outputs", "needs 3")),
        (lambda: nn.Linear(4, 1), Gaussian(), ("'head' has 1 outputs", "needs 2")),
        (Scaled, Gaussian(), ("'out' has 3 outputs", "needs 2")),
    ],
)
def test_a_last_layer_of_another_width_is_refused(
    make: Callable[[], nn.Module], likelihood: Likelihood, words: tuple[str, ...]
) -> None:
    """In one sentence that says what it has, what it needs and what to do."""
    with pytest.raises(FedpriorError) as error:
        Task(make(), likelihood)
    text = str(error.value)
    assert all(word in text for word in words)
    assert text.endswith(": change its width.")
    assert "\n" not in text


# Numbers


def test_a_task_for_numbers() -> None:
    """Each client's mean and log-variance, in the target's unit; the loss is that of torch's normal distribution."""
    task = Task(build("mlp", {"hidden": [6]}, (4,), 2), Gaussian(120.0, 15.0), dtype=torch.float64)
    w, x, y = weights(task), normal(1, 3, 5, 4), 120 + 15 * normal(2, 3, 5)
    told = task.predictive(w, x)
    assert told.shape == (3, 5, 2)
    out = task.outputs(w, x)
    close(out, task.head_outputs(w, task.features(w, x)))
    sigma = 15 * (out[..., 1].exp() + FLOOR).sqrt()
    known: Any = torch.distributions.Normal(120 + 15 * out[..., 0], sigma)
    close(told, torch.stack([known.mean, known.variance.log()], -1).detach())
    batch = Batch(x, y, torch.full((3, 5), 0.2, dtype=torch.float64))
    close(task.losses(w, batch), -known.log_prob(y))
    close(task.nll(w, batch), -known.log_prob(y).mean(1))
    data = ClientData(x.flatten(0, 1), y.flatten(), (0, 5, 10), (5, 5, 5))
    close(task.data_nll(w, data), -known.log_prob(y).mean(1).detach())
    shared = {k: v[0] for k, v in w.items()}
    close(task.predictive_shared(shared, x[0]), told[0])


def test_the_head_of_a_task_for_numbers_is_one_too() -> None:
    """On the base's features it predicts what the whole does, and its labels stay numbers."""
    task = Task(build("mlp", {"hidden": [6]}, (4,), 2), Gaussian(-3.0, 0.5), dtype=torch.float64)
    w, x = weights(task), normal(1, 3, 5, 4)
    data = ClientData(x.flatten(0, 1), normal(2, 15), (0, 5, 10), (5, 5, 5))
    base, head = task.split(w)
    embedded = task.embedded(base, data)
    assert torch.equal(embedded.y, data.y)
    features = torch.stack([embedded.client(c)[0] for c in range(3)])
    close(task.head_alone.predictive(head, features), task.predictive(w, x))
    close(task.head_alone.data_nll(head, embedded), task.data_nll(w, data))


# Weights


def test_init_depends_on_the_key_alone() -> None:
    """Not on the module's present weights nor on torch's global generator, which it leaves alone."""
    a, b = make_task(MODELS["batch norm"][0]), make_task(MODELS["batch norm"][0])
    state = torch.get_rng_state()
    first, again = a.init(Key.from_seed(0)), a.init(Key.from_seed(0))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1234)
    others = b.init(Key.from_seed(0)), a.init(Key.from_seed(1))
    for k in first:
        assert torch.equal(first[k], again[k])
        assert torch.equal(first[k], others[0][k])
        if k.startswith(("head", "base.1", "base.4")):
            assert not torch.equal(first[k], others[1][k])


def test_init_is_torchs_default_law() -> None:
    """Linear and convolution: uniform on ±1/√fan_in, so of deviation 1/√(3 fan_in); norms 1 and 0, statistics 0 and 1.

    n = 78,400 draws: the largest misses the bound by less than 1e-3 of it, the deviation has an error of 0.5/√n.
    """
    w = Task(build("mlp", {"hidden": [100], "norm_layer": "batch"}, (784,), 10), Categorical(10)).init(Key.from_seed(0))
    bound = 1 / math.sqrt(784)
    weight = w["base.1.weight"]
    assert 0.999 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert weight.mean().abs() < 5 * bound / math.sqrt(3 * weight.numel())
    assert w["base.1.bias"].abs().max() <= bound
    assert w["head.weight"].abs().max() <= 0.1
    assert all((w[f"base.2.{k}"] == 1).all() for k in ("weight", "running_var"))
    assert all((w[f"base.2.{k}"] == 0).all() for k in ("bias", "running_mean"))
    kernel = Task(nn.Sequential(nn.Conv2d(4, 64, 5), nn.Flatten(), nn.Linear(64, 2)), Categorical(2)).init(
        Key.from_seed(0)
    )
    assert 0.098 < kernel["0.weight"].abs().max() <= 0.1


def test_init_reaches_every_layer() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(self.attention(x, x, x, need_weights=False)[0].mean(1))
            return out

    a, b = (Task(Attention(), Categorical(3)).init(Key.from_seed(0)) for _ in range(2))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_weights_are_copies() -> None:
    module = cnn()
    task = Task(module, Categorical(3))
    w = task.weights(module)
    w["5.bias"].fill_(7)
    assert not (module.get_parameter("5.bias") == 7).any()
    with torch.no_grad():
        module.get_parameter("5.bias").fill_(9)
    assert not (task.module.get_parameter("5.bias") == 9).any()


def test_the_users_module_is_left_alone() -> None:
    """Neither its weights and statistics nor its mode or precision change when its task trains."""
    module = MODELS["batch norm"][0]().eval()
    before = copy.deepcopy(module.state_dict())
    task = Task(module, Categorical(3), dtype=torch.float64)
    value_and_grad(nll(task), weights(task), {}, ragged_batch(task, (4,)), task.buffers)
    assert not module.training
    for k, v in module.state_dict().items():
        assert torch.equal(v, before[k])
        assert v.dtype == before[k].dtype


def test_size_counts_what_is_trained() -> None:
    """4·8 + 8 + 2·8 + 8·6 + 6 + 2·6 + 6·3 + 3, without the 28 running statistics."""
    assert make_task(MODELS["batch norm"][0]).size == 143
    assert Task(build("mlp", {"hidden": [32, 16], "single_logit": True}, (30,), 2), Categorical(2)).size == 1_537


def test_tied_weights_are_one() -> None:
    """Or refused: a tied model's gradient is the sum over both uses."""
    make: Callable[[], nn.Module] = Tied
    try:
        task = make_task(make)
    except FedpriorError:
        return
    w, x = weights(task), normal(1, 3, 5, 4)
    got = task.outputs(w, x)
    for c in range(3):
        module = plain_module(make, w, c)
        assert module.get_parameter("b.weight") is module.get_parameter("a.weight")
        close(got[c], module(x[c]))


# Buffers


def test_buffers_are_the_running_statistics_without_the_counter() -> None:
    task = make_task(MODELS["batch norm"][0])
    assert task.buffers == {f"base.{i}.running_{s}" for i in (2, 5) for s in ("mean", "var")}
    w = task.init(Key.from_seed(0))
    assert task.buffers < set(w)
    assert not any("num_batches_tracked" in k for k in w)
    assert set(task.parameters(w)) == set(w) - task.buffers
    assert task.smallest_batch == 2
    assert make_task(cnn).buffers == frozenset()
    assert make_task(cnn).smallest_batch == 1


@pytest.mark.parametrize("sizes", [SIZES, (5,)], ids=["stack", "single"])
def test_training_moves_the_statistics_in_place(sizes: tuple[int, ...]) -> None:
    """By 0.1 towards those of each client's real rows, as torch does for the client alone."""
    make = MODELS["batch norm"][0]
    task = make_task(make)
    w, batch = weights(task, len(sizes)), ragged_batch(task, (4,), poison=1000.0, sizes=sizes)
    used = tree.clone(w)
    task.nll(used, batch)
    for c, m in enumerate(sizes):
        module = plain_module(make, w, c).train()
        module(batch.x[c, :m])
        for k, b in module.named_buffers():
            if k in task.buffers:
                close(used[k][c], b)
                assert not torch.allclose(used[k][c], w[k][c])
    assert all(torch.equal(used[k], w[k]) for k in task.parameters(w))


def test_statistics_by_hand() -> None:
    """x = 1, 3 through the identity: mean 2, unbiased variance 2; from 0 and 1 by 0.1: 0.2 and 0.9 + 0.2 = 1.1."""
    task = Task(nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)), Categorical(2), dtype=torch.float64)
    w = tree.clone(tree.expand(task.init(Key.from_seed(0)), 1))
    x, weight = torch.tensor([[[1.0], [3.0]]]).double(), torch.full((1, 2), 0.5).double()
    task.nll(w, Batch(x, torch.tensor([[0, 1]]), weight))
    assert w["0.running_mean"].item() == pytest.approx(0.2)
    assert w["0.running_var"].item() == pytest.approx(1.1)


def test_evaluation_leaves_the_statistics_alone() -> None:
    task = make_task(MODELS["batch norm"][0])
    w, batch = weights(task), ragged_batch(task, (4,))
    before = tree.clone(w)
    task.nll(w, batch)  # training in between must not leave the module in training mode
    w = tree.clone(before)
    task.nll(w, batch, train=False)
    task.outputs(w, batch.x)
    task.predictive(w, batch.x)
    task.features(w, batch.x)
    assert all(torch.equal(w[k], before[k]) for k in w)


def test_frozen_statistics_are_used_and_left_alone() -> None:
    """Training with policy `frozen` is training in evaluation mode, padding or not."""
    make = MODELS["batch norm"][0]
    task = make_task(make, buffers="frozen")
    w, batch = weights(task), ragged_batch(task, (4,))
    before = tree.clone(w)
    value, grads = value_and_grad(nll(task), w, {}, batch, task.buffers)
    assert all(torch.equal(w[k], before[k]) for k in w)
    for c, m in enumerate(SIZES):
        module = plain_module(make, w, c).eval()
        loss = plain_loss(module(batch.x[c, :m]), batch.y[c, :m])
        loss.backward()  # type: ignore[no-untyped-call]
        close(value[c], loss.detach())
        close(grads["base.1.weight"][c], module.get_parameter("base.1.weight").grad)  # type: ignore[arg-type]


def test_statistics_depend_on_the_weights_and_the_batch_alone() -> None:
    """The cumulative average of batch normalisation is refused or pure."""
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3))
    try:
        task = Task(module, Categorical(3), dtype=torch.float64)
    except FedpriorError:
        return
    w, batch = weights(task), ragged_batch(task, (4,))
    first, again = tree.clone(w), tree.clone(w)
    task.nll(first, batch)
    task.nll(again, batch)
    assert all(torch.equal(first[k], again[k]) for k in w)


# What is refused, and travel


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.Dropout2d(0.1),
        nn.AlphaDropout(0.5),
        nn.Sequential(nn.Dropout(0.2)),
        nn.LSTM(4, 4, 2, dropout=0.5),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_dropout_is_refused(layer: nn.Module) -> None:
    with pytest.raises(FedpriorError, match="dropout") as error:
        Task(nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3)), Categorical(3))
    assert "\n" not in str(error.value)


def test_dropout_of_zero_is_none() -> None:
    Task(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 3)), Categorical(3))


@models
def test_a_task_travels_to_another_process(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Also after use, when it holds closures and live modules."""
    task = make_task(make)
    w, batch = weights(task), ragged_batch(task, shape)
    task.features(w, batch.x)
    task.nll(tree.clone(w), batch)
    copied: Task = pickle.loads(pickle.dumps(task))
    close(copied.outputs(w, batch.x), task.outputs(w, batch.x))
    close(copied.features(w, batch.x), task.features(w, batch.x))
    close(copied.nll(tree.clone(w), batch), task.nll(tree.clone(w), batch))
    assert (copied.head, copied.size, copied.buffers) == (task.head, task.size, task.buffers)


def test_precision() -> None:
    for dtype in (torch.float32, torch.float64):
        task = Task(MODELS["batch norm"][0](), Categorical(3), dtype=dtype)
        w = task.init(Key.from_seed(0))
        assert {v.dtype for v in w.values()} == {dtype}
        assert task.outputs(tree.expand(w, 2), torch.zeros(2, 3, 4, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("make", "shape"),
    [MODELS["mlp"], MODELS["batch norm"], MODELS["group norm"], MODELS["cnn"]],
    ids=["stacked", "stacked batch norm", "stacked group norm", "one by one"],
)
def test_mixed_precision_is_for_training_passes(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Training rounds to bfloat16's 8 bits, so it differs from full precision, but by no more than those; predictions
    do not differ at all, and everything that comes out is float32."""
    module = make()
    full, mixed = Task(module, Categorical(3)), Task(module, Categorical(3), mixed=True)
    w = tree.expand(full.init(Key.from_seed(0)), 2)
    batch = Batch(normal(0, 2, 5, *shape).float(), torch.arange(10).view(2, 5) % 3, torch.full((2, 5), 0.2))
    value, grads = value_and_grad(lambda w, _, b: full.nll(w, b), tree.clone(w), None, batch)
    rounded, others = value_and_grad(lambda w, _, b: mixed.nll(w, b), tree.clone(w), None, batch)
    assert rounded.dtype == torch.float32
    assert not torch.equal(value, rounded)
    torch.testing.assert_close(rounded, value, rtol=2e-2, atol=2e-2)
    for k, g in grads.items():
        assert others[k].dtype == torch.float32
        torch.testing.assert_close(others[k], g, rtol=5e-2, atol=2e-2)
    assert torch.equal(full.predictive(w, batch.x), mixed.predictive(w, batch.x))
