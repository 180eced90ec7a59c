"""An engine that is told who came back: answers that are missing or not finite, a minimum, checkpoints of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import run, tree
from fedprior.data.client import ClientData
from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import NO_ANSWER, Engine
from fedprior.engine.pool import Done, Runner, do
from fedprior.engine.stack import NOT_FINITE, Answer, Context, EvaluateJob, Job, Memory, TrainJob, finite
from fedprior.errors import FedpriorError, FedpriorWarning
from fedprior.methods import METHODS, build
from fedprior.metrics import evaluate, metrics_of
from fedprior.protocol import About, Logs, Method
from fedprior.rng import Key, Keys
from fedprior.training import Train
from fedprior.wrappers import WRAPPERS
from support import CLASSES, SIZES, bound, federation, same, task


class Unreliable:
    """Does jobs here, but drops those that `lost` names: their clients never answer."""

    def __init__(self, context: Context, memory: Memory, lost: Callable[[Job], bool]) -> None:
        self.context, self.memory, self.lost = context, memory, lost

    def run(self, jobs: Sequence[Job], done: Done) -> None:
        for job in jobs:
            if not self.lost(job):
                done(do(self.context, self.memory, job))

    def close(self) -> None:
        pass


def unreliable(lost: Callable[[Job], bool]) -> Callable[[Context, Memory], Runner]:
    return lambda context, memory: Unreliable(context, memory, lost)


def without(*rows: int) -> Callable[[Job], bool]:
    return lambda job: isinstance(job, TrainJob) and bool(set(rows) & set(job.rows))


# Missing answers


def test_the_prior_is_made_of_those_who_came_back() -> None:
    """Clients 1 and 4 never answer: the server equals that of a round in which they did not report."""
    data = federation()
    others = [0, 2, 3, 5, 6]
    with (
        Engine(bound("fedavg", data), data, 0, chunk=1, runner=unreliable(without(1, 4))) as lossy,
        Engine(bound("fedavg", data), data, 0, chunk=1) as fewer,
    ):
        found = lossy.round(0, lossy.everyone, lossy.everyone)
        fewer.round(0, others, others)
        assert found.counted == others
        assert found.left_out == {1: NO_ANSWER, 4: NO_ANSWER}
        assert same(lossy.server, fewer.server)


def test_a_client_that_did_not_answer_has_not_moved() -> None:
    """Its state is that of the round before, or none at all if it never joined."""
    data = federation()
    lost: list[int] = []
    with Engine(
        bound("ditto", data), data, 0, chunk=1, runner=unreliable(lambda job: bool(set(lost) & set(job.rows)))
    ) as engine:
        lost.append(3)
        engine.round(0, engine.everyone, engine.everyone)
        assert not engine.memory.joined[3]
        lost[:] = [2]
        before = tree.clone(tree.index(engine.memory.states, [2]))
        engine.round(1, engine.everyone, engine.everyone)
        assert same(tree.index(engine.memory.states, [2]), before)
        assert engine.memory.joined.all()
        assert engine.updated.tolist() == [2, 2, 1, 2, 2, 2, 2]


def test_with_too_few_answers_the_prior_stays() -> None:
    """Two of seven answer, three are asked for; clients that answered keep what they learnt."""
    data = federation()
    runner = unreliable(without(0, 1, 2, 3, 4))
    with Engine(bound("fedmap", data), data, 0, chunk=1, runner=runner, min_answers=3) as engine:
        start = tree.clone(engine.server)
        found = engine.round(0, engine.everyone, engine.everyone)
        assert found.counted == []
        assert same(engine.server, start)
        assert engine.memory.joined.tolist() == [False] * 5 + [True] * 2
    with Engine(bound("fedmap", data), data, 0, chunk=1, runner=runner, min_answers=2) as engine:
        assert engine.round(0, engine.everyone, engine.everyone).counted == [5, 6]


def test_a_runner_may_say_why() -> None:
    data = federation()

    class Excuses(Unreliable):
        def run(self, jobs: Sequence[Job], done: Done) -> None:
            for job in jobs:
                refused = {row: "its table does not fit" for row in job.rows if row == 2}
                done(Answer([], left_out=refused) if refused else do(self.context, self.memory, job))

    with Engine(bound("fedavg", data), data, 0, chunk=1, runner=lambda c, m: Excuses(c, m, without())) as engine:
        assert engine.round(0, engine.everyone, engine.everyone).left_out == {2: "its table does not fit"}


def test_clients_that_cannot_be_evaluated_have_no_metrics() -> None:
    data = federation()
    runner = unreliable(lambda job: isinstance(job, EvaluateJob) and 4 in job.rows)
    with Engine(bound("fedavg", data), data, 0, chunk=1, runner=runner) as engine:
        found = engine.evaluate(0, ("test",))
    assert found.scores["test"][4] == {}
    assert all(found.scores["test"][c] for c in engine.everyone if c != 4)


# Updates that are not finite


class Number(NamedTuple):
    value: Tensor


@dataclass(frozen=True, kw_only=True)
class Poisoned(Method[Number, Number, Number, Number, Number]):
    """Everyone adds one; the client with `size` examples sends something else."""

    about = About("poisoned", "Poisoned", "none", 2026, "baseline", "a number", "after local training")

    size: int = 0
    poison: Annotated[float, Field(allow_inf_nan=True)] = float("nan")

    def init_server(self, key: Key, clients: int = 1) -> Number:
        return Number(torch.zeros(2))

    def broadcast(self, server: Number, ids: Tensor) -> Number:
        return server

    def init_client(self, down: Number, data: ClientData, keys: Keys) -> Number:
        return down

    def local_update(self, client: Number, down: Number, data: ClientData, keys: Keys) -> tuple[Number, Number, Logs]:
        bad = torch.tensor([n == self.size for n in data.size])
        sent = (client.value + 1).masked_fill(bad[:, None], self.poison)
        return Number(sent), Number(sent), {"loss": sent[:, 0]}

    def aggregate(self, server: Number, ups: Number, ids: Tensor) -> Number:
        return Number(ups.value.mean(0))

    def personalise(self, client: Number, down: Number, data: ClientData, keys: Keys) -> Number:
        return client

    def predict(self, personal: Number, x: Tensor, keys: Keys) -> Tensor:
        return torch.full((*x.shape[:2], CLASSES), -float(np.log(CLASSES)))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("chunk", "workers"), [(1, 1), (3, 1), (7, 1), (3, 2)])
def test_an_update_that_is_not_finite_did_not_happen(poison: float, chunk: int, workers: int) -> None:
    """The mean is that of the six others, 1 then 2; the seventh stays where it joined, which is nowhere yet."""
    data = federation()
    victim = 2
    method = Poisoned(task=task(data), size=data.train.size[victim], poison=poison)
    with Engine(method, data, 0, chunk=chunk, workers=workers) as engine:
        for number in range(2):
            found = engine.round(number, engine.everyone, engine.everyone)
            assert found.left_out == {victim: NOT_FINITE}
            assert found.counted == [0, 1, 3, 4, 5, 6]
            assert engine.server.value.tolist() == [number + 1.0] * 2
        assert not engine.memory.joined[victim]
        assert engine.memory.states.value[victim].tolist() == [0, 0], "nothing of it was written"
        engine.evaluate(2, ("test",))
        assert engine.memory.personal.value[victim].tolist() == [2, 2], "as a client that joins now, it has the prior"


def test_finite_by_hand() -> None:
    up = {
        "w": torch.tensor([[1.0, 2.0], [float("inf"), -float("inf")], [3e38, 3e38], [0.0, 0.0]]),
        "choice": torch.tensor([1, 2, 3, 4]),
        "n": torch.tensor([1.0, 1.0, 1.0, float("nan")], dtype=torch.float64),
    }
    assert finite(up, {}, 4) == [True, False, False, False], "3e38 twice is more than single precision can add up"
    kept = {"v": torch.tensor([[float("nan")], [0.0], [0.0], [0.0]])}
    assert finite(up, kept, 4) == [False] * 4
    assert finite({}, kept, 4) == [True] * 4, "a method that sends nothing shows its own failure"


def wild(sizes: tuple[int, ...] = SIZES) -> Federation:
    """The usual clients, one of which measures in units of 1e30."""
    rng = np.random.default_rng(0)
    clients = {}
    for k, n in enumerate(sizes):
        scale = 1e30 if k == 2 else 1.0
        clients[f"site-{k}"] = (scale * (1 + rng.normal(size=(n, 4))), np.arange(n) % CLASSES)
    return from_arrays(clients, classes=CLASSES)


EVERYONE = [*(name for name in sorted(METHODS) if name != "local"), *(f"fedavg+{name}" for name in sorted(WRAPPERS))]


@pytest.mark.parametrize("name", EVERYONE)
def test_one_wild_client_leaves_the_others_finite(name: str) -> None:
    """Whatever the method: the journal names the client, and everyone else has a model with finite predictions."""
    data = wild()
    with pytest.warns(FedpriorWarning):
        result = run(build(name), data, model={"name": "mlp", "hidden": [6]}, rounds=3, workers=1, select="last")
    for client, values in result.values.items():
        if client != "site-2":
            assert values["nll"] is not None
            assert np.isfinite(values["nll"]), client
    assert set(result.summary["left_out"]) == {"site-2"}


def odd(kind: str) -> Federation:
    """The usual clients, one of which has data that nothing can be learnt from, or that ruin what is learnt."""
    rng = np.random.default_rng(0)
    clients: dict[str, tuple[Any, Any]] = {}
    for k, n in enumerate(SIZES):
        clients[f"site-{k}"] = (1 + rng.normal(size=(n, 4)), np.arange(n) % CLASSES)
    x, y = clients["site-2"]
    clients["site-2"] = {
        "constant labels": (x, np.zeros_like(y)),
        "constant inputs": (np.ones_like(x), y),
        "one row to train on": (x[:2], y[:2]),
        "squares that overflow": (1e25 * x, y),
    }[kind]
    return from_arrays(clients, classes=CLASSES, validation=0.0 if len(clients["site-2"][1]) == 2 else 0.1)


@pytest.mark.parametrize("kind", ["constant labels", "constant inputs", "one row to train on", "squares that overflow"])
@pytest.mark.parametrize("name", EVERYONE)
@pytest.mark.filterwarnings("ignore::fedprior.errors.FedpriorWarning")
def test_one_odd_client_leaves_the_others_finite(name: str, kind: str) -> None:
    result = run(build(name), odd(kind), model={"name": "mlp", "hidden": [6]}, rounds=2, workers=1, select="last")
    assert set(result.summary["left_out"]) <= {"site-2"}
    for client, values in result.values.items():
        if client != "site-2":
            assert values["nll"] is not None
            assert np.isfinite(values["nll"]), client


@pytest.mark.parametrize("name", [name for name in EVERYONE if not build(name).about.needs_classes])
@pytest.mark.filterwarnings("ignore::fedprior.errors.FedpriorWarning")
def test_one_client_with_huge_numbers_leaves_the_others_finite(name: str) -> None:
    """Its target is 1e30 times as large: the others' variances are beyond single precision, their densities are not."""
    rng = np.random.default_rng(0)
    rows = [(1 + rng.normal(size=(n, 4)), rng.normal(size=n)) for n in SIZES]
    clients = {f"site-{k}": (x, 1e30 * y if k == 2 else y) for k, (x, y) in enumerate(rows)}
    data = from_arrays(clients, target="number")
    result = run(build(name), data, model={"name": "mlp", "hidden": [6]}, rounds=2, workers=1, select="last")
    for client, values in result.values.items():
        if client != "site-2":
            assert values["nll"] is not None
            assert np.isfinite(values["nll"]), client


