"""What every method promises, checked for each one that is registered: a new file is tested before it has a test."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import pytest
import torch

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError
from fedprior.experiment.config import Settings
from fedprior.experiment.loop import execute
from fedprior.experiment.result import load_model
from fedprior.methods import build
from fedprior.models import build as build_model
from fedprior.models.likelihood import likelihood_of
from fedprior.protocol import METHODS
from fedprior.rng import Key
from fedprior.wrappers import WRAPPERS
from support import (
    CLASSES,
    HALF,
    SIZES,
    TRAIN,
    bound,
    counting,
    federation,
    keys,
    one_round,
    regression,
    rounds,
    same,
    scalars,
    with_train,
)


class Setting(NamedTuple):
    """A federation and a network on which every method keeps its promises."""

    data: Callable[..., Federation]
    norm: bool = False

    def bound(self, name: str, data: Federation, **options: Any) -> AnyMethod:
        """The method on a perceptron 4-6-K, or with batch normalisation in it."""
        if not self.norm:
            return bound(name, data, **options)
        likelihood = likelihood_of(data.target)
        module = build_model("mlp", {"hidden": (6,), "norm_layer": "batch"}, data.shape, likelihood.outputs)
        return bound(name, data, module=module, **options)


SETTINGS = {
    "perceptron": Setting(federation),
    "norm": Setting(federation, norm=True),
    "number": Setting(regression),
    "count": Setting(counting),
}
WRAPPED = (
    "fedavg+ft",
    "fedprox+server_step",
    "pfedbred+ft+server_step",
    "fedavg+opt",
    "pfedme+ft+opt",
    "ditto+cal",
    "ditto+median",
    "fedprox+trimmed",
    "fedper+normbound",
)
NAMES = [*sorted(METHODS), *WRAPPED]
CASES = [
    pytest.param(name, setting, id=f"{name}-{key}")
    for key, setting in SETTINGS.items()
    for name in NAMES
    if key not in ("number", "count") or not METHODS[name.split("+")[0]].about.needs_classes
]
every_case = pytest.mark.parametrize(("name", "on"), CASES)
every_method = pytest.mark.parametrize("name", NAMES)

D = 6 * 4 + 6 + 3 * 6 + 3  # the perceptron 4-6-3 of `support`
MESSAGES: dict[str, tuple[int, int]] = {  # scalars (up, down) per client, from the papers
    "local": (0, 0),
    "fedavg": (D + 1, D),
    "fedavg_ft": (D + 1, D),
    "fedprox": (D + 1, D),
    "fedmap": (D + 1, D),
    "scaffold": (2 * D, 2 * D),
    "fedper": (31, 30),
    "fedrep": (31, 30),
    "fedbabu": (31, 30),
    "fedbn": (D + 1, D),  # no norm in this network
    "lg_fedavg": (22, 21),
    "ditto": (D + 1, D),
    "mr_mtl": (D + 1, D),  # with a weight of one
    "apfl": (D + 1, D),
    "fedrod": (D + 1, D),
    "per_fedavg": (D + 1, D),
    "fedamp": (D, D + 1),  # the weight of the client's own model beside its mean
    "ifca": (D + 2, 2 * D + 1),  # one of k = 2 models and its number; all k and the round
    "fedem": (3 * D + 1, 3 * D),
    "pfedbayes": (2 * D + 1, 2 * D),
    "fedpac": (D + 1 + 3 + 18 + 18 + 1, D + 18 + 3),  # K = 3 classes, d = 6 features
    "fedbps": (2 * D + 1, D + -(-D // 8)),  # weights, variances, count; down: weights and a bit each
    "pfedme": (D + 1, D),
    "pfedbred": (D + 1, D),
    "pfedfda": (30 + 3 * 6 + 21 + 1, 30 + 3 * 6 + 21),  # base, K·d means, d(d+1)/2 covariances, count
    "stack": (D + 1 + 2 * 35 + 1, D + 35 + 1),  # FedAvg's; ℓ, ρ and whether there were rows; π and the round
    "mixed": (1 + 2 * 4 + 15 + 120 + 3 * 15 + 1, 2 + 2 * 4 + 5 * 15 + 120),  # 3 · 5 coefficients: no matter the network
    "pfedvem": (D + 2, D),  # head mean, base, confidence and count; never the posterior's width
}


@every_case
def test_state_and_messages_are_trees_of_the_declared_types(name: str, on: Setting) -> None:
    data = on.data()
    method = on.bound(name, data)
    server, down, client, updated, up = one_round(method, data)
    personal = method.personalise(updated, down, data.train, keys(data, "personalise"))
    for value, kind in zip((server, client, down, up, personal), method.types, strict=True):
        assert type(value) is kind
        for path, leaf in tree.items(value):  # raises on anything that is not a tree
            assert isinstance(leaf, torch.Tensor), path
        assert _sorted_dicts(value)
        rebuilt = tree.unflatten(kind, tree.flatten(value))
        assert type(rebuilt) is kind
        assert same(rebuilt, value)
    for value in (client, down, up, personal, updated):
        assert all(len(leaf) == len(data) for leaf in tree.leaves(value)), "the client axis comes first"


def _sorted_dicts(value: Any) -> bool:
    if isinstance(value, dict):
        return list(value) == sorted(value) and all(_sorted_dicts(v) for v in value.values())
    return all(_sorted_dicts(v) for v in value) if isinstance(value, tuple) else True


@every_case
def test_functions_are_pure(name: str, on: Setting) -> None:
    """No input is written to, and a second call with the same inputs gives the same outputs."""
    data = on.data()
    method = on.bound(name, data)
    server, down, client, updated, up = one_round(method, data)
    ids = torch.arange(len(data))
    inputs = {"server": server, "down": down, "client": client, "updated": updated, "up": up}
    before = tree.clone(inputs)
    calls: list[Callable[[], Any]] = [
        lambda: method.local_update(client, down, data.train, keys(data, "round", 0))[:2],
        lambda: method.aggregate(server, up, ids),
        lambda: method.broadcast(server, ids),
        lambda: method.init_client(down, data.train, keys(data, "join")),
        lambda: method.personalise(updated, down, data.train, keys(data, "p")),
        lambda: method.init_server(Key.from_seed(5)),
    ]
    for call in calls:
        first, second = _as_tree(call()), _as_tree(call())
        assert same(first, second)
    assert same(before, inputs)


def _as_tree(value: Any) -> Any:
    return {str(i): v for i, v in enumerate(value)} if type(value) is tuple else value


@every_case
def test_predictions_are_distributions(name: str, on: Setting) -> None:
    """Log-probabilities that add up to one; or a mean and a log-variance, both finite."""
    data = on.data()
    method = on.bound(name, data)
    server, down, _, updated, _ = one_round(method, data)
    personal = method.personalise(updated, down, data.train, keys(data, "p"))
    x = next(data.test.batches(50)).x
    log_p = method.predict(personal, x, keys(data, "predict"))
    shared = method.predict_global(server, data.test.x)
    width = method.task.likelihood.parameters
    assert log_p.shape == (len(data), x.shape[1], width)
    assert shared is None or shared.shape == (len(data.test.x), width)
    for found in (log_p,) if shared is None else (log_p, shared):
        assert torch.isfinite(found).all()
        if data.target.kind == "classes":
            assert torch.allclose(found.logsumexp(-1), torch.zeros((), dtype=found.dtype), atol=1e-9)


@every_case
def test_the_order_of_clients_does_not_matter(name: str, on: Setting) -> None:
    """The same clients in another order: every client's model and the server are the same, bit for bit."""
    data = on.data()
    shuffled = data.select([4, 0, 6, 2, 5, 1, 3])
    a, b = (rounds(on.bound(name, d), d, participation=HALF) for d in (data, shuffled))
    assert (a.vector() == b.vector()).all()


