"""The engine: how a cohort is cut into stacks, what a round touches, and that workers change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.client import ClientData
from fedprior.data.federation import Federation, from_arrays
from fedprior.data.target import Classes
from fedprior.engine import Engine
from fedprior.engine.stack import STACK_CLIENTS, STACK_SCALARS, chunk_size, compose
from fedprior.methods.fedavg import FedAvg
from fedprior.methods.fedrep import FedRep
from fedprior.models import build as build_model
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.protocol import About, Empty, Hints, Logs, Method
from fedprior.rng import Key, Keys
from fedprior.training import Train
from support import CLASSES, FEATURES, TRAIN, bound, federation, models_of, rounds, same, task

# Stacks


def sized(sizes: list[int]) -> Federation:
    """A federation that is nothing but its training sizes; names do not sort as their numbers do."""
    start = tuple(int(s) for s in np.cumsum([0, *sizes[:-1]]))
    data = ClientData(torch.zeros(sum(sizes), 1), torch.zeros(sum(sizes), dtype=torch.int64), start, tuple(sizes))
    return Federation(tuple(f"c{k}" for k in range(len(sizes))), data, data, data, Classes.numbered(2))


cohorts = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 6), min_size=n, max_size=n),  # few distinct sizes, so that names must break ties
        st.lists(st.integers(0, n - 1), unique=True),
        st.integers(1, 12),
        st.integers(1, 5),
        st.randoms(use_true_random=False),
    )
)


@given(cohorts)
@settings(deadline=None, max_examples=200)
def test_compose_cuts_a_cohort(cohort: Any) -> None:
    """Every client once, stacks even to within one and no longer than `largest`, at least `least`, sizes falling.

    Fewest stacks that allow it: max(⌈n / largest⌉, min(least, n)).
    """
    sizes, rows, largest, least, random = cohort
    data = sized(sizes)
    stacks = compose(rows, data, largest, least)
    joined = [i for stack in stacks for i in stack]
    assert sorted(joined) == sorted(rows)
    assert joined == sorted(rows, key=lambda i: (-sizes[i], data.clients[i]))
    lengths = [len(stack) for stack in stacks]
    assert len(stacks) == max(-(-len(rows) // largest), min(least, len(rows)))
    if lengths:
        assert max(lengths) - min(lengths) <= 1
        assert min(lengths) >= 1
        assert max(lengths) <= largest
    random.shuffle(rows)
    assert compose(rows, data, largest, least) == stacks


def test_compose_is_a_function_of_names_not_of_positions() -> None:
    """The same clients at other rows of the federation form the same stacks, by name."""
    data = federation()
    order = [4, 0, 6, 2, 5, 1, 3]
    shuffled = data.select(order)
    ours = [[data.clients[i] for i in stack] for stack in compose(range(7), data, 3)]
    theirs = [[shuffled.clients[i] for i in stack] for stack in compose(range(7), shuffled, 3)]
    assert ours == theirs


def test_compose_by_hand() -> None:
    """Sizes 5, 9, 5, 7 in stacks of at most 3: ⌈4/3⌉ = 2 stacks of 2; 9 and 7 first, then the fives by name."""
    assert compose([0, 1, 2, 3], sized([5, 9, 5, 7]), 3) == [[1, 3], [0, 2]]
    assert compose([], sized([5]), 3) == []


@pytest.mark.parametrize("hidden", [1, 100, 5000])
def test_automatic_stacks_of_small_models_are_bounded(hidden: int) -> None:
    """4-h-3 has 8h + 3 weights: 11, 803 and 40,003; the bound is 256 clients, then 2.5 million weights.

    Plain SGD keeps no moments.
    """
    model = Task(build_model("mlp", {"hidden": [hidden]}, (FEATURES,), CLASSES), Categorical(CLASSES))
    chosen = chunk_size("auto", FedAvg().bind(model, Train()))
    assert chosen == {1: 256, 100: 256, 5000: 62}[hidden]
    assert chosen <= STACK_CLIENTS
    assert chosen * model.size <= STACK_SCALARS


@pytest.mark.parametrize(
    ("train", "clients"),
    [(Train(), 62), (Train(momentum=0.9), 31), (Train(optimizer="adam"), 20)],
)
def test_automatic_stacks_make_room_for_moments(train: Train, clients: int) -> None:
    """40,003 weights, and once or twice as many moments: 2.5 million / 40,003, 80,006 or 120,009."""
    model = Task(build_model("mlp", {"hidden": [5000]}, (FEATURES,), CLASSES), Categorical(CLASSES))
    assert chunk_size("auto", FedAvg().bind(model, train)) == clients


def test_automatic_stacks_of_other_models() -> None:
    """Convolutions run one by one; so does a perceptron of more than 2.5 million weights; what is given is kept."""
    conv = Task(build_model("lenet5", {}, (1, 16, 16), CLASSES), Categorical(CLASSES))
    assert not conv.stackable
    assert chunk_size("auto", FedAvg().bind(conv, Train())) == 1
    assert chunk_size("auto", FedRep().bind(conv, Train())) == 8, "its heads can be stacked"
    assert chunk_size(3, FedRep().bind(conv, Train())) == 3
    huge = Task(build_model("mlp", {"hidden": [400_000]}, (FEATURES,), CLASSES), Categorical(CLASSES))
    assert huge.stackable
    assert chunk_size("auto", FedAvg().bind(huge, Train())) == 1


# Rounds


class Ledger(NamedTuple):
    """The server of `Tally`."""

    round: Tensor  # [] rounds aggregated
    total: Tensor  # [] examples of the last reporters
    who: Tensor  # [N] 1 for those that reported last


class Diary(NamedTuple):
    """A client of `Tally`."""

    joined: Tensor  # [C] the server's round when it joined
    trained: Tensor  # [C] how often it trained


class News(NamedTuple):
    round: Tensor


class Count(NamedTuple):
    n: Tensor  # [C]


@dataclass(frozen=True, kw_only=True)
class Tally(Method[Ledger, Diary, News, Count, Diary]):
    """Learns nothing and writes down who did what."""

    about = About("tally", "Tally", "none", 2026, "baseline", "a diary", "after local training")

    def init_server(self, key: Key, clients: int = 1) -> Ledger:
        zero = torch.zeros((), dtype=torch.float64)
        return Ledger(zero, zero, torch.zeros(clients))

    def broadcast(self, server: Ledger, ids: Tensor) -> News:
        return News(server.round)

    def init_client(self, down: News, data: ClientData, keys: Keys) -> Diary:
        return Diary(down.round, torch.zeros(len(data)))

    def local_update(self, client: Diary, down: News, data: ClientData, keys: Keys) -> tuple[Diary, Count, Logs]:
        return Diary(client.joined, client.trained + 1), Count(data.n), {"n": data.n}

    def aggregate(self, server: Ledger, ups: Count, ids: Tensor) -> Ledger:
        return Ledger(server.round + 1, ups.n.sum(), torch.zeros_like(server.who).index_fill(0, ids, 1.0))

    def personalise(self, client: Diary, down: News, data: ClientData, keys: Keys) -> Diary:
        return client

    def predict(self, personal: Diary, x: Tensor, keys: Keys) -> Tensor:
        return torch.full((*x.shape[:2], CLASSES), -float(np.log(CLASSES)))


@pytest.mark.parametrize("chunk", [1, 3, "auto"])
def test_only_reporters_are_aggregated_and_only_trainers_move(chunk: Any) -> None:
    """Clients 0, 2, 3 and 6 train, 6 and 2 report: their examples are summed, and four diaries have one entry."""
    data = federation()
    n = data.train.size
    with Engine(Tally(task=task(data)), data, 0, chunk=chunk) as engine:
        logs = engine.round(0, [0, 2, 3, 6], [6, 2]).logs
        states = engine.memory.states
        assert engine.server.total == n[2] + n[6]
        assert engine.server.who.tolist() == [0, 0, 1, 0, 0, 0, 1]
        assert states.trained.tolist() == [1, 0, 1, 1, 0, 0, 1]
        assert logs["n"][[0, 2, 3, 6]].tolist() == [n[0], n[2], n[3], n[6]]
        assert np.isnan(logs["n"][[1, 4, 5]]).all()
        engine.round(1, [3, 5], [5])
        assert engine.server.total == n[5]
        assert states.trained.tolist() == [1, 0, 1, 2, 0, 1, 1]


@pytest.mark.parametrize("chunk", [1, "auto"])
def test_clients_join_when_they_first_train(chunk: Any) -> None:
    """Client 0 joins in round 0, client 3 in round 1 beside it, the others only to predict, after round 2.

    A client that has merely predicted has not joined: client 5 joins for good in round 2, when the ledger says 2.
    """
    data = federation()
    with Engine(Tally(task=task(data)), data, 0, chunk=chunk) as engine:
        engine.round(0, [0], [0])
        engine.round(1, [0, 3], [0])
        engine.evaluate(2, ("test",))
        models = models_of(engine)
        assert [int(m["joined"]) for m in models] == [0, 2, 2, 1, 2, 2, 2]
        assert [int(m["trained"]) for m in models] == [2, 0, 0, 1, 0, 0, 0]
        assert engine.memory.joined.tolist() == [True, False, False, True, False, False, False]
        engine.round(2, [5], [5])
        engine.evaluate(3, ("test",))
        models = models_of(engine)
        assert [int(m["joined"]) for m in models] == [0, 3, 3, 1, 3, 2, 3]


def test_an_untrained_fedmap_client_predicts_with_the_prior() -> None:
    """θ of a client that never trained is γ as it is now, not as it was at the start."""
    data = federation()
    with Engine(bound("fedmap", data), data, 0) as engine:
        start = tree.clone(engine.server)
        for number in range(2):
            engine.round(number, [0, 1], [0, 1])
        gamma = engine.server.gamma
        assert not same(start.gamma, gamma)
        engine.evaluate(2, ("test",))
        models = models_of(engine)
        for name, value in gamma.items():
            assert (models[5][f"w/{name}"] == value.numpy()).all()
            assert (models[0][f"w/{name}"] != value.numpy()).any()


class Value(NamedTuple):
    value: Tensor


@dataclass(frozen=True, kw_only=True)
class Borrower(Method[Value, Empty, Value, Value, Value]):
    """Its server state is a row of the uplinks themselves."""

    about = About("borrower", "Borrower", "none", 2026, "baseline", "nothing", "after aggregation")

    def init_server(self, key: Key, clients: int = 1) -> Value:
        return Value(torch.zeros(3))

    def broadcast(self, server: Value, ids: Tensor) -> Value:
        return server

    def init_client(self, down: Value, data: ClientData, keys: Keys) -> Empty:
        return Empty()

    def local_update(self, client: Empty, down: Value, data: ClientData, keys: Keys) -> tuple[Empty, Value, Logs]:
        return client, Value(down.value + 1), {}

    def aggregate(self, server: Value, ups: Value, ids: Tensor) -> Value:
        return Value(ups.value[0])

    def personalise(self, client: Empty, down: Value, data: ClientData, keys: Keys) -> Value:
        return down

    def predict(self, personal: Value, x: Tensor, keys: Keys) -> Tensor:
        return torch.full((*x.shape[:2], CLASSES), -float(np.log(CLASSES)))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_state_never_lies_among_the_uplinks(workers: int) -> None:
    """The server counts 1, 2, 3; the state of a round survives the rounds after it."""
    data = federation()
    with Engine(Borrower(task=task(data)), data, 0, workers=workers, chunk=4) as engine:
        states = []
        for number in range(3):
            engine.round(number, engine.everyone, engine.everyone)
            states.append(engine.server)
        assert [s.value.tolist() for s in states] == [[1, 1, 1], [2, 2, 2], [3, 3, 3]]


@pytest.mark.parametrize("name", ["fedavg", "fedmap", "local"])
def test_kept_models_are_not_written_over(name: str) -> None:
    """The models that were kept stay as they were when later rounds run and are evaluated."""
    data = federation()
    with Engine(bound(name, data), data, 0) as engine:
        engine.round(0, engine.everyone, engine.everyone)
        engine.evaluate(1, ("test",))
        engine.keep()
        copies = tree.clone(engine.kept)
        engine.round(1, engine.everyone, engine.everyone)
        engine.evaluate(2, ("test",))
        assert same(engine.kept, copies)
        assert not same(engine.memory.personal, copies)


class Letters(NamedTuple):
    value: Tensor  # [N] at the server, [C] in a message or a client's state


class Post(NamedTuple):
    first: Tensor  # [C] what a client got when it joined
    last: Tensor  # [C] what it got now


@dataclass(frozen=True, kw_only=True)
class Postman(Method[Letters, Letters, Letters, Letters, Post]):
    """Every client has a number of its own at the server, which grows by one when it reports; it keeps the first."""

    about = About("postman", "Postman", "none", 2026, "baseline", "a letter", "after aggregation")
    hints = Hints(personal_downlink=True)

    def init_server(self, key: Key, clients: int = 1) -> Letters:
        return Letters(torch.arange(clients, dtype=torch.float64) * 10)

    def broadcast(self, server: Letters, ids: Tensor) -> Letters:
        return Letters(server.value[ids])

    def init_client(self, down: Letters, data: ClientData, keys: Keys) -> Letters:
        return down

    def local_update(
        self, client: Letters, down: Letters, data: ClientData, keys: Keys
    ) -> tuple[Letters, Letters, Logs]:
        return client, Letters(down.value + 1), {"got": down.value}

    def aggregate(self, server: Letters, ups: Letters, ids: Tensor) -> Letters:
        return Letters(server.value.index_copy(0, ids, ups.value))

    def personalise(self, client: Letters, down: Letters, data: ClientData, keys: Keys) -> Post:
        return Post(client.value, down.value)

    def predict(self, personal: Post, x: Tensor, keys: Keys) -> Tensor:
        return torch.full((*x.shape[:2], CLASSES), -float(np.log(CLASSES)))


@pytest.mark.parametrize("chunk", [1, 3, "auto"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_personal_downlink_reaches_the_client_it_is_for(chunk: Any, workers: int) -> None:
    """Client k starts at 10k; 1, 4, 5 train twice, of which 5 and 1 report: 11 and 51 after one round, 12 and 52 then.

    They joined at 10, 40 and 50, the others join beside them to predict, at their own. A message of one client is
    one float64 each way: 8 bytes.
    """
    data = federation()
    with Engine(Postman(task=task(data)), data, 0, chunk=chunk, workers=workers) as engine:
        assert engine.message_bytes() == (8, 8)
        first = engine.round(0, [1, 4, 5], [5, 1]).logs["got"]
        second = engine.round(1, [5, 4, 1], [1, 5]).logs["got"]
        assert first[[1, 4, 5]].tolist() == [10, 40, 50]
        assert second[[1, 4, 5]].tolist() == [11, 40, 51]
        assert engine.server.value.tolist() == [0, 12, 20, 30, 40, 52, 60]
        engine.evaluate(2, ("test",))
        models = models_of(engine)
        assert [float(m["last"]) for m in models] == [0, 12, 20, 30, 40, 52, 60]
        assert [float(m["first"]) for m in models] == [0, 10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("fedmap", torch.float32, (4 * 51 + 8, 4 * 51)),
        ("fedmap", torch.float64, (8 * 51 + 8, 8 * 51)),
        ("local", torch.float32, (0, 0)),
    ],
)
def test_message_bytes(name: str, dtype: torch.dtype, expected: tuple[int, int]) -> None:
    """The perceptron 4-6-3 has 6·4 + 6 + 3·6 + 3 = 51 weights; log ω is one float64; Local sends nothing."""
    data = federation(dtype=dtype)
    with Engine(bound(name, data), data, 0) as engine:
        assert engine.message_bytes() == expected


def test_predictions_come_back_to_their_clients() -> None:
    """Row c of the answer belongs to client c, although stacks are ordered by size: recomputed from its own model."""
    data = federation()
    method = bound("local", data)
    with Engine(method, data, 0, chunk=2) as engine:
        engine.round(0, engine.everyone, engine.everyone)
        found, models = engine.evaluate(1, ("validation", "test")).predictions, models_of(engine)
        for split in ("validation", "test"):
            for c in engine.everyone:
                w = {k.removeprefix("w/"): torch.from_numpy(v)[None] for k, v in models[c].items()}
                expected = method.task.predictive(w, data.split(split).client(c)[0][None])[0]
                np.testing.assert_allclose(found[split][c], expected.numpy(), rtol=1e-6, atol=1e-6)


def test_a_client_without_validation_examples_predicts_nothing_there() -> None:
    data = federation(sizes=(2, 30))
    assert data.validation.size[0] == 0
    with Engine(bound("fedavg", data), data, 0) as engine:
        found = engine.evaluate(0, ("validation",)).predictions
    assert found["validation"][0].shape == (0, CLASSES)
    assert found["validation"][1].shape == (data.validation.size[1], CLASSES)


# Other networks


def images(dtype: torch.dtype = torch.float32) -> Federation:
    rng = np.random.default_rng(3)
    clients = {
        f"camera-{k}": (rng.normal(size=(n, 1, 16, 16)), np.arange(n) % CLASSES) for k, n in enumerate((9, 6, 13))
    }
    return from_arrays(clients, classes=CLASSES).to(dtype)


def lenet(data: Federation, name: str = "fedmap") -> Any:
    return bound(name, data, replace(TRAIN, batch_size=4, epochs=1), build_model("lenet5", {}, data.shape, CLASSES))


def test_a_convolutional_model_runs_one_client_at_a_time() -> None:
    """Automatic stacks hold one client, and give what a stack of three gives."""
    data = images(torch.float64)
    with Engine(lenet(data), data, 0) as engine:
        assert engine.largest == 1
        start = tree.clone(engine.server)
        engine.round(0, engine.everyone, engine.everyone)
        assert not same(start, engine.server)
    single, stacked = (rounds(lenet(data), data, 2, chunk=chunk).vector() for chunk in ("auto", 3))
    np.testing.assert_allclose(stacked, single, rtol=1e-9, atol=1e-9)


def test_a_convolutional_model_with_two_workers_equals_one() -> None:
    data = images()
    one, two = (rounds(lenet(data, "fedavg"), data, 2, workers=w).vector() for w in (1, 2))
    assert (one == two).all()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def test_batch_norm_buffers_are_averaged() -> None:
    """One step on all n_k examples: the statistics of h = W₀x + b₀ enter the buffers before any weight moves.

    So client k has mean_k = 0.9 · 0 + 0.1 · mean(h) and var_k = 0.9 · 1 + 0.1 · var(h) (unbiased), and the server
    Σ n_k mean_k / Σ n_k and Σ n_k var_k / Σ n_k.
    """
    data = federation()
    method = bound("fedavg", data, Train(lr=0.1, batch_size=1000, steps=1), normed())
    with Engine(method, data, 0) as engine:
        w = engine.server.w
        hidden = [data.train.client(c)[0] @ w["0.weight"].T + w["0.bias"] for c in engine.everyone]
        n = data.train.n
        mean = sum(n[c] * 0.1 * h.mean(0) for c, h in enumerate(hidden)) / n.sum()
        var = sum(n[c] * (0.9 + 0.1 * h.var(0)) for c, h in enumerate(hidden)) / n.sum()
        engine.round(0, engine.everyone, engine.everyone)
        torch.testing.assert_close(engine.server.w["1.running_mean"], mean)
        torch.testing.assert_close(engine.server.w["1.running_var"], var)
        assert not any("num_batches_tracked" in name for name in engine.server.w), "counters are never averaged"


@pytest.mark.parametrize("name", ["fedavg", "fedmap"])
def test_batch_norm_in_stacks_equals_single_clients(name: str) -> None:
    """Padding of a shorter client never enters its statistics."""
    data = federation()
    single, stacked = (rounds(bound(name, data, module=normed()), data, chunk=chunk).vector() for chunk in (1, 7))
    assert np.isfinite(single).all()
    np.testing.assert_allclose(stacked, single, rtol=1e-9, atol=1e-9)


def test_running_statistics_are_no_part_of_a_proximal_term() -> None:
    """With a learning rate of 1e-12 no weight moves, so μ/2 ‖w - w_t‖² ≈ 0 and FedProx has FedAvg's loss.

    The running means and variances do move; they are no weights.
    """
    data = federation()
    still = replace(TRAIN, lr=1e-12)
    avg, prox = (
        rounds(bound(name, data, still, normed(), **options), data, 1).logs["loss"]
        for name, options in (("fedavg", {}), ("fedprox", {"mu": 10.0}))
    )
    np.testing.assert_allclose(prox, avg, rtol=1e-6)


def test_spawned_workers_equal_forked_ones() -> None:
    """Where there is no fork, everything travels by pickle: the same numbers, bit for bit."""
    data = federation(dtype=torch.float32)
    fork, spawn = (
        rounds(bound("fedmap", data), data, 2, chunk=3, workers=2, start_method=start).vector()
        for start in ("fork", "spawn")
    )
    assert (fork == spawn).all()
