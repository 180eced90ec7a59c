"""One battery over every model by name, small: shapes, initial weights, stacks, gradients, training."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.data.federation import Federation
from fedprior.data.target import Classes
from fedprior.engine import Engine
from fedprior.errors import FedpriorError
from fedprior.methods import build as build_method
from fedprior.models import MODELS, build
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.rng import Key
from fedprior.training import Train, value_and_grad
from support import same

CLASSES, SIZES = 3, (6, 4)
STEPS = Train(lr=0.01, batch_size=4, steps=2)


class Small(NamedTuple):
    """A model that is quick to run: its options and inputs, its features, and an input that it refuses."""

    shape: tuple[int, ...]
    features: int
    options: dict[str, Any]
    refused: tuple[int, ...] | None


SMALL = {
    "softmax": Small((4,), 4, {}, None),
    "mlp": Small((4,), 6, {"hidden": [5, 6]}, None),
    "lenet5": Small((1, 16, 16), 84, {}, (1, 28, 27)),
    "lenet_wide": Small((3, 32, 32), 192, {}, (3, 28, 28)),
    "cnn_cifar": Small((3, 32, 32), 128, {}, (3, 28, 28)),
    "cnn_emnist": Small((1, 28, 28), 128, {}, (784,)),
    "cnn_cifar_lenet": Small((3, 32, 32), 84, {}, (32, 32)),
    "cnn6": Small((3, 10, 9), 100, {}, (32, 32)),
    "resnet18": Small((3, 17, 16), 512, {}, (768,)),
    "resnet20": Small((1, 9, 8), 64, {}, (64,)),
    "resnet32": Small((1, 8, 8), 64, {}, (8, 8)),
    "resnet44": Small((1, 8, 8), 64, {}, (1, 1, 8, 8)),
    "resnet56": Small((1, 8, 8), 64, {}, (1, 0, 8)),
    "alexnet": Small((3, 63, 65), 16, {"hidden": 16}, (3, 62, 64)),
    "lstm": Small((6,), 12, {"vocabulary": 11, "embedding": 3, "hidden": 4, "features": 12}, (6, 50)),
}
every = pytest.mark.parametrize("name", SMALL)


def fresh_task(name: str) -> Task:
    return Task(build(name, SMALL[name].options, SMALL[name].shape, CLASSES), Categorical(CLASSES), dtype=torch.float64)


@cache
def make_task(name: str) -> Task:
    return fresh_task(name)


def inputs(name: str, seed: int, *rows: int) -> Tensor:
    """Normal numbers, or token ids with some padding among them."""
    generator, shape = torch.Generator().manual_seed(seed), (*rows, *SMALL[name].shape)
    if name == "lstm":
        return torch.randint(SMALL[name].options["vocabulary"], shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def examples(name: str, seed: int) -> ClientData:
    n = sum(SIZES)
    return ClientData(inputs(name, seed, n), torch.arange(n) % CLASSES, (0, SIZES[0]), SIZES)


def federation(name: str) -> Federation:
    train, validation, test = (examples(name, seed) for seed in range(3))
    return Federation(("ann", "bob"), train, validation, test, Classes.numbered(CLASSES))


@cache
def stack(name: str) -> dict[str, Tensor]:
    """The weights of two clients."""
    return tree.cat([tree.expand(make_task(name).init(Key.from_seed(seed)), 1) for seed in range(2)])


def test_the_battery_has_every_model() -> None:
    assert set(SMALL) == set(MODELS)


@every
def test_shapes(name: str) -> None:
    """The head is the last linear layer and bears that name; the base before it gives the features."""
    task, x = make_task(name), inputs(name, 0, 2, 3)
    w = stack(name)
    assert task.head == "head"
    assert task.features_width == SMALL[name].features
    z, logits = task.features(w, x), task.outputs(w, x)
    assert z.shape == (2, 3, SMALL[name].features)
    assert logits.shape == (2, 3, CLASSES)
    torch.testing.assert_close(task.head_outputs(w, z), logits, rtol=1e-11, atol=1e-12)


@every
def test_initial_weights_depend_on_the_key_alone(name: str) -> None:
    """Not on the module's own weights; what is drawn at all (norms start from 1 and 0) is drawn anew by another key."""
    w, other = (tree.index(stack(name), c) for c in range(2))
    assert same(w, fresh_task(name).init(Key.from_seed(0)))
    drawn = [k for k, v in w.items() if v.min() < v.max()]
    assert {"head.weight", "head.bias"} <= set(drawn)
    assert not any(torch.equal(w[k], other[k]) for k in drawn)


@every
def test_a_stack_is_each_client_alone_and_every_weight_has_a_gradient(name: str) -> None:
    """Two clients with weights of their own, the second with padding: values and gradients."""
    task = make_task(name)
    w, x, y = stack(name), inputs(name, 1, 2, 6), torch.arange(12).view(2, 6) % CLASSES
    weight = torch.tensor([[1 / 6] * 6, [1 / 4] * 4 + [0] * 2], dtype=torch.float64)

    def nll(w: dict[str, Tensor], fixed: object, batch: Batch) -> Tensor:
        return task.nll(w, batch)

    value, grads = value_and_grad(nll, w, {}, Batch(x, y, weight))
    assert set(grads) == set(w)
    for c, n in enumerate((6, 4)):
        alone = Batch(x[c : c + 1, :n], y[c : c + 1, :n], weight[c : c + 1, :n])
        own, expected = value_and_grad(nll, tree.index(w, slice(c, c + 1)), {}, alone)
        torch.testing.assert_close(value[c], own[0], rtol=1e-11, atol=1e-12)
        for k, g in expected.items():
            torch.testing.assert_close(grads[k][c], g[0], rtol=1e-9, atol=1e-12)
            assert g.abs().max() > 1e-9, k


def trained(name: str, chunk: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """FedAvg's model before and after a round of two steps, clients in stacks of `chunk`."""
    method = build_method("fedavg", {}, STEPS).bind(make_task(name), STEPS)
    with Engine(method, federation(name), 0, chunk=chunk) as engine:
        start = tree.clone(engine.server.w)
        engine.round(0, [0, 1], [0, 1])
        return start, engine.server.w


@every
def test_two_steps_change_every_weight_in_stacks_of_any_size(name: str) -> None:
    (start, singly), (_, together) = trained(name, 1), trained(name, 2)
    for k, v in start.items():
        assert not torch.equal(v, singly[k]), k
        torch.testing.assert_close(singly[k], together[k], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, small in SMALL.items() if small.refused])
def test_a_wrong_input_shape(name: str) -> None:
    """One sentence with the model and the shape in it."""
    small = SMALL[name]
    assert small.refused is not None
    with pytest.raises(FedpriorError) as error:
        build(name, small.options, small.refused, CLASSES)
    text = str(error.value)
    assert f"model '{name}' takes" in text
    assert f"the data has shape {small.refused}." in text
    assert "\n" not in text
