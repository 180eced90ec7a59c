"""APFL: the two ends of the mixture, the factor α in v's gradient, and the slope by which α adapts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedprior import tree
from fedprior.methods.apfl import APFL, Client
from fedprior.methods.local import Alone
from fedprior.protocol import Empty, Weights
from fedprior.rng import Key
from fedprior.training import Train
from fedprior.tree import Params
from support import HALF, TRAIN, bound, federation, keys, one_round, rounds, same

NORMED = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
ONCE = Train(lr=0.1, batch_size=100, steps=1)  # one step on all of a client's data


def apfl(data: Any, train: Train = TRAIN, module: nn.Module | None = None, **options: Any) -> APFL:
    method = bound("apfl", data, train, module, **options)
    assert isinstance(method, APFL)
    return method


def loss(method: APFL, w: Params, data: Any, c: int) -> Tensor:
    """A client's training loss by torch's own module."""
    x, y = data.train.client(c)
    return nn.functional.cross_entropy(functional_call(method.task.module, w, (x,)), y)


def mixed(v: Params, w: Params, alpha: float) -> Params:
    return {k: alpha * v[k] + (1 - alpha) * w[k] for k in v}


def apart(method: APFL, data: Any) -> tuple[Client, Weights]:
    """A client whose v is far from what comes down."""
    _, down, client, _, _ = one_round(method, data)
    gen = torch.Generator().manual_seed(1)
    v = tree.map(lambda p: p + 0.5 * torch.randn(p.shape, generator=gen, dtype=p.dtype), tree.clone(client.v))
    return Client(v, client.alpha), down


@pytest.mark.parametrize("module", [None, NORMED])
def test_no_share_predicts_with_the_global_model(module: nn.Module | None) -> None:
    """α = 0: the mixture is w bit for bit, and without a gradient v stays where it started."""
    data = federation(sizes=(30, 21, 12))
    method = apfl(data, module=module, alpha=0.0)
    trace = rounds(method, data)
    start = method.task.init(Key.from_seed(5).fold("init"))
    for k, v in start.items():
        if k not in method.task.buffers:
            assert torch.equal(trace.states[f"v/{k}"], v.expand(3, *v.shape))
        for client in data.clients:
            assert (trace.models[client][f"w/{k}"] == trace.server[f"w/{k}"].numpy()).all()


@pytest.mark.parametrize("module", [None, NORMED])
def test_the_whole_share_is_local_training(module: nn.Module | None) -> None:
    """α = 1: v is Local's model, with its running statistics; the mixture w + (v - w) rounds, so to 1e-10."""
    data = federation()
    ours = rounds(apfl(data, module=module, alpha=1.0), data)
    theirs = rounds(bound("local", data, module=module), data)
    for k, v in ours.states.items():
        if k.startswith("v/"):
            gap = (theirs.states[k.replace("v/", "w/")] - v).abs().max()
            assert float(gap) < 1e-10, k
    for client in data.clients:
        assert abs(ours.test[client] - theirs.test[client]).max() < 1e-5  # float32


@pytest.mark.parametrize("module", [None, NORMED])
@pytest.mark.parametrize("options", [{"alpha": 0.25}, {"alpha": 0.7, "alpha_lr": 0.5}])
def test_the_global_stream_is_fedavgs(options: dict[str, Any], module: nn.Module | None) -> None:
    """Bit for bit, over rounds: v and α leave no mark on w."""
    data = federation()
    ours = rounds(apfl(data, module=module, **options), data, participation=HALF)
    theirs = rounds(bound("fedavg", data, module=module), data, participation=HALF)
    assert same(ours.server, theirs.server)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.8])
def test_gradient_of_the_personal_network(alpha: float) -> None:
    """v ← v - η α ∇f(α v + (1-α) w), w already stepped; by autograd at the mixture and by finite differences of v."""
    data = federation()
    method = apfl(data, ONCE, alpha=alpha)
    client, down = apart(method, data)
    updated, up, _ = method.local_update(client, down, data.train, keys(data, "round", 0))
    for c in range(len(data)):
        v, w = tree.index(client.v, c), tree.index(up.w, c)
        mixture = {k: p.clone().requires_grad_() for k, p in mixed(v, w, alpha).items()}
        slopes = torch.autograd.grad(loss(method, mixture, data, c), list(mixture.values()))
        for k, g in zip(mixture, slopes, strict=True):
            assert torch.allclose((v[k] - updated.v[k][c]) / 0.1, alpha * g, rtol=0, atol=1e-12)
        bump = torch.zeros_like(v["head.bias"])
        bump[1] = 1e-6
        ends = [loss(method, mixed({**v, "head.bias": v["head.bias"] + s * bump}, w, alpha), data, c) for s in (1, -1)]
        slope = float(ends[0] - ends[1]) / 2e-6
        assert float((v["head.bias"] - updated.v["head.bias"][c])[1]) / 0.1 == pytest.approx(slope, abs=1e-8)