@every_case
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_a_stack_equals_single_clients(name: str, on: Setting, dtype: torch.dtype, tolerance: float) -> None:
    data = on.data(dtype=dtype)
    single, stacked = (rounds(on.bound(name, data), data, chunk=chunk).vector() for chunk in (1, len(SIZES)))
    np.testing.assert_allclose(stacked, single, rtol=tolerance, atol=tolerance)


@every_case
def test_two_workers_equal_one_bit_for_bit(name: str, on: Setting) -> None:
    data = on.data(dtype=torch.float32)
    one, two = (rounds(on.bound(name, data), data, chunk=3, workers=w, participation=HALF).vector() for w in (1, 2))
    assert (one == two).all()


@every_case
def test_interrupted_and_resumed_equals_uninterrupted(name: str, on: Setting, tmp_path: Path) -> None:
    """Stopped right after any round's checkpoint, then resumed: the same models and metrics, bit for bit."""
    data = on.data(dtype=torch.float32)
    settings = Settings(rounds=4, seed=3, participation=HALF, checkpoint_every=1, eval_every=1)
    method = on.bound(name, data)
    whole = execute(method, data, settings, model={"name": "custom"}, folder=tmp_path / "whole")
    for stop in (1, 3):
        folder = tmp_path / f"stop-{stop}"

        def interrupt(event: dict[str, Any], stop: int = stop) -> None:
            if event["kind"] == "round" and event["round"] == stop + 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            execute(method, data, settings, model={"name": "custom"}, folder=folder, observe=interrupt)
        resumed = execute(method, data, settings, model={"name": "custom"}, folder=folder, resume=True)
        assert resumed.summary["timing"]["first_round"] == stop
        assert same(resumed.models, whole.models)
        assert resumed.selected == whole.selected
        for file in ("clients.csv", "logs.csv"):
            assert (folder / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@every_case
def test_a_saved_model_predicts_the_same(name: str, on: Setting, tmp_path: Path) -> None:
    data = on.data(dtype=torch.float32)
    model = {"name": "mlp", "hidden": [6], **({"norm_layer": "batch"} if on.norm else {})}
    result = execute(on.bound(name, data), data, Settings(rounds=2), model=model, folder=tmp_path)
    x, _ = data.test.client(2)
    loaded = load_model(tmp_path / "models" / "site-2.safetensors")
    assert (loaded.predict(x) == result.predict("site-2", x)).all()
    found = torch.from_numpy(result.predictions["test"][2])
    readable = result.method.task.likelihood.readable(found).numpy()
    if result.method.hyperparameters().get("prediction") != "bma":  # whose draws are keyed by the round
        np.testing.assert_allclose(loaded.predict(x), readable, rtol=1e-5, atol=1e-6)


@every_method
def test_messages_have_the_papers_sizes(name: str) -> None:
    data = federation(dtype=torch.float32)
    method = bound(name, data)
    _, down, _, _, up = one_round(method, data)
    inner = name.split("+", maxsplit=1)[0]
    assert inner in MESSAGES, "add the new method's message sizes to MESSAGES"
    more = (
        (2 * 17 + 1, 17 + 1) if name.endswith("+cal") else (0, 0)
    )  # ℓ, ρ and whether there were rows; π and the round
    expected = tuple(own + added for own, added in zip(MESSAGES[inner], more, strict=True))
    assert (scalars(tree.index(up, [0])), scalars(tree.index(down, [0]))) == expected


@every_case
def test_private_state_is_in_no_uplink(name: str, on: Setting) -> None:
    data = on.data()
    method = on.bound(name, data)
    _, _, client, updated, up = one_round(method, data)
    statistics, fixed = (
        method.task.buffers,
        method.hints.fixed_state,
    )  # running ones travel with the network, see `Task`
    private = [
        leaf
        for (path, leaf), before in zip(tree.items(updated), tree.leaves(client), strict=True)
        if path.split("/")[0] in method.about.private
        and path.rpartition("/")[2] not in statistics
        and (fixed or not torch.equal(leaf, before))  # a bias before a norm never moves, and tells nothing
    ]
    for sent in tree.leaves(up):
        for kept in private:
            assert sent.data_ptr() != kept.data_ptr()
            assert sent.shape != kept.shape or not torch.equal(sent, kept)


@every_case
def test_state_moves_where_the_method_has_state(name: str, on: Setting) -> None:
    data = on.data()
    method = on.bound(name, data)
    server, _, client, updated, up = one_round(method, data)
    if tree.leaves(updated):
        assert method.hints.fixed_state is not any(
            not torch.equal(a, b) for a, b in zip(tree.leaves(client), tree.leaves(updated), strict=True)
        )
    if tree.leaves(up):
        moved = method.aggregate(server, up, torch.arange(len(data)))
        assert any(not torch.equal(a, b) for a, b in zip(tree.leaves(server), tree.leaves(moved), strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in NAMES if "+" not in name and build(name).hints.everyone_trains]
    + [("pfedme", {"restart": "theta"})]
    + [("pfedbred", {"variant": v}) for v in ("lg", "meg", "mh_code")]
    + [("pfedbred", {"variant": "lg", "prox_start": start}) for start in ("v", "mu", "theta")],
)
def test_memoryless_methods_ignore_the_clients_state(name: str, options: dict[str, Any]) -> None:
    """Another state makes another local update if and only if the method does not call itself memoryless."""
    data = federation()
    method = bound(name, data, **options)
    _, down, client, updated, up = one_round(method, data)
    moved = tree.map(lambda leaf: leaf + 0.01, client)
    other, other_up, _ = method.local_update(moved, down, data.train, keys(data, "round", 0))
    assert (same(other, updated) and same(other_up, up)) is method.memoryless


@every_case
def test_local_training_is_alive(name: str, on: Setting) -> None:
    """Every option of the local training changes what a method learns."""
    data = on.data()
    base = on.bound(name, data)
    changes: list[dict[str, Any]] = [
        {"lr": 0.05},
        {"momentum": 0.0},
        {"weight_decay": 0.1},
        {"clip": 0.05},
        {"batch_size": 5},
        {"epochs": 3},
        {"steps": 7},
        {"optimizer": "adam", "momentum": 0.0},
    ]
    reference = rounds(base, data).vector()
    for change in changes:
        dead = base.hints.own_training or (base.hints.plain_sgd and {"momentum", "optimizer", "clip"} & change.keys())
        assert (rounds(with_train(base, **change), data).vector() != reference).any() != bool(dead), change


def _alternatives(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(options, the same with one of them changed), for every hyperparameter; `alive_with` gives it a context."""
    inner, *outer = name.split("+")
    for wrapper in outer:
        for context, changed in _changes(WRAPPERS[wrapper], WRAPPERS[wrapper](inner=build(inner))):
            yield {wrapper: context}, {wrapper: changed}
    yield from _changes(METHODS[inner], build(inner))


def _changes(cls: type[Any], plain: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for field in dataclasses.fields(cls):
        if field.name in ("task", "train", "inner"):
            continue
        hint = typing.get_type_hints(cls, include_extras=True)[field.name]
        found = [m.json_schema_extra for m in get_args(hint)[1:] if getattr(m, "json_schema_extra", None)]
        extra: dict[str, Any] = found[0] if found else {}
        context = dict(extra.get("alive_with", {}))
        value = context.get(field.name, getattr(plain, field.name))
        for other in extra["others"] if "others" in extra else _others(get_args(hint)[0], value):
            yield context, {**context, field.name: other}


def _others(kind: Any, value: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return [v for v in get_args(kind) if v != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if value is None and int in get_args(kind):
        return [1]
    return [0.5 if value is None else value * 0.5 if value else 0.5]


@every_method
def test_every_hyperparameter_is_alive(name: str) -> None:
    """No option is dead: each changes what is learned. (pFedMe's are dead in three libraries, in three ways.)"""
    data = federation()
    for context, changed in _alternatives(name):
        plain, other = (rounds(bound(name, data, **o), data, participation=HALF).vector() for o in (context, changed))
        assert plain.shape != other.shape or (plain != other).any(), changed


def other_labels(data: Federation, split: str = "test") -> torch.Tensor:
    """Every label wrong."""
    y = data.split(split).y
    return (y + 1) % CLASSES if data.target.kind == "classes" else -y


@every_case
def test_test_labels_never_reach_a_model(name: str, on: Setting) -> None:
    data = on.data()
    poisoned = dataclasses.replace(data, test=dataclasses.replace(data.test, y=other_labels(data)))
    a, b = (rounds(on.bound(name, d), d) for d in (data, poisoned))
    assert (a.vector() == b.vector()).all()


@every_case
def test_validation_examples_reach_a_model_only_if_it_says_so(name: str, on: Setting) -> None:
    data = on.data()
    poisoned = dataclasses.replace(
        data, validation=dataclasses.replace(data.validation, y=other_labels(data, "validation"))
    )
    a, b = (rounds(on.bound(name, d), d) for d in (data, poisoned))
    assert (a.vector() != b.vector()).any() == on.bound(name, data).uses_validation


@pytest.mark.parametrize("name", [n for n in NAMES if METHODS[n.split("+")[0]].about.needs_classes])
def test_a_method_that_needs_classes_refuses_a_number(name: str) -> None:
    with pytest.raises(FedpriorError, match=r"^[^\n]* predicts classes, but the target here is a number: [^\n]*\.$"):
        bound(name, regression())


@every_case
def test_an_unseen_client_can_join(name: str, on: Setting) -> None:
    """After training, a new client gets a state, personalises in one local update and predicts."""
    data = on.data()
    newcomer = on.data(sizes=(30,), seed=7)  # its counts are of the same size as the others'
    method = on.bound(name, data)
    trained = rounds(method, data)
    server = tree.unflatten(method.types[0], trained.server)
    down = method.broadcast(server, torch.arange(len(data)))
    one = tree.index(down, slice(1)) if method.hints.personal_downlink else tree.expand(down, 1)
    own = keys(newcomer, "join")
    client = method.init_client(one, newcomer.train, own)
    client, _, _ = method.local_update(client, one, newcomer.train, own)
    personal = method.personalise(client, one, newcomer.train, own)
    log_p = method.predict(personal, newcomer.test.x.unsqueeze(0), own)
    assert log_p.shape == (1, len(newcomer.test.x), method.task.likelihood.parameters)
    assert torch.isfinite(log_p).all()


@every_case
def test_a_round_of_no_steps_has_the_usual_shapes(name: str, on: Setting) -> None:
    """The engine sizes its memory by such a rehearsal."""
    data = on.data()
    method = on.bound(name, data)
    for full, none in zip(one_round(method, data), one_round(with_train(method, steps=0), data), strict=True):
        assert [leaf.shape for leaf in tree.leaves(full)] == [leaf.shape for leaf in tree.leaves(none)]


@pytest.mark.parametrize(
    ("name", "option"),
    [("ditto", "personal_epochs"), ("fedrep", "head_epochs"), ("fedavg_ft", "ft_epochs"), ("fedbabu", "ft_epochs")],
)
def test_a_second_phase_lasts_as_long_as_local_training(name: str, option: str) -> None:
    """Unless told otherwise, in epochs or in steps: three epochs over m examples are 3 ⌈m/8⌉ steps of 8."""
    data = federation(sizes=(40, 40, 40))
    (m,) = set(data.train.size)
    three = dataclasses.replace(TRAIN, epochs=3)
    as_three: dict[str, Any] = {option: 3}
    as_five: dict[str, Any] = {option: 5}
    expected = rounds(bound(name, data, three, **as_three), data).vector()
    assert (rounds(bound(name, data, three), data).vector() == expected).all()
    in_steps = dataclasses.replace(TRAIN, steps=3 * -(-m // 8))
    assert (rounds(bound(name, data, in_steps), data).vector() == expected).all()
    assert (rounds(bound(name, data, three, **as_five), data).vector() != expected).any()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("fedprox", {"mu": 0.3}, {"strength": 0.3}),
        ("ditto", {"mu": 0.3, "personal_epochs": 2}, {"strength": 0.3, "personal_epochs": 2}),
        ("fedmap", {"prior_strength": 0.5}, {"strength": 0.5}),
        ("pfedme", {"server_step": 2.0}, {"beta": 2.0}),
        ("pfedbred+ft", {"server_step": 2.0, "ft": {"steps": 3}}, {"beta": 2.0, "ft": {"steps": 3}}),
    ],
)
def test_old_names_of_options_still_work(name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """In files and on the command line; both at once are refused, and what a run writes has the new name."""
    assert build(name, old).hyperparameters() == build(name, new).hyperparameters()
    assert new.items() <= {**build(name, old).hyperparameters(), "ft": new.get("ft")}.items()
    with pytest.raises(FedpriorError, match="is the former name of the option"):
        build(name, {**old, **new})


def test_every_old_name_stands_for_an_option() -> None:
    for cls in METHODS.values():
        options = {field.name for field in dataclasses.fields(cls)}
        assert set(cls.renamed.values()) <= options
        assert not set(cls.renamed) & options


def test_the_registry_is_complete() -> None:
    """Every public file of `fedprior.methods` registers the method it is named after."""
    import pkgutil

    import fedprior.methods

    files = {m.name for m in pkgutil.iter_modules(fedprior.methods.__path__) if not m.name.startswith("_")}
    assert files == set(METHODS)
    assert all(METHODS[name].about.name == name for name in METHODS)
