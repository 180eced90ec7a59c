"""FedPer, FedRep, LG-FedAvg and FedBABU: what is shared, what is trained when, and the two ends of the skeleton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedprior import tree
from fedprior.data.client import schedule
from fedprior.methods._split import Client, Shared, Split
from fedprior.methods.fedbabu import FedBABU
from fedprior.methods.fedper import FedPer
from fedprior.methods.fedrep import FedRep
from fedprior.methods.lg_fedavg import LGFedAvg
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.training import Train
from fedprior.tree import Params
from support import HALF, TRAIN, bound, federation, keys, one_round, rounds, same, with_train

NAMES = ("fedper", "fedrep", "lg_fedavg", "fedbabu")
HEAD, BASE = {"head.weight", "head.bias"}, {"base.1.weight", "base.1.bias"}


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def split(name: str, data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> Any:
    method = bound(name, data, train, module, **options)
    assert isinstance(method, Split)
    return method


def batches(method: Split, train: Train, data: Any, c: int, own: Keys) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of client c in the order in which a local run sees them."""
    plan = schedule(data[[c]], own.fold("descend")[[c]], train.budget(method.task))
    for rows, counts in zip(plan.rows[:, 0], plan.counts[:, 0], strict=True):
        picked = torch.from_numpy(rows[:counts])
        yield data.x[picked], data.y[picked]


def sgd(method: Split, train: Train, w: Params, free: set[str], data: Any, c: int, own: Keys) -> Params:
    """One client's local run on the entries `free`, naively: torch's module, loss and SGD."""
    leaves = {k: v.clone().requires_grad_(k in free) for k, v in w.items()}
    optimizer = torch.optim.SGD([leaves[k] for k in sorted(free)], lr=train.lr, momentum=train.momentum)
    for x, y in batches(method, train, data, c, own):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(functional_call(method.task.module, leaves, (x,)), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {k: v.detach() for k, v in leaves.items()}


def close(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=1e-12) for k in a)


@pytest.mark.parametrize(
    ("name", "shared"), [("fedper", BASE), ("fedrep", BASE), ("fedbabu", BASE), ("lg_fedavg", HEAD)]
)
def test_what_is_shared(name: str, shared: set[str]) -> None:
    """FedPer, FedRep, FedBABU: the base. LG-FedAvg, the reverse: the last layer. (Public code has it the wrong way.)"""
    data = federation()
    server, down, client, updated, up = one_round(split(name, data), data)
    assert set(server.w) == set(down.w) == set(up.w) == shared
    assert set(client.own) == set(updated.own) == (HEAD | BASE) - shared


def test_lg_fedavg_shares_the_last_layers() -> None:
    """Of three linear layers, `shared_layers` = 2 shares the last two and keeps the first: representations first."""
    data = federation()
    deep = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    for count, first in ((1, 5), (2, 3), (3, 1)):
        method = split("lg_fedavg", data, module=deep, shared_layers=count)
        shared = {k for k in method.task.init(Key.from_seed(0)) if method.shares(k)}
        assert shared == {f"{layer}.{part}" for layer in (1, 3, 5) if layer >= first for part in ("weight", "bias")}