def test_a_round_against_a_plain_loop() -> None:
    """Three steps with momentum on all of a client's data: w on f(w), then v on f(αv + (1-α)w), torch's SGD each."""
    data = federation()
    train = replace(TRAIN, batch_size=100, epochs=3, weight_decay=0.01)
    method = apfl(data, train, alpha=0.3)
    client, down = apart(method, data)
    updated, up, _ = method.local_update(client, down, data.train, keys(data, "round", 0))
    for c in range(len(data)):
        w, v = ({k: p[c].clone().requires_grad_() for k, p in part.items()} for part in (down.w, client.v))
        first, second = (
            torch.optim.SGD(part.values(), lr=train.lr, momentum=train.momentum, weight_decay=0.01) for part in (w, v)
        )
        for _ in range(3):
            first.zero_grad()
            loss(method, w, data, c).backward()  # type: ignore[no-untyped-call]
            first.step()
            second.zero_grad()
            loss(method, mixed(v, {k: p.detach() for k, p in w.items()}, 0.3), data, c).backward()  # type: ignore[no-untyped-call]
            second.step()
        for k in w:
            assert torch.allclose(up.w[k][c], w[k], rtol=0, atol=1e-12)
            assert torch.allclose(updated.v[k][c], v[k], rtol=0, atol=1e-12)


def test_the_share_descends_the_training_loss() -> None:
    """α ← α - η_α dL/dα, L the loss of the mixture on all training data: the slope by finite differences."""
    data = federation()
    method = apfl(data, alpha=0.4, alpha_lr=0.01)
    client, down = apart(method, data)
    updated, up, logs = method.local_update(client, down, data.train, keys(data, "round", 0))
    for c in range(len(data)):
        v, w = tree.index(updated.v, c), tree.index(up.w, c)
        ends = [float(loss(method, mixed(v, w, 0.4 + h), data, c)) for h in (1e-6, -1e-6)]
        slope = (ends[0] - ends[1]) / 2e-6
        assert abs(slope) > 1e-3
        assert float(updated.alpha[c]) == pytest.approx(0.4 - 0.01 * slope, abs=1e-8)
        inner = sum(  # Eq. 10: ⟨v - w, ∇f at the mixture⟩
            float(((v[k] - w[k]) * g).sum()) for k, g in zip(v, _slopes(method, mixed(v, w, 0.4), data, c), strict=True)
        )
        assert inner == pytest.approx(slope, abs=1e-7)
    assert torch.equal(logs["alpha"], updated.alpha)


def _slopes(method: APFL, w: Params, data: Any, c: int) -> tuple[Tensor, ...]:
    leaves = {k: p.clone().requires_grad_() for k, p in w.items()}
    return torch.autograd.grad(loss(method, leaves, data, c), list(leaves.values()))


def test_the_share_stays_between_zero_and_one() -> None:
    """A step of 1e6 along slopes of either sign ends at 0 or 1, and both occur."""
    data = federation()
    plain, wild = (apfl(data, alpha=0.4, alpha_lr=lr) for lr in (1e-3, 1e6))
    client, down = apart(plain, data)
    own = keys(data, "round", 0)
    small, far = (m.local_update(client, down, data.train, own)[0].alpha for m in (plain, wild))
    flipped = Client(tree.map(lambda v, w: 2 * w - v, client.v, down.w), client.alpha)
    small_2, far_2 = (m.local_update(flipped, down, data.train, own)[0].alpha for m in (plain, wild))
    for a, b in ((small, far), (small_2, far_2)):
        assert torch.equal(b, (a > 0.4).double())
    assert {*far.tolist(), *far_2.tolist()} == {0.0, 1.0}


def test_a_fixed_share_is_fixed() -> None:
    data = federation()
    trace = rounds(apfl(data, alpha=0.3), data)
    assert (trace.states["alpha"] == 0.3).all()


def test_v_stays_apart_from_the_mixture() -> None:
    """The personal model is α v + (1-α) w with the newest w; the state keeps v itself. (One library merges them.)"""
    data = federation()
    method = apfl(data, alpha=0.25)
    client, down = apart(method, data)
    personal = method.personalise(client, down, data.train, keys(data, "p"))
    for k, v in client.v.items():
        assert torch.allclose(personal.w[k], 0.25 * v + 0.75 * down.w[k], rtol=0, atol=1e-14)
    newer = Weights(tree.map(lambda w: w + 1, down.w))
    again = method.personalise(client, newer, data.train, keys(data, "p"))
    assert torch.allclose(again.w["head.bias"] - personal.w["head.bias"], torch.tensor(0.75).double(), atol=1e-14)


def test_weights_are_mixed_not_logits() -> None:
    """The prediction is that of one network; the mixture of both networks' logits is another."""
    data = federation()
    method = apfl(data, alpha=0.5)
    client, down = apart(method, data)
    x = next(data.test.batches(50)).x
    log_p = method.predict(method.personalise(client, down, data.train, keys(data)), x, keys(data))
    for c in range(len(data)):
        network = mixed(tree.index(client.v, c), tree.index(down.w, c), 0.5)
        expected = functional_call(method.task.module, network, (x[c],)).log_softmax(1).detach()
        assert torch.allclose(log_p[c], expected, rtol=0, atol=1e-12)
    blended = (method.task.outputs(client.v, x) + method.task.outputs(down.w, x)) / 2
    assert (log_p - blended.log_softmax(2)).abs().max() > 1e-3


def test_the_two_networks_have_momenta_of_their_own() -> None:
    """With α = 1 and v far from w, v's two steps are Local's from v: nothing of w's momentum is in them."""
    data = federation(sizes=(30, 21))
    train = replace(TRAIN, momentum=0.9, batch_size=100, epochs=2)
    method, local = apfl(data, train, alpha=1.0), bound("local", data, train)
    client, down = apart(method, data)
    own = keys(data, "round", 0)
    updated, _, _ = method.local_update(client, down, data.train, own)
    alone, _, _ = local.local_update(Alone(client.v, torch.zeros(2)), Empty(), data.train, own)
    for k, v in alone.w.items():
        assert torch.allclose(updated.v[k], v, rtol=0, atol=1e-12)
