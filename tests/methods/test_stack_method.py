"""A stack: experts as they are alone, weights from rows that nobody was trained on, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import fedprior
from fedprior import tree
from fedprior.data.client import ClientData, every_third
from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError
from fedprior.experiment.config import Settings
from fedprior.experiment.loop import execute
from fedprior.methods import build
from fedprior.mixture import Mixture
from fedprior.protocol import METHODS, About, Empty, Hints, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import Train
from support import CLASSES, HALF, bound, federation, keys, one_round, regression, rounds, same


def stack(data: Federation, *experts: str, **options: Any) -> Mixture:
    found = bound("stack", data, experts=experts, **options)
    assert isinstance(found, Mixture)
    return found


@pytest.mark.parametrize("make", [federation, regression])
@pytest.mark.parametrize("name", ["local", "fedavg_ft", "pfedvem"])
def test_one_expert_is_that_expert(name: str, make: Any) -> None:
    data = make()
    alone, stacked = rounds(bound(name, data), data), rounds(stack(data, name, temperatures=[1]), data)
    for client in data.clients:
        np.testing.assert_allclose(stacked.test[client], alone.test[client], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scores", ["validation", "holdout"])
@pytest.mark.parametrize("experts", [("local", "fedavg_ft", "pfedvem"), ("fedavg+opt", "fedamp", "scaffold")])
def test_experts_are_what_they_are_alone(experts: tuple[str, ...], scores: str) -> None:
    """Server and personal models, bit for bit; each one's messages are counted in full."""
    data = federation()
    together = rounds(stack(data, *experts, scores=scores, score_every=1), data)
    for name in experts:
        alone = rounds(bound(name, data), data)
        for path, leaf in alone.server.items():
            assert torch.equal(together.server[f"experts/{name}/{path}"], leaf)
        for client in data.clients:
            for path, value in alone.models[client].items():
                assert (together.models[client][f"experts/{name}/{path}"] == value).all()