class WithProbe(nn.Module):
    """A classifier that is not the last layer to be registered: an unused probe comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.top = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.probe = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.top(self.second(self.first(x.flatten(1)).relu()).relu())
        return out


def test_lg_fedavg_counts_from_the_tasks_head() -> None:
    """With head="top": top; then second, top; then first, second, top. Never the probe, which is registered last."""
    data = federation()
    named = Task(WithProbe(), likelihood_of(data.target), head="top", dtype=torch.float64)
    for count, layers in (
        (1, {"top"}),
        (2, {"second", "top"}),
        (3, {"first", "second", "top"}),
        (9, {"first", "second", "top"}),
    ):
        method = LGFedAvg(shared_layers=count).bind(named, TRAIN)
        shared = {k for k in named.init(Key.from_seed(0)) if method.shares(k)}
        assert shared == {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}


JOINT = ("fedper", "lg_fedavg", "fedrep")


def jointly(self: FedRep, w: Params, data: Any, keys: Keys) -> Any:
    """FedRep's local training with its two phases made one."""
    return FedPer.fit(self, w, data, keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", JOINT)
@pytest.mark.parametrize("module", [None, normed()])
def test_nothing_personal_is_fedavg(name: str, module: nn.Module | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty personal part and joint training: server, models and predictions, bit for bit."""
    data = federation()
    monkeypatch.setattr(FedRep, "fit", jointly)
    for kind in (FedPer, FedRep, LGFedAvg):
        monkeypatch.setattr(kind, "shares", lambda self, name: True)
    ours, theirs = (rounds(bound(n, data, module=module), data, participation=HALF) for n in (name, "fedavg"))
    assert (ours.vector() == theirs.vector()).all()
    assert same(ours.server, theirs.server)


@pytest.mark.parametrize("name", JOINT)
@pytest.mark.parametrize("module", [None, normed()])
def test_everything_personal_is_local(name: str, module: nn.Module | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty shared part and joint training: isolated training, bit for bit; nothing is sent but a count."""
    data = federation()
    monkeypatch.setattr(FedRep, "fit", jointly)
    for kind in (FedPer, FedRep, LGFedAvg):
        monkeypatch.setattr(kind, "shares", lambda self, name: False)
    ours, theirs = (rounds(bound(n, data, module=module), data, participation=HALF) for n in (name, "local"))
    assert (ours.vector() == theirs.vector()).all()
    assert not ours.server


@pytest.mark.parametrize(("name", "shared"), [("fedper", BASE), ("lg_fedavg", HEAD)])
def test_two_rounds_of_joint_training_against_plain_loops(name: str, shared: set[str]) -> None:
    """Each client: everything by SGD from (new shared part, own part). Server: Σ n_k w_k / Σ n_k of the shared part."""
    data = federation()
    method, total = split(name, data), sum(data.train.size)
    server, stack, client, _, _ = one_round(method, data)
    start = method.task.init(Key.from_seed(5).fold("init"))
    models, common = [start] * len(data), {k: start[k] for k in shared}
    for t in range(2):
        own, down = keys(data, "round", t), tree.expand(method.broadcast(server, torch.arange(len(data))), len(data))
        client, up, _ = method.local_update(client, down, data.train, own)
        server = method.aggregate(server, up, torch.arange(len(data)))
        models = [sgd(method, TRAIN, {**w, **common}, HEAD | BASE, data.train, c, own) for c, w in enumerate(models)]
        common = {
            k: torch.stack([n / total * w[k] for n, w in zip(data.train.size, models, strict=True)]).sum(0)
            for k in sorted(shared)
        }
        for c, w in enumerate(models):
            assert close(tree.index({**client.own, **up.w}, c), {k: w[k] for k in (*client.own, *up.w)})
        assert close(server.w, common)
    assert same(tree.index(stack.w, 0), {k: start[k] for k in sorted(shared)})


def test_fedrep_against_two_plain_loops() -> None:
    """Three epochs on the head with the base frozen, then two on the base with the new head frozen."""
    data = federation()
    method = split("fedrep", data, head_epochs=3)
    server, _, client, updated, up = one_round(method, data)
    own = keys(data, "round", 0)
    for c in range(len(data)):
        w = {**server.w, **tree.index(client.own, c)}
        w = sgd(method, TRAIN.lasting(3), w, HEAD, data.train, c, own.fold("head"))
        w = sgd(method, TRAIN, w, BASE, data.train, c, own.fold("base"))
        assert close(tree.index({**updated.own, **up.w}, c), {k: w[k] for k in (*updated.own, *up.w)})


def test_fedrep_without_head_epochs_leaves_heads() -> None:
    data = federation()
    trace = rounds(split("fedrep", data, head_epochs=0), data)
    start = bound("fedavg", data).task.init(Key.from_seed(5).fold("init"))
    for k in HEAD:
        assert torch.equal(trace.states[f"own/{k}"], start[k].expand(len(data), *start[k].shape))
    assert any((trace.server[f"w/{k}"] != start[k]).any() for k in BASE)


@pytest.mark.parametrize("module", [None, normed()])
def test_fedrep_trains_one_part_at_a_time(module: nn.Module | None) -> None:
    """With no base epochs the base comes back bit for bit, running statistics included; the head is then the one that
    any number of base epochs leaves untouched."""
    data = federation(sizes=(30, 21, 12))
    head_only = split("fedrep", data, TRAIN.lasting(0), module, head_epochs=3)
    server = tree.clone(head_only.init_server(Key.from_seed(5)))
    both = split("fedrep", data, module=module, head_epochs=3)
    _, _, client, after_head, up = one_round(head_only, data)
    assert same(up.w, tree.clone(tree.expand(server.w, 3)))
    assert all((after_head.own[k] != client.own[k]).any() for k in client.own)
    assert same(one_round(both, data)[3].own, after_head.own)


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg_fedavg", "fedbabu", "fedbn"])
@pytest.mark.parametrize("predict_with", ["aggregated", "trained"])
def test_running_statistics_that_came_in_are_not_written_to(name: str, predict_with: str) -> None:
    """A stack shares the memory of what came down, so a written running mean would leak from client to client."""
    data = federation(sizes=(30, 21, 12))
    method = split(name, data, module=normed(), predict_with=predict_with)
    fresh = method.init_server(Key.from_seed(5))
    server, down, client, updated, _ = one_round(method, data)
    assert same(server, fresh)
    before = tree.clone({"client": client, "down": down, "updated": updated})
    method.personalise(updated, down, data.train, keys(data, "p"))
    assert same(before, {"client": client, "down": down, "updated": updated})


@pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
def test_a_stack_of_normed_networks_equals_single_clients(name: str) -> None:
    """The contract's check, for networks with running statistics."""
    data = federation(sizes=(30, 21, 12))
    one, three = (rounds(split(name, data, module=normed()), data, chunk=chunk).vector() for chunk in (1, 3))
    assert abs(one - three).max() < 1e-10


def test_fedbabu_head_stays_at_its_start() -> None:
    """Through rounds and fine-tuning the head in the client's state is the common random one, bit for bit."""
    data = federation()
    trace = rounds(split("fedbabu", data), data)
    start = bound("fedavg", data).task.init(Key.from_seed(5).fold("init"))
    for k in HEAD:
        assert torch.equal(trace.states[f"own/{k}"], start[k].expand(len(data), *start[k].shape))
        for model in trace.models.values():
            assert (model[f"w/{k}"] != start[k].numpy()).any()


def test_fedbabu_trains_the_base_against_the_fixed_head() -> None:
    data = federation()
    method = split("fedbabu", data)
    server, _, client, _, up = one_round(method, data)
    for c in range(len(data)):
        w = {**server.w, **tree.index(client.own, c)}
        w = sgd(method, TRAIN, w, BASE, data.train, c, keys(data, "round", 0))
        assert close(tree.index(up.w, c), {k: w[k] for k in up.w})


@pytest.mark.parametrize(("ft", "free"), [("head", HEAD), ("all", HEAD | BASE)])
def test_fedbabu_fine_tunes_a_copy(ft: str, free: set[str]) -> None:
    """Some epochs of plain SGD on the head, or on everything, from (newest base, start head)."""
    data = federation()
    method = split("fedbabu", data, ft=ft, ft_epochs=3)
    _, down, client, updated, _ = one_round(method, data)
    own = keys(data, "personalise")
    tuned = method.personalise(updated, down, data.train, own)
    for c in range(len(data)):
        w = tree.index({**client.own, **down.w}, c)
        expected = sgd(method, TRAIN.lasting(3), w, free, data.train, c, own)
        assert close(tree.index(tuned.w, c), {k: expected[k] for k in tuned.w})
        assert all(torch.equal(tuned.w[k][c], w[k]) for k in tuned.w if k not in free)


@pytest.mark.parametrize("ft", ["head", "all"])
@pytest.mark.parametrize("module", [None, normed()])
def test_fedbabu_fine_tuning_leaves_no_trace(ft: str, module: nn.Module | None) -> None:
    """Server and states are the same bit for bit with and without it; evaluating twice gives the same model."""
    data = federation(sizes=(30, 21, 12))
    with_ft, without = (split("fedbabu", data, module=module, ft=ft, ft_epochs=e) for e in (4, 0))
    a, b = (rounds(m, data) for m in (with_ft, without))
    assert same(a.server, b.server)
    assert same(a.states, b.states)
    _, down, _, updated, _ = one_round(with_ft, data)
    first, second = (tree.clone(with_ft.personalise(updated, down, data.train, keys(data, "p"))) for _ in range(2))
    assert same(first, second)


def test_fedbabu_without_fine_tuning_predicts_with_the_base_and_the_start_head() -> None:
    data = federation()
    method = split("fedbabu", data, ft_epochs=0)
    _, down, client, updated, _ = one_round(method, data)
    personal = method.personalise(updated, down, data.train, keys(data, "p"))
    assert same(personal.w, tree.clone({k: {**client.own, **down.w}[k] for k in sorted(HEAD | BASE)}))


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg_fedavg"])
def test_the_personal_model(name: str) -> None:
    """Own part with the newest shared part, or (`predict_with` = "trained") with the shared part as trained here."""
    data = federation()
    for choice, moment in (("aggregated", "after aggregation"), ("trained", "after local training")):
        method = split(name, data, predict_with=choice)
        server, _, _, updated, up = one_round(method, data)
        new = tree.expand(method.aggregate(server, up, torch.arange(len(data))), len(data))
        personal = method.personalise(updated, new, data.train, keys(data, "p")).w
        shared = new.w if choice == "aggregated" else up.w
        assert same(personal, tree.clone({k: {**updated.own, **shared}[k] for k in personal}))
        assert method.moment == moment
        assert set(updated.trained) == (set(up.w) if choice == "trained" else set())


def test_the_mean_is_weighted_by_examples() -> None:
    """n = (1, 3): (1·0 + 3·4)/4 = 3."""
    data = federation(sizes=(30, 21))
    for name in NAMES:
        method = split(name, data)
        up = one_round(method, data)[4]
        up = up._replace(
            w={"w": torch.tensor([[0.0], [4.0]]).double()}, n=torch.tensor([1.0, 3.0], dtype=torch.float64)
        )
        assert method.aggregate(Shared({}), up, torch.arange(2)).w["w"].tolist() == [3.0]


def test_a_client_that_joins_late_has_the_common_start() -> None:
    """The personal part follows from the seed alone: whatever the server has learnt since, and for every client."""
    data = federation(sizes=(30, 21))
    for name in ("fedper", "fedrep", "lg_fedavg", "fedbabu"):
        method = split(name, data)
        start = method.task.init(Key.from_seed(5).fold("init"))
        down = one_round(method, data)[1]
        later = Shared(tree.map(lambda v: v + 1, down.w))
        client = method.init_client(later, data.train, keys(data, "join"))
        assert isinstance(client, Client)
        for k, v in client.own.items():
            assert all(torch.equal(row, start[k]) for row in v)


def test_steps_replace_epochs_of_the_base_only() -> None:
    """`train.steps` sets the length of the base's run; the head still has its own epochs."""
    data = federation(sizes=(30, 21))
    method = split("fedrep", data, head_epochs=2)
    heads = [one_round(with_train(method, steps=s), data)[3].own for s in (0, 3)]
    assert same(*heads)
    assert isinstance(method, FedRep)
    assert isinstance(split("fedbabu", data), FedBABU)
