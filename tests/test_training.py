"""Local training: the shared options, gradients per client, and descent against a hand-written loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.client import Batch, Budget, ClientData, schedule
from fedprior.errors import FedpriorError
from fedprior.models import build
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.optim import SGD, Adam
from fedprior.rng import Key, Keys
from fedprior.training import Train, descend, descend_head, take_step, value_and_grad
from fedprior.tree import Params

SIZES = (5, 11, 7)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_task(norm_layer: str = "none") -> Task:
    module = build("mlp", {"hidden": [6], "act": "tanh", "norm_layer": norm_layer}, (4,), 3)
    return Task(module, Categorical(3), dtype=torch.float64)


def make_data() -> ClientData:
    total = sum(SIZES)
    y = torch.arange(total) % 3
    return ClientData(normal(0, total, 4), y, (0, SIZES[0], SIZES[0] + SIZES[1]), SIZES)


KEYS = Keys.of(Key.from_seed(0), ["a", "b", "c"])


def start(task: Task) -> Params:
    """Different weights for every client."""
    return tree.cat([tree.expand(task.init(Key.from_seed(seed)), 1) for seed in range(len(SIZES))])


def nll(task: Task) -> Any:
    return lambda w, fixed, batch: task.nll(w, batch)


def proximal(task: Task) -> Any:
    """nll + 0.3/2 ‖w - w₀‖², as in FedProx."""
    return lambda w, w0, batch: task.nll(w, batch) + 0.15 * tree.sqdist(task.parameters(w), task.parameters(w0))


# Options


def test_defaults_and_makers() -> None:
    assert Train().make() == SGD(0.01)
    assert Train(lr=0.2, momentum=0.5, weight_decay=0.1).make() == SGD(0.2, 0.5, 0.1)
    assert Train(optimizer="adam", lr=0.2, weight_decay=0.1).make() == Adam(0.2, 0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"momentum": -0.1},
        {"momentum": 1.0},
        {"weight_decay": -0.1},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"epochs": -1},
        {"steps": -1},
        {"optimizer": "rmsprop"},
    ],
    ids=str,
)
def test_values_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(FedpriorError, match=next(iter(options))):
        Train(**options)


def test_momentum_belongs_to_sgd() -> None:
    with pytest.raises(FedpriorError, match="momentum applies to sgd only"):
        Train(optimizer="adam", momentum=0.5)


def test_a_misspelt_option_is_refused() -> None:
    """`Train(momentun=0.9)` must not train without momentum."""
    with pytest.raises(FedpriorError, match="did you mean 'momentum'"):
        Train(momentun=0.9)  # type: ignore[call-arg]


def test_budget() -> None:
    """Steps replace epochs; batch normalisation needs batches of two; what cannot be stacked goes client by client."""
    plain, batch_norm = make_task(), make_task("batch")
    convolution = Task(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(2, 3)), Categorical(3))
    assert Train(batch_size=8, epochs=3).budget(plain) == Budget(8, epochs=3)
    assert Train(batch_size=8, epochs=3, steps=5).budget(plain) == Budget(8, steps=5)
    assert Train(batch_size=8, epochs=3, steps=0).budget(plain) == Budget(8, steps=0)
    assert Train(batch_size=8, epochs=3).budget(batch_norm) == Budget(8, epochs=3, smallest=2)
    assert Train(batch_size=8, epochs=3).budget(convolution) == Budget(8, epochs=3, together=False)
    assert Train(batch_size=8, epochs=3, last_batch="drop").budget(plain) == Budget(8, epochs=3, drop=True)


def test_lasting() -> None:
    train = Train(lr=0.2, steps=5)
    assert train.lasting(7) == Train(lr=0.2, epochs=7)
    assert train.steps == 5


# Gradients


def test_value_and_grad_is_each_clients_own() -> None:
    """Against central differences of that client's objective alone: error h² f'''/6 + rounding/h ≈ 1e-9 at h = 1e-5."""
    task, data = make_task(), make_data()
    w, w0, batch = start(task), start(task), next(data.batches(6))
    w0 = tree.map(lambda leaf: leaf + 0.1, w0)
    objective = proximal(task)
    value, grads = value_and_grad(objective, w, w0, batch)
    assert torch.equal(value, objective(w, w0, batch))
    assert not value.requires_grad
    h = 1e-5
    for c in range(len(SIZES)):
        for k, i in (("base.1.weight", (2, 3)), ("base.1.bias", (5,)), ("head.weight", (1, 4)), ("head.bias", (0,))):
            ends = []
            for shift in (h, -h):
                moved = tree.clone(w)
                moved[k][c][i] += shift
                ends.append(objective(moved, w0, batch)[c].item())
            assert grads[k][c][i].item() == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6, abs=1e-8)


def test_value_and_grad_leaves_the_weights_alone() -> None:
    task, data = make_task(), make_data()
    w = start(task)
    before = tree.clone(w)
    value_and_grad(nll(task), w, {}, next(data.batches(6)))
    assert not any(leaf.requires_grad or leaf.grad is not None for leaf in w.values())
    assert all(torch.equal(w[k], before[k]) for k in w)


@pytest.mark.parametrize("optimizer", [SGD(0.1, weight_decay=0.2), SGD(0.1, momentum=0.5), Adam(0.1)])
def test_a_step_is_gradient_then_update(optimizer: Any) -> None:
    """With a prior beside the likelihood, whose gradient is dense where the likelihood's is in factors."""
    task, batch = make_task(), Batch(normal(1, 3, 4, 4), torch.arange(12).view(3, 4) % 3, torch.full((3, 4), 0.25))
    ours, theirs, anchor = tree.clone(start(task)), tree.clone(start(task)), tree.zeros_like(start(task))
    state, other = optimizer.init(ours), optimizer.init(theirs)
    for _ in range(3):
        value = take_step(optimizer, proximal(task), ours, state, anchor, batch)
        expected, grads = value_and_grad(proximal(task), theirs, anchor, batch)
        optimizer.update(theirs, grads, other)
        torch.testing.assert_close(value, expected)
    for k, v in theirs.items():
        torch.testing.assert_close(ours[k], v, rtol=1e-12, atol=1e-12)


