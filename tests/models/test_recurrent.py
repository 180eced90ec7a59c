"""The LSTM: parameter counts, its cells by hand, frozen vectors, and training on token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.client import ClientData
from fedprior.data.federation import Federation, from_arrays
from fedprior.data.target import Classes
from fedprior.engine import Engine
from fedprior.errors import FedpriorError
from fedprior.files import pack, write_bytes
from fedprior.methods import build as build_method
from fedprior.models import build
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.rng import Key
from fedprior.training import Train

SMALL = {"vocabulary": 9, "embedding": 3, "hidden": 4, "features": 8}
LENGTH = 5


def small(**options: Any) -> nn.Module:
    return build("lstm", SMALL | options, (LENGTH,), 2)


def tokens(*rows: int, seed: int = 0) -> Tensor:
    return torch.randint(9, (*rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def refusal(**options: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        small(**options)
    assert "\n" not in str(error.value)
    return str(error.value)


# Parameters


def test_parameters() -> None:
    """A layer and direction has 4 gates of `hidden` units with inputs, states and two biases.

    Layer one 2 · (200·50 + 200·50 + 400) = 40,800; layer two, on both directions,
    2 · (200·100 + 200·50 + 400) = 60,800; then 200·5000 + 5000 and 5000·2 + 2.
    The frozen 22,764 · 50 = 1,138,200 are not among them.
    """
    module = build("lstm", {}, (25,), 2)
    assert sum(p.numel() for p in module.get_submodule("base.0").parameters()) == 40_800 + 60_800 == 101_600
    task = Task(module, Categorical(2))
    assert task.size == 101_600 + 1_005_000 + 10_002 == 1_116_602
    assert task.features_width == 5_000
    assert tree.nbytes(task.init(Key.from_seed(0))) == 4 * 1_116_602  # what is sent
    trained = Task(build("lstm", {"frozen": False}, (25,), 2), Categorical(2))
    assert trained.size == 1_116_602 + 1_138_200


# The function


def cell(w: Mapping[str, Tensor], suffix: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Gates in the order input, forget, candidate, output: c = f c + i g, h = o tanh(c)."""
    gates = x @ w[f"weight_ih_{suffix}"].T + w[f"bias_ih_{suffix}"] + h @ w[f"weight_hh_{suffix}"].T
    i, f, g, o = (gates + w[f"bias_hh_{suffix}"]).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def direction(w: Mapping[str, Tensor], suffix: str, inputs: list[Tensor]) -> list[Tensor]:
    h = c = torch.zeros(len(inputs[0]), SMALL["hidden"], dtype=torch.float64)
    states = []
    for x in inputs:
        h, c = cell(w, suffix, x, h, c)
        states.append(h)
    return states


@pytest.mark.parametrize("frozen", [True, False])
def test_the_function_is_that_of_the_paper(frozen: bool) -> None:
    """Cells by hand. At the last token the backward direction has read one token; its final state is at the first."""
    torch.manual_seed(0)
    module = small(frozen=frozen).double()
    named = dict(module.named_parameters())
    w = {k.removeprefix("base.0.lstm."): v for k, v in named.items()}
    table = named["base.0.vectors.weight"] if not frozen else module.get_submodule("base.0.vectors").table
    assert isinstance(table, Tensor)
    ids = tokens(4)
    layer = [table[ids[:, t]].double() for t in range(LENGTH)]
    for k in range(2):
        forward = direction(w, f"l{k}", layer)
        backward = direction(w, f"l{k}_reverse", layer[::-1])[::-1]
        layer = [torch.cat(pair, 1) for pair in zip(forward, backward, strict=True)]
    read = torch.cat([forward[-1], backward[-1], backward[0], forward[-1]], 1)
    z = read @ named["base.1.weight"].T + named["base.1.bias"]
    z = torch.where(z > 0, z, 0.1 * z)
    expected = z @ named["head.weight"].T + named["head.bias"]
    assert expected.std() > 1e-3
    torch.testing.assert_close(module(ids), expected, rtol=1e-6 if frozen else 1e-12, atol=1e-12)


def test_token_ids_may_be_floats() -> None:
    """`Federation.to` and `from_arrays` make floats of every input."""
    module, ids = small(), tokens(4)
    assert torch.equal(module(ids), module(ids.float()))
    assert torch.equal(module(ids), module(ids.int()))


# Vectors


def test_vectors_are_the_same_in_every_run_and_zero_for_padding() -> None:
    """Whatever torch's global generator does, which they leave alone."""
    torch.manual_seed(1)
    first = small().get_submodule("base.0.vectors").table
    torch.manual_seed(2)
    again = small().get_submodule("base.0.vectors").table
    assert isinstance(first, Tensor)
    assert isinstance(again, Tensor)
    assert torch.equal(first, again)
    assert (first[0] == 0).all()
    assert (first[1:].abs().sum(1) > 0).all()
    trained = Task(small(frozen=False), Categorical(2)).init(Key.from_seed(0))["base.0.vectors.weight"]
    assert (trained[0] == 0).all()