def test_a_network_that_is_not_finite_is_left_out_everywhere() -> None:
    """The rehearsal that tells shapes leaves the dummy client out too."""

    class Lost(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.nan

    network = Lost(4, CLASSES)
    with pytest.warns(FedpriorWarning, match=r"7 of 7 clients were left out"):
        result = run(build("fedbps"), federation(dtype=torch.float32), model=network, rounds=1, workers=1)
    assert len(result.summary["left_out"]) == len(SIZES)


# Pulls that overshoot


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("fedmap", "sigma2", 0.05),
        ("fedprox", "strength", 20.0),
        ("ditto", "strength", 20.0),
    ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_pull_that_overshoots_is_refused(name: str, option: str, value: float, momentum: float) -> None:
    """λ = 20: a step of 0.1 multiplies the distance by -1; with momentum m, the bound is 2 (1 + m)."""
    data, lr, options = federation(), 0.1 * (1 + momentum), cast(Any, {option: value})
    with pytest.raises(FedpriorError, match=f"method '{name}': train.lr · 20 = .* overshoot"):
        bound(name, data, Train(lr=lr, momentum=momentum), **options)
    assert bound(name, data, Train(lr=0.99 * lr, momentum=momentum), **options)
    assert bound(name, data, Train(lr=10.0, optimizer="adam"), **options), "Adam's steps have a length"
    assert bound(name, data, Train(lr=10.0, clip=1.0), **options), "so have those that are clipped"


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_bound_is_exact(momentum: float) -> None:
    """v ← m v + λ w, w ← w - lr v: just below the bound w goes to zero, just above it grows."""
    for share, shrinks in ((0.99, True), (1.01, False)):
        train = Train(lr=0.1, momentum=momentum)
        assert train.steepest is not None
        w, v = 1.0, 0.0
        for _ in range(3000):
            v = momentum * v + share * train.steepest * w
            w -= train.lr * v
        assert (abs(w) < 1e-3) is shrinks


@pytest.mark.parametrize("name", ["pfedme", "pfedbred"])
def test_a_prox_solver_that_overshoots_is_refused(name: str) -> None:
    with pytest.raises(FedpriorError, match="prox_lr · strength = 2 makes the prox solver overshoot"):
        build(name, {"prox_lr": 0.1, "strength": 20.0})
    assert build(name, {"prox_lr": 0.099, "strength": 20.0})


# What a checkpoint holds


@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedvem", "fedamp"])
def test_a_snapshot_is_all_there_is(name: str) -> None:
    """An engine that is restored goes on bit for bit: server, states, who joined, kept models, logs."""
    data = federation()
    method = bound(name, data)
    half = [0, 2, 5]
    with Engine(method, data, 3) as whole, Engine(method, data, 3) as again:
        whole.round(0, half, half)
        whole.evaluate(1, ("test",))
        whole.keep()
        again.restore({k: v.clone() for k, v in whole.snapshot().items()})
        for engine in (whole, again):
            engine.round(1, engine.everyone, engine.everyone)
            engine.evaluate(2, ("test",))
        assert same(whole.server, again.server)
        assert same(whole.memory.states, again.memory.states)
        assert same(whole.memory.personal, again.memory.personal)
        assert same(whole.kept, again.kept)
        assert whole.updated.tolist() == again.updated.tolist()
        assert all((whole.logs[k] == again.logs[k]).all() for k in whole.logs)


def test_an_engine_without_kept_models_restores_without() -> None:
    data = federation()
    with Engine(bound("fedavg", data), data, 3) as engine:
        engine.restore(engine.snapshot())
        assert engine.kept is None


# Evaluation where the data are


def test_metrics_are_those_of_the_predictions() -> None:
    data = federation()
    with Engine(bound("fedavg", data), data, 0, chunk=3) as engine:
        engine.round(0, engine.everyone, engine.everyone)
        found = engine.evaluate(1, ("validation", "test"))
    metrics = metrics_of(data.target)
    for split in ("validation", "test"):
        for c, y in enumerate(data.labels(split)):
            assert found.scores[split][c] == evaluate(metrics, found.predictions[split][c], y)


def test_the_rehearsal_needs_no_rows() -> None:
    """Shapes follow from the outline of a federation: an engine starts although client 0 has rows of nan."""
    data = federation()
    data.train.x[: data.train.size[0]] = float("nan")
    with Engine(bound("fedpac", data), data, 0) as engine:
        assert engine.message_bytes()[0] > 0


class Ragged(NamedTuple):
    seen: Tensor  # [C, n]


@dataclass(frozen=True, kw_only=True)
class Remembers(Method[Number, Ragged, Number, Number, Number]):
    """Keeps a number per example, which the engine has no room for."""

    about = About("remembers", "Remembers", "none", 2026, "baseline", "its examples", "after local training")

    def init_server(self, key: Key, clients: int = 1) -> Number:
        return Number(torch.zeros(2))

    def broadcast(self, server: Number, ids: Tensor) -> Number:
        return server

    def init_client(self, down: Number, data: ClientData, keys: Keys) -> Ragged:
        return Ragged(torch.zeros(len(data), max(data.size)))

    def local_update(self, client: Ragged, down: Number, data: ClientData, keys: Keys) -> tuple[Ragged, Number, Logs]:
        return client, down, {}

    def aggregate(self, server: Number, ups: Number, ids: Tensor) -> Number:
        return server

    def personalise(self, client: Ragged, down: Number, data: ClientData, keys: Keys) -> Number:
        return down

    def predict(self, personal: Number, x: Tensor, keys: Keys) -> Tensor:
        return torch.zeros(*x.shape[:2], CLASSES)


def test_a_state_whose_length_differs_by_client_is_refused_in_a_sentence() -> None:
    data = federation()
    method: Any = Remembers(task=task(data))
    with Engine(method, data, 0, chunk=1) as engine, pytest.raises(FedpriorError) as told:
        engine.round(0, engine.everyone, engine.everyone)
    assert "entry 'seen' of a client's states" in str(told.value)
    assert "must not depend on the number of examples" in str(told.value)
    assert "\n" not in str(told.value)