def test_value_and_grad_skips() -> None:
    """What is in `skip` is a constant; what the objective does not use has no gradient."""
    w = {"a": normal(0, 2, 3), "b": normal(1, 2, 3), "c": normal(2, 2, 3)}
    batch = next(make_data()[:2].batches(2))
    _, grads = value_and_grad(lambda w, fixed, batch: (w["a"] * w["b"]).sum(1), w, {}, batch, frozenset({"b"}))
    assert list(grads) == ["a"]
    assert torch.equal(grads["a"], w["b"])


# Descent


def module_of(task: Task, w: Params, c: int) -> nn.Module:
    module = build("mlp", {"hidden": [6], "act": "tanh", "norm_layer": "batch" if task.buffers else "none"}, (4,), 3)
    module.double().load_state_dict({k: v[c] for k, v in w.items()}, strict=False)
    return module


def by_hand(task: Task, train: Train, w: Params, data: ClientData, c: int, mu: float = 0.0) -> tuple[Params, float]:
    """One client with `torch.optim`, on the batches that the schedule gives it."""
    module = module_of(task, w, c)
    anchor = [p.detach().clone() for p in module.parameters()]
    if train.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(
            module.parameters(), train.lr, weight_decay=train.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(module.parameters(), train.lr, train.momentum, weight_decay=train.weight_decay)
    plan = schedule(data[[c]], KEYS.fold("descend")[[c]], train.budget(task))
    losses = []
    for rows, count in zip(plan.rows[:, 0], plan.counts[:, 0], strict=True):
        chosen = torch.from_numpy(rows[:count])
        loss = nn.functional.cross_entropy(module(data.x[chosen]), data.y[chosen])
        loss = loss + mu / 2 * sum(((p - a) ** 2).sum() for p, a in zip(module.parameters(), anchor, strict=True))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return task.weights(module), sum(losses) / max(1, len(losses))


TRAINS = [
    Train(lr=0.1, batch_size=4, epochs=3),
    Train(lr=0.1, momentum=0.9, weight_decay=0.05, batch_size=4, epochs=3),
    Train(optimizer="adam", lr=0.1, weight_decay=0.05, batch_size=4, epochs=3),
    Train(lr=0.1, momentum=0.5, batch_size=4, steps=4),
]


@pytest.mark.parametrize("train", TRAINS, ids=["sgd", "momentum", "adam", "steps"])
@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("norm_layer", ["none", "batch"])
def test_descend_equals_a_hand_written_loop(train: Train, mu: float, norm_layer: str) -> None:
    """Weights, running statistics and the mean objective over the steps, of three ragged clients in one stack."""
    task, data = make_task(norm_layer), make_data()
    w = start(task)
    before = tree.clone(w)
    done, loss = descend(task, train, proximal(task) if mu else nll(task), w, w, data, KEYS)
    for c in range(len(SIZES)):
        expected, mean = by_hand(task, train, w, data, c, mu)
        assert loss[c].item() == pytest.approx(mean, rel=1e-11)
        for k, leaf in expected.items():
            torch.testing.assert_close(done[k][c], leaf, rtol=1e-11, atol=1e-11)
            if k != "base.1.bias" or norm_layer == "none":  # batch normalisation takes a bias before it away again
                assert not torch.equal(done[k][c], before[k][c])
    assert all(torch.equal(w[k], before[k]) for k in w)


def test_no_epochs_is_no_change() -> None:
    task, data = make_task(), make_data()
    w = start(task)
    done, loss = descend(task, Train(epochs=0), nll(task), w, {}, data, KEYS)
    assert all(torch.equal(done[k], w[k]) for k in w)
    assert loss.tolist() == [0, 0, 0]


def test_descend_from_one_shared_start() -> None:
    """An expanded view as the start: clients train apart from each other, and the shared weights stay."""
    task, data = make_task(), make_data()
    shared = task.init(Key.from_seed(0))
    before = tree.clone(shared)
    train = Train(lr=0.1, momentum=0.9, batch_size=4, epochs=2)
    done, _ = descend(task, train, nll(task), tree.expand(shared, 3), {}, data, KEYS)
    own, _ = descend(task, train, nll(task), tree.clone(tree.expand(shared, 3)), {}, data, KEYS)
    for k in shared:
        assert torch.equal(shared[k], before[k])
        assert torch.equal(done[k], own[k])
        assert not torch.equal(done[k][0], done[k][1])


def test_descend_learns() -> None:
    task, data = make_task(), make_data()
    w = start(task)
    done, _ = descend(task, Train(lr=0.5, batch_size=4, epochs=30), nll(task), w, {}, data, KEYS)
    assert (task.data_nll(done, data) < 0.7 * task.data_nll(w, data)).all()


@pytest.mark.parametrize("order", [[1, 2, 0], [0, 1, 2]], ids=["sorted", "unsorted"])
def test_a_channels_last_network_trains_the_same(order: list[int]) -> None:
    """The layout of a user's weights in memory changes no number, whatever the order of the clients."""

    task = Task(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
        Categorical(3),
        dtype=torch.float64,
    )
    data = make_data()
    images = ClientData(normal(3, len(data.y), 3, 4, 4), data.y, data.start, data.size)[order]
    plain = task.init(Key.from_seed(0))
    last = {k: v.to(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in plain.items()}
    train = Train(lr=0.1, batch_size=4)
    a, b = (descend(task, train, nll(task), tree.expand(w, 3), {}, images, KEYS[order])[0] for w in (plain, last))
    for k, leaf in a.items():
        torch.testing.assert_close(b[k], leaf, rtol=1e-10, atol=1e-10)


def test_batches_of_one_do_not_suit_batch_normalisation() -> None:
    """`smallest_batch` drops short last batches, but here every batch is too short."""
    task, data = make_task("batch"), make_data()
    with pytest.raises(FedpriorError, match="batch_size"):
        descend(task, Train(batch_size=1), nll(task), start(task), {}, data, KEYS)


def test_batches_are_padded_only_where_weight_is_zero() -> None:
    """Guards the descent tests: this stack does have ragged batches. In fours, the clients with 5, 11 and 7 examples
    take 4 + 1, 4 + 4 + 3 and 4 + 3; who takes most steps comes first."""
    task, data = make_task(), make_data()
    counts: list[list[int]] = []

    def objective(w: Params, fixed: Any, batch: Batch) -> Tensor:
        counts.append(batch.counts())
        return task.nll(w, batch)

    descend(task, Train(batch_size=4, epochs=1), objective, start(task), {}, data, KEYS)
    assert counts == [[4, 4, 4], [4, 1, 3], [3]]


# Heads alone


@pytest.mark.parametrize("model", ["mlp", "cnn_emnist"])
def test_training_heads_on_cached_features_is_training_them_behind_the_base(model: str) -> None:
    """The same batches and steps as a whole network of which only the head has gradients."""
    shape = (4,) if model == "mlp" else (1, 28, 28)
    task = Task(build(model, {}, shape, 3), Categorical(3), dtype=torch.float64)
    data = ClientData(normal(0, sum(SIZES), *shape), torch.arange(sum(SIZES)) % 3, (0, 5, 16), SIZES)
    train = Train(lr=0.3, batch_size=4, epochs=2, momentum=0.5)
    base, head = task.split(start(task))
    found, loss = descend_head(task, train, head, base, data, KEYS)
    expected, value = descend(
        task, train, lambda w, fixed, batch: task.nll({**fixed, **w}, batch), head, base, data, KEYS
    )
    assert list(found) == list(head)
    torch.testing.assert_close(loss, value)
    for k, v in expected.items():
        torch.testing.assert_close(found[k], v, rtol=1e-10, atol=1e-12)
        assert not torch.allclose(v, head[k])


def test_features_of_the_clients_given_and_no_others() -> None:
    task, data = make_task(), make_data()
    base, _ = task.split(start(task))
    embedded = task.embedded(tree.index(base, [2, 0]), data[[2, 0]])
    assert embedded.size == (SIZES[2], SIZES[0])
    for c, original in enumerate((2, 0)):
        x, y = data.client(original)
        z, labels = embedded.client(c)
        assert torch.equal(labels, y)
        own = {k: v[original : original + 1] for k, v in base.items()}
        torch.testing.assert_close(z, task.features(own, x.unsqueeze(0)).squeeze(0))


def test_a_head_deep_in_a_module_keeps_its_name() -> None:
    module = nn.ModuleDict({"body": nn.Linear(4, 5), "tail": nn.ModuleDict({"last": nn.Linear(5, 3)})})
    module.forward = lambda x: module["tail"]["last"](module["body"](x))  # type: ignore[index]
    task = Task(module, Categorical(3), head="tail.last")
    assert set(task.head_alone.init(Key.from_seed(0))) == {"tail.last.weight", "tail.last.bias"}
    assert task.head_alone.stackable