def test_experts_on_one_trajectory_train_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg, FedAvg-FT and FedAvg+FT: one server, three personal models, each as it is alone."""
    data, trained, cls = federation(), [], METHODS["fedavg"]
    plain = cls.local_update

    def counted(self: AnyMethod, *given: Any) -> Any:
        trained.append(self)
        return plain(self, *given)

    monkeypatch.setattr(cls, "local_update", counted)
    experts = ("fedavg", "fedavg_ft", "fedavg+ft")
    method = stack(data, *experts)
    together = rounds(method, data, chunk=len(data))
    assert len(trained) == 4  # three rounds, and the engine's rehearsal
    assert method.leaders == dict.fromkeys(experts, "fedavg")
    assert {path.split("/")[1] for path in together.server if path.startswith("experts")} == {"fedavg"}
    for name in experts:
        alone = rounds(bound(name, data), data)
        for client in data.clients:
            for path, value in alone.models[client].items():
                assert (together.models[client][f"experts/{name}/{path}"] == value).all()


def test_other_options_are_another_trajectory() -> None:
    data = federation()
    assert bound("fedavg_ft", data, ft_epochs=3).trajectory == bound("fedavg", data).trajectory
    assert bound("fedprox", data).trajectory != bound("fedavg", data).trajectory
    assert bound("fedprox", data, strength=3.0).trajectory != bound("fedprox", data).trajectory
    assert bound("fedprox+server_step", data).trajectory != bound("fedprox", data).trajectory


def test_identical_experts_share_the_prediction() -> None:
    """FedAvg, and FedAvg-FT with no steps: whatever the weights are, the mixture is FedAvg."""
    data = federation()
    alone = rounds(bound("fedavg", data), data)
    both = rounds(stack(data, "fedavg", "fedavg_ft", options={"fedavg_ft": {"ft_epochs": 0}}, temperatures=[1]), data)
    for client in data.clients:
        np.testing.assert_allclose(both.test[client], alone.test[client], rtol=1e-6, atol=1e-6)


# Experts made for the tests


@register
class Spy(Method[Empty, Empty, Empty, Empty, Weights]):
    """Memorises every row that it is shown, and predicts those it knows; others by chance."""

    about = About("spy", "Spy", "none", 2026, "baseline", "rows", "after local training")
    seen: ClassVar[list[tuple[str, Tensor]]] = []  # what every spy was shown

    def init_server(self, key: Key, clients: int = 1) -> Empty:
        return Empty()

    def broadcast(self, server: Empty, ids: Tensor) -> Empty:
        return Empty()

    def aggregate(self, server: Empty, ups: Empty, ids: Tensor) -> Empty:
        return server

    def _note(self, what: str, data: ClientData) -> None:
        self.seen.extend((what, data.client(c)[0]) for c in range(len(data)))
        if data.validation is not None:
            self.seen.extend(("validation", data.validation.client(c)[0]) for c in range(len(data)))

    def init_client(self, down: Empty, data: ClientData, keys: Keys) -> Empty:
        self._note("join", data)
        return Empty()

    def local_update(self, client: Empty, down: Empty, data: ClientData, keys: Keys) -> tuple[Empty, Empty, Logs]:
        self._note("train", data)
        return client, Empty(), {}

    def personalise(self, client: Empty, down: Empty, data: ClientData, keys: Keys) -> Weights:
        self._note("personalise", data)
        known = data.validation
        rows = torch.full((len(data), 64, data.x.shape[1]), torch.inf, dtype=data.x.dtype)
        labels = torch.zeros(len(data), 64, dtype=torch.int64)
        for c in range(len(data)):
            if known is not None:
                x, y = known.client(c)
                rows[c, : len(x)], labels[c, : len(y)] = x, y
        return Weights({"rows": rows, "labels": labels})

    def predict(self, personal: Weights, x: Tensor, keys: Keys) -> Tensor:
        gaps = (x.unsqueeze(2) - personal.w["rows"].unsqueeze(1)).abs().sum(3)  # [C, N, 64]
        known, where = gaps.min(2)
        label = personal.w["labels"].gather(1, where)
        p = torch.full((*x.shape[:2], CLASSES), 1 / CLASSES, dtype=x.dtype)
        sure = torch.nn.functional.one_hot(label, CLASSES).to(x.dtype) * 0.97 + 0.01
        return torch.where((known == 0).unsqueeze(2), sure, p).log()


@register
class Cheat(Spy):
    """The same, but says that it uses validation rows."""

    about = Spy.about._replace(name="cheat", title="Cheat", uses_validation=True)


SPIES = {name: METHODS.pop(name) for name in ("spy", "cheat")}  # no other test may find them


@pytest.fixture
def spies() -> Iterator[None]:
    METHODS.update(SPIES)
    Spy.seen.clear()
    try:
        yield
    finally:
        for name in SPIES:
            del METHODS[name]


@pytest.mark.usefixtures("spies")
def test_no_expert_sees_what_it_is_scored_on() -> None:
    """An expert that memorises validation rows would win. It is not shown any, and loses to one that learns.

    The same expert alone, which says that it uses them, is right about every validation row.
    """
    data = federation()
    method = stack(data, "spy", "fedavg_ft", score_every=1, temperatures=[1])
    trace = rounds(method, data, 12)
    assert {what for what, _ in Spy.seen} == {"join", "train", "personalise"}
    shares = np.stack([trace.models[c]["shares"][:, 0] for c in data.clients])
    assert shares[:, 0].mean() < 0.3
    cheat = bound("cheat", data)
    shown = replace(data.train, validation=data.validation)
    personal = cheat.personalise(Empty(), Empty(), shown, keys(data))
    for c in range(len(data)):
        x, y = data.validation.client(c)
        if len(y):
            one = tree.index(personal, [c])
            assert (cheat.predict(one, x.unsqueeze(0), keys(data)).argmax(2)[0] == y).all()


@pytest.mark.usefixtures("spies")
def test_an_expert_that_uses_validation_rows_is_not_scored_on_them() -> None:
    """It is refused; with `holdout` it may use them, since other rows are scored, and gains nothing by it."""
    data = federation()
    with pytest.raises(FedpriorError, match=r"^method 'stack': 'cheat' uses the validation rows, .*holdout\.$"):
        stack(data, "cheat", "fedavg_ft")
    trace = rounds(stack(data, "cheat", "fedavg_ft", scores="holdout", score_every=1, temperatures=[1]), data, 12)
    assert "validation" in {what for what, _ in Spy.seen}
    assert np.mean([trace.models[c]["shares"][0, 0] for c in data.clients]) < 0.3


@pytest.mark.usefixtures("spies")
def test_twins_do_not_see_the_third_that_is_scored() -> None:
    """Each function shows an expert all rows, and its twin the two thirds whose complement is scored."""
    data = federation(sizes=(40,))
    method = stack(data, "spy", scores="holdout", score_every=1)
    rest, third = every_third(data.train, keys(data, "round", 7))
    rounds(method, data)
    assert not method.uses_validation
    sizes = {(what, len(x)) for what, x in Spy.seen if len(x) > 2}  # the engine rehearses with two rows
    all_rows, blind = data.train.size[0], rest.size[0]
    assert sizes == {(what, n) for what in ("join", "train", "personalise") for n in (all_rows, blind)}
    for _, x in Spy.seen:
        if len(x) == blind:
            assert torch.equal(x, rest.x)
    held = {tuple(row) for row in third.x.tolist()}
    assert held.isdisjoint(tuple(row) for row in rest.x.tolist())
    assert len(held) + blind == all_rows


def test_every_third_row_is_stratified() -> None:
    """Nine, six and three rows of three classes: three, two and one of them; the same in every round and stack."""
    y = np.repeat([0, 1, 2], [9, 6, 3])
    x = np.arange(18, dtype=np.float64)[:, None]
    data = ClientData.single(torch.from_numpy(x), torch.from_numpy(y))
    own = Keys.of(Key.from_seed(1), ["a"])
    rest, third = every_third(data, own.fold("round", 3))
    assert torch.bincount(third.y).tolist() == [3, 2, 1]
    assert sorted([*rest.x.flatten().tolist(), *third.x.flatten().tolist()]) == x.ravel().tolist()
    again = every_third(data, own.fold("evaluation", 9))[1]
    assert torch.equal(third.x, again.x)
    for n, expected in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 2)):
        assert every_third(data.pick([np.arange(n)]), own)[1].size == (expected,)


def hidden(n: int, seed: int = 0) -> Federation:
    """Sites with labels that Local can learn and that differ from site to site, with n validation rows each."""
    rng, clients = np.random.default_rng(seed), {}
    for k in range(4):
        x = rng.normal(size=(20 + n + 10, 4))
        y = (x @ np.eye(4)[k] > 0).astype(int)
        clients[f"site-{k}"] = (x, y)
    share = 10 / (n + 30)
    return from_arrays(clients, classes=2, validation=n / (n + 30), test=share, seed=seed).to(torch.float64)


def test_a_useless_expert_loses_its_weight_as_rows_grow() -> None:
    """FedAvg of four sites whose labels contradict each other, beside Local: its weight falls with the rows scored.

    It does not vanish, since a little of a flat prediction corrects Local, which is too sure with 20 rows.
    """
    found = []
    for n in (5, 50, 500):
        data = hidden(n)
        method = bound("stack", data, Train(lr=0.5, batch_size=10, epochs=5), experts=("local", "fedavg"))
        trace = rounds(method, data, 12)
        found.append(np.mean([trace.models[c]["shares"].sum(1)[1] for c in data.clients]))
    assert found[0] > found[2]
    assert found[2] < 0.1


def test_a_site_with_few_rows_falls_back_on_what_holds_for_the_others() -> None:
    """Without rows of its own its weights are the federation's: A = Σ_g π_g a_g."""
    data = hidden(50)
    method = stack(data, "local", "fedavg", score_every=1)
    server, down, client, updated, _ = one_round(method, data)
    pi = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(method.family.size), size=len(data)))
    down = down._replace(pi=pi)
    personal = method.personalise(updated, down, data.train, keys(data))
    assert torch.allclose(personal.shares, method.family.shares(pi))
    assert not same(server, client)