def test_vectors_from_a_file(tmp_path: Path) -> None:
    table = torch.randn(9, 3)
    write_bytes(tmp_path / "glove.safetensors", pack({"vectors": table}))
    module = small(vectors=str(tmp_path / "glove.safetensors"))
    ours = module.get_submodule("base.0.vectors").table
    assert isinstance(ours, Tensor)
    assert torch.equal(ours, table)
    assert Task(module, Categorical(2)).size == Task(small(), Categorical(2)).size


def test_vectors_that_are_refused(tmp_path: Path) -> None:
    wrong, other, whole = (tmp_path / f"{name}.safetensors" for name in ("wrong", "other", "whole"))
    write_bytes(wrong, pack({"vectors": torch.zeros(7, 3)}))
    write_bytes(other, pack({"weights": torch.zeros(9, 3)}))
    write_bytes(whole, pack({"vectors": torch.zeros(9, 3, dtype=torch.int64)}))
    assert "set model.vocabulary=7 and model.embedding=3" in refusal(vectors=str(wrong))
    assert "holds no word vectors" in refusal(vectors=str(other))
    assert "holds no word vectors" in refusal(vectors=str(whole))
    assert "missing or damaged" in refusal(vectors=str(tmp_path / "none.safetensors"))
    assert "leave out `vectors` or frozen=False" in refusal(vectors=str(wrong), frozen=False)


@pytest.mark.parametrize("wrong", [torch.tensor([[0, 1, 2, 3, 9]]), torch.tensor([[0, 1, -1, 3, 4]]), torch.rand(1, 5)])
@pytest.mark.parametrize("frozen", [True, False])
def test_what_is_no_token_is_refused(wrong: Tensor, frozen: bool) -> None:
    """An id beyond the vocabulary, a negative one, a scaled input."""
    with pytest.raises(FedpriorError, match="takes token ids from 0 to 8, but the data has other values") as error:
        small(frozen=frozen)(wrong)
    assert "\n" not in str(error.value)


# Training


def federation() -> Federation:
    """Three clients of different size whose label says whether token 1 or token 2 comes first."""
    sizes = (9, 4, 6)
    x = tokens(sum(sizes))
    x[:, 0] = 1 + torch.arange(len(x)) % 2
    data = ClientData(x, x[:, 0] - 1, (0, 9, 13), sizes)
    return Federation(("ann", "bob", "cem"), data, data, data, Classes.numbered(2))


def trained(data: Federation, frozen: bool, chunk: int, rounds: int = 1, **train: Any) -> tuple[Any, Any, float]:
    """FedAvg's model before and after, and its last loss."""
    steps = Train(**({"lr": 0.1, "batch_size": 4, "steps": 2} | train))
    method = build_method("fedavg", {}, steps).bind(Task(small(frozen=frozen), Categorical(2)), steps)
    with Engine(method, data, 0, chunk=chunk) as engine:
        start = tree.clone(engine.server.w)
        for number in range(rounds):
            logs = engine.round(number, engine.everyone, engine.everyone).logs
        found = engine.evaluate(rounds, ("test",))
        assert [p.shape for p in found.predictions["test"]] == [(9, 2), (4, 2), (6, 2)]
        return start, engine.server.w, float(logs["loss"].mean())


@pytest.mark.parametrize("frozen", [True, False])
def test_two_steps_of_fedavg_on_token_ids(frozen: bool) -> None:
    """Integer inputs train every weight, in stacks as singly; as floats they give the same weights, bit for bit."""
    data = federation()
    assert data.train.x.dtype == torch.int64
    start, singly, _ = trained(data, frozen, 1)
    _, together, _ = trained(data, frozen, 3)
    _, floats, _ = trained(data.to(torch.float32), frozen, 1)
    for k, v in start.items():
        assert not torch.equal(v, singly[k]), k
        torch.testing.assert_close(together[k], singly[k], rtol=1e-5, atol=1e-7)
        assert torch.equal(floats[k], singly[k])
    if not frozen:
        assert (singly["base.0.vectors.weight"][0] == 0).all()  # padding stays zero


def test_it_learns() -> None:
    """The first token tells the label: from log 2 = 0.69 to almost nothing."""
    *_, loss = trained(federation(), True, 1, rounds=5, optimizer="adam", lr=0.03, steps=15)
    assert loss < 0.05


def test_a_federation_from_arrays_trains() -> None:
    data = federation()
    x, y = data.train.x.numpy(), data.train.y.numpy()
    ours = from_arrays({"ann": (x[:10], y[:10]), "bob": (x[10:], y[10:])}, classes=2)
    assert ours.shape == (LENGTH,)
    task = Task(small(), Categorical(2))
    w = tree.expand(task.init(Key.from_seed(0)), 2)
    assert torch.isfinite(task.data_nll(w, ours.train)).all()
    scaled = replace(ours.train, x=ours.train.x / 2)
    with pytest.raises(FedpriorError, match="do not scale token ids"):
        task.data_nll(w, scaled)