def test_the_rounds_in_which_scores_are_sent() -> None:
    """Every second round, not before the first; between them the prior stays as it is."""
    data = federation()
    method = stack(data, "local", "fedavg_ft", score_every=2)
    server, seen = method.init_server(Key.from_seed(5), len(data)), []
    shown = replace(data.train, validation=data.validation)
    client: Any = None
    for number in range(5):
        down = tree.expand(method.broadcast(server, torch.arange(len(data))), len(data))
        client = method.init_client(down, shown, keys(data, "join")) if client is None else client
        client, up, logs = method.local_update(client, down, shown, keys(data, "round", number))
        server = method.aggregate(server, up, torch.arange(len(data)))
        seen.append(server.pool.pi)
        assert bool(up.scored.any()) is (number in (2, 4))
        told = {"temperature", "local.weight", "fedavg_ft.weight"} if number in (2, 4) else set()
        assert logs.keys() == {"loss", "local.loss", "fedavg_ft.loss"} | told
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[3], seen[4])
    assert server.pool.pi.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("experts", [("local", "pfedvem"), ("fedavg_ft", "fedamp", "fedbabu"), ("scaffold",)])
def test_hints_are_those_of_the_experts_together(experts: tuple[str, ...]) -> None:
    data = federation()
    found, each = stack(data, *experts).hints, [build(name).hints for name in experts]
    for hint in ("everyone_trains", "personal_downlink", "head_phase"):
        assert getattr(found, hint) is any(getattr(one, hint) for one in each)
    assert found.plain_sgd is all(one.plain_sgd for one in each)


@pytest.mark.parametrize(
    ("experts", "options"),
    [
        (("local", "fedamp", "pfedvem"), {}),  # a message of one's own, everyone trains, heads alone
        (("fedavg_ft", "fedbabu"), {"scores": "holdout"}),
        (("fedavg", "fedem"), {}),
    ],
)
def test_mixed_experts_keep_the_contract(experts: tuple[str, ...], options: dict[str, Any], tmp_path: Path) -> None:
    """Workers, stacks of one, the order of clients and interruptions make no difference, whatever experts there are."""
    data = federation()
    options = {**options, "score_every": 1}
    plain = rounds(stack(data, *experts, **options), data, chunk=3, participation=HALF).vector()
    two = rounds(stack(data, *experts, **options), data, chunk=3, workers=2, participation=HALF).vector()
    assert (plain == two).all()
    shuffled = data.select([4, 0, 6, 2, 5, 1, 3])
    assert (rounds(stack(shuffled, *experts, **options), shuffled, chunk=3, participation=HALF).vector() == plain).all()
    single = rounds(stack(data, *experts, **options), data, chunk=1, participation=HALF).vector()
    np.testing.assert_allclose(single, plain, rtol=1e-8, atol=1e-8)
    method, settings = stack(data, *experts, **options), Settings(rounds=4, checkpoint_every=1, eval_every=2)
    whole = execute(method, data, settings, model={"name": "custom"}, folder=tmp_path / "whole")

    def interrupt(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(method, data, settings, model={"name": "custom"}, folder=tmp_path / "cut", observe=interrupt)
    resumed = execute(method, data, settings, model={"name": "custom"}, folder=tmp_path / "cut", resume=True)
    assert same(resumed.models, whole.models)


def test_private_state_of_experts_stays_at_home() -> None:
    """Messages are those of the experts, none more; ℓ and ρ are all that is added.

    In a second round, since in the first one Local and FedAvg's clients train the same network on the same batches.
    """
    data = federation()
    method = stack(data, "local", "pfedvem", "ditto")
    server, _, _, first, sent_first = one_round(method, data)
    ids = torch.arange(len(data))
    down = tree.expand(method.broadcast(method.aggregate(server, sent_first, ids), ids), len(data))
    updated, up, _ = method.local_update(first, down, data.train, keys(data, "round", 1))
    alone = {f"{name}/{path}" for name, part in method.parts.items() for path in tree.flatten(one_round(part, data)[4])}
    assert up.experts.keys() == alone
    private = {f"{name}/{field}/" for name, part in method.parts.items() for field in part.about.private}
    assert private == {"local/w/", "pfedvem/pi/", "ditto/w/"}
    kept = [leaf for path, leaf in updated.experts.items() if path.startswith(tuple(private))]
    assert len(kept) == 10
    for sent in tree.leaves(up):
        assert not any(sent.shape == leaf.shape and torch.equal(sent, leaf) for leaf in kept)


def test_a_run_by_names_can_be_continued_and_read(tmp_path: Path) -> None:
    """Options of experts are written out, read back, and a second call finds the run finished."""
    data = federation()
    options = {"experts": "fedavg+ft, pfedvem", "options": {"fedavg+ft": {"ft": {"steps": 3}}}}
    method = build("stack", options)
    found = method.hyperparameters()
    assert found["experts"] == ("fedavg+ft", "pfedvem")
    assert found["options"]["fedavg+ft"]["ft"]["steps"] == 3
    assert found["options"]["pfedvem"]["draws"] == 5
    assert build("stack", found).hyperparameters() == found
    out = tmp_path / "run"
    model = {"name": "mlp", "hidden": [6]}
    first = fedprior.run(method, data, model=model, rounds=3, workers=1, out=out)
    again = fedprior.run(method, data, model=model, rounds=3, workers=1, out=out)
    assert same(first.models, again.models)
    x, _ = data.test.client(0)
    loaded = fedprior.load_model(out / "models" / "site-0.safetensors")
    assert (loaded.predict(x) == first.predict("site-0", x)).all()


def test_a_global_model_is_the_mixture_of_global_models() -> None:
    """FedAvg and FedProx have one each; with Local among them there is none."""
    data = federation()
    assert rounds_global(stack(data, "local", "fedavg_ft"), data) is None
    method = stack(data, "fedavg", "fedprox", temperatures=[1])
    trace = rounds(method, data, 2)
    found = rounds_global(method, data, 2)
    shares = method.family.shares(trace.server["pool/pi"].unsqueeze(0))[0, :, 0]
    each = [rounds_global(bound(name, data), data, 2) for name in ("fedavg", "fedprox")]
    assert found is not None
    expected = sum(a * p.exp() for a, p in zip(shares, each, strict=True) if p is not None)
    assert torch.allclose(found.exp(), expected)


def rounds_global(method: AnyMethod, data: Federation, count: int = 1) -> Tensor | None:
    trace = rounds(method, data, count)
    return method.predict_global(tree.unflatten(method.types[0], trace.server), data.test.x)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"experts": []}, "at least 1 item"),
        ({"experts": ["local", "local"]}, "an expert stands twice"),
        ({"experts": ["fedavg+am", "fedavg+server_step"]}, "an expert stands twice"),
        ({"experts": ["local", "fedavgg"]}, "did you mean 'fedavg'"),
        ({"experts": ["local", "stack"]}, "cannot be an expert of a stack"),
        ({"options": {"ditto": {}}}, "'ditto', which is not among the experts"),
        ({"options": {"fedavg_ft": {"epochs": 2}}}, "did you mean 'ft_epochs'"),
        ({"experts": ["local", "fedavg", "fedprox", "ditto", "apfl", "pfedme"], "steps": 9}, "use fewer experts"),
        ({"temperatures": [0.0]}, "greater than 0"),
        ({"temperatures": []}, "at least 1 item"),
    ],
)
def test_what_cannot_be_stacked_is_refused_in_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FedpriorError, match=said) as found:
        build("stack", options)
    assert "\n" not in str(found.value)


def test_experts_that_need_classes_refuse_a_number() -> None:
    with pytest.raises(FedpriorError, match="pFedFDA predicts classes, but the target here is a number"):
        stack(regression(), "local", "pfedfda")


def test_everyone_trains_if_one_expert_says_so() -> None:
    """With half of the clients per round, Local in a stack with pFedVEM trains in every round, as pFedVEM does."""
    data = federation()
    together = rounds(stack(data, "local", "pfedvem"), data, participation=HALF)
    everywhere = rounds(bound("local", data), data)
    for path, leaf in everywhere.states.items():
        assert torch.equal(together.states[f"experts/local/{path}"], leaf)
    assert Hints().everyone_trains is False


def test_it_says_what_it_learned(tmp_path: Path) -> None:
    """The weights of every site and of all, by the family's own figures; in the summary, and after reading the run."""
    data = hidden(50)
    options = {"experts": ["local", "fedavg"], "score_every": 1}
    method = build("stack", options, Train(lr=0.5, batch_size=10, epochs=5))
    result = fedprior.run(method, data, model="softmax", rounds=6, workers=1, out=tmp_path / "run", eval_every=6)
    frame = result.explanation.tables["weights of the experts"]
    assert list(frame.columns) == ["Local", "FedAvg", "temperature"]
    assert list(frame.index) == ["all sites together", *data.clients]
    np.testing.assert_allclose(frame[["Local", "FedAvg"]].sum(axis=1), 1)
    np.testing.assert_allclose(frame["Local"].to_numpy()[1:], result.models.shares.sum(2)[:, 0])
    logs = np.log(np.array(method.hyperparameters()["temperatures"]))
    expected = np.exp((result.models.shares.sum(1).numpy() * logs).sum(1))
    np.testing.assert_allclose(frame["temperature"].to_numpy()[1:], expected)
    (first, *_) = result.explanation.sentences
    assert first.startswith(f"For all sites together: Local {100 * frame['Local'].iloc[0]:.0f} %, FedAvg ")
    assert result.summary["explanation"]["sentences"] == list(result.explanation.sentences)
    again = fedprior.run(method, data, model="softmax", rounds=6, workers=1, out=tmp_path / "run", eval_every=6)
    assert again.explanation.tables["weights of the experts"].equals(frame)
    assert {"temperature", "local.weight", "fedavg.weight"} <= set(result.journal.logs[0])
