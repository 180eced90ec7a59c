"""IFCA: one model is FedAvg, names of clusters mean nothing, and clients choose by training loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedprior import tree
from fedprior.methods.ifca import IFCA, Server, Up
from fedprior.rng import Key
from fedprior.tree import Params
from support import HALF, bound, federation, keys, one_round, rounds, same


def ifca(data: Any, **options: Any) -> IFCA:
    method = bound("ifca", data, **{"warm_up": 0, "clusters": 3, **options})
    assert isinstance(method, IFCA)
    return method


def losses(method: IFCA, models: Params, data: Any, c: int) -> list[float]:
    """A client's mean training loss under each model, by torch's own module."""
    x, y = data.train.client(c)
    found = []
    for m in range(method.clusters):
        logits = functional_call(method.task.module, tree.index(models, m), (x,))
        found.append(float(nn.functional.cross_entropy(logits, y)))
    return found


@pytest.mark.parametrize("warm_up", [0, 2])
@pytest.mark.parametrize("share_base", [False, True])
def test_one_cluster_is_fedavg(warm_up: int, share_base: bool) -> None:
    """k = 1: models and predictions, bit for bit."""
    data = federation()
    options = {"clusters": 1, "warm_up": warm_up, "share_base": share_base}
    ours, theirs = (rounds(m, data, participation=HALF) for m in (ifca(data, **options), bound("fedavg", data)))
    for k, v in theirs.server.items():
        assert torch.equal(ours.server[k.replace("w/", "x/")], v[None])
    for client in data.clients:
        assert (ours.test[client] == theirs.test[client]).all()


def test_models_start_apart_and_the_first_is_the_common_one() -> None:
    data = federation()
    method = ifca(data)
    x = method.init_server(Key.from_seed(5)).x
    assert same(tree.index(x, 0), method.task.init(Key.from_seed(5).fold("init")))
    flat = torch.cat([v.flatten(1) for v in x.values()], 1)
    assert float(torch.pdist(flat).min()) > 0.1


def test_clients_choose_the_smallest_training_loss() -> None:
    """Recomputed naively; labels of validation and test data play no part."""
    data = federation()
    method = ifca(data, clusters=4)
    server, down, client, updated, up = one_round(method, data)
    best = [min(range(4), key=losses(method, server.x, data, c).__getitem__) for c in range(len(data))]
    assert client.choice.tolist() == updated.choice.tolist() == up.choice.tolist() == best
    assert len(set(best)) > 1
    later = Server(tree.map(lambda v: v.flip(1), down.x), down.round)
    personal = method.personalise(updated, later, data.train, keys(data, "p"))  # chosen again, among the newest
    rows = torch.arange(len(data))
    assert same(personal.w, tree.map(lambda v: v[rows, torch.tensor(best)], down.x))


def test_the_chosen_model_is_the_one_that_is_trained() -> None:
    """A client's uplink is FedAvg's local run from the model it chose."""
    data = federation()
    method = ifca(data)
    _, down, _, updated, up = one_round(method, data)
    rows = torch.arange(len(data))
    start = tree.map(lambda v: v[rows, updated.choice], down.x)
    avg: Any = bound("fedavg", data)
    _, theirs, _ = avg.local_update(avg.types[1](), avg.types[2](start), data.train, keys(data, "round", 0))
    assert same(up.x, theirs.w)


@pytest.mark.parametrize("share_base", [False, True])
def test_permuting_clusters_permutes_models_only(share_base: bool) -> None:
    """Models in another order: the same uplinks under other numbers, and the new models in that order."""
    data = federation()
    method = ifca(data, share_base=share_base)
    server, down, client, _, _ = one_round(method, data)
    order = torch.tensor([2, 0, 1])  # new place m holds old model order[m]
    place = order.argsort()
    ids, own = torch.arange(len(data)), keys(data, "round", 0)
    a, up, _ = method.local_update(client, down, data.train, own)
    mixed = Server(tree.map(lambda v: v[:, order], down.x), down.round)
    b, permuted, _ = method.local_update(client, mixed, data.train, own)
    assert torch.equal(b.choice, place[a.choice])
    assert same(permuted.x, up.x)
    before = method.aggregate(server, up, ids)
    after = method.aggregate(Server(tree.index(server.x, order), server.round), permuted, ids)
    assert same(after.x, tree.index(before.x, order))
    one, two = (
        method.personalise(s, tree.expand(new, len(data)), data.train, keys(data, "p"))
        for s, new in ((a, before), (b, after))
    )
    assert same(one, two)


def scalar_up(values: list[float], choice: list[int], n: list[float]) -> Up:
    x = torch.tensor(values, dtype=torch.float64)[:, None]
    return Up({"head.w": x, "w": x + 100}, torch.tensor(choice), torch.tensor(n, dtype=torch.float64))


def test_aggregation_by_hand() -> None:
    """Models (0, 1, 2) from clients 5 and 9 (n = 1, 3; cluster 0) and 7 (n = 4; cluster 2); nobody chose cluster 1.

    Cluster 0: (5 + 27)/4 = 8; cluster 1 stays; cluster 2: 7. With a shared base, `w` is the mean over everyone,
    (5 + 27 + 28)/8 = 7.5 (+ 100), in every cluster, the empty one too, while heads go by cluster.
    """
    data = federation()
    up, ids = scalar_up([5, 9, 7], [0, 0, 2], [1, 3, 4]), torch.arange(3)
    old = torch.arange(3, dtype=torch.float64)[:, None]
    server = Server({"head.w": old, "w": old}, torch.tensor(6))
    plain = ifca(data).aggregate(server, up, ids)
    assert plain.x["head.w"].flatten().tolist() == [8.0, 1.0, 7.0]
    assert plain.x["w"].flatten().tolist() == [108.0, 1.0, 107.0]
    assert int(plain.round) == 7
    shared = ifca(data, share_base=True).aggregate(server, up, ids)
    assert shared.x["head.w"].flatten().tolist() == [8.0, 1.0, 7.0]
    assert shared.x["w"].flatten().tolist() == [107.5] * 3


def test_a_model_that_nobody_chose_stays_bit_for_bit() -> None:
    """One model has a huge loss everywhere: it stays, and a chosen one does not."""
    data = federation()
    method = ifca(data)
    server, down, client, _, _ = one_round(method, data)
    bad = {k: v.clone() for k, v in server.x.items()}
    for v in bad.values():
        v[1] = 1e3 * v[1].sign()
    down = tree.expand(Server(bad, server.round), len(data))
    _, up, logs = method.local_update(client, down, data.train, keys(data, "round", 0))
    assert 1 not in logs["cluster"].tolist()
    new = method.aggregate(Server(bad, server.round), up, torch.arange(len(data)))
    assert same(tree.index(new.x, 1), tree.index(bad, 1))
    assert not same(tree.index(new.x, int(up.choice[0])), tree.index(bad, int(up.choice[0])))


def test_a_diverged_model_is_nobodys_choice() -> None:
    """A loss that is not a number is not the smallest: clients take the best of the other models."""
    data = federation()
    method = ifca(data, clusters=2)
    server = method.init_server(Key.from_seed(5))
    broken = {k: v.clone() for k, v in server.x.items()}
    for v in broken.values():
        v[1] = torch.nan
    down = tree.expand(Server(broken, server.round), len(data))
    assert method.best(down, data.train).tolist() == [0] * len(data)


def test_warm_up_deals_clients_at_random() -> None:
    """In the first rounds the choice follows from the key alone, not from losses; afterwards from losses alone."""
    data = federation(sizes=(12,) * 20)
    method = ifca(data, clusters=2, warm_up=3)
    server, _, client, _, _ = one_round(method, data)
    swapped = Server(tree.map(lambda v: v.flip(0), server.x), server.round)

    def choices(server: Server, at: int) -> Tensor:
        down = tree.expand(replace_round(server, at), len(data))
        return method.local_update(client, down, data.train, keys(data, "round", at))[0].choice

    dealt = choices(server, 2)
    assert torch.equal(dealt, choices(swapped, 2))
    assert 3 < int(dealt.sum()) < 17
    assert not torch.equal(dealt, choices(server, 1))  # dealt anew every round
    assert torch.equal(choices(server, 3), 1 - choices(swapped, 3))
    assert torch.equal(choices(server, 3), method.best(tree.expand(server, len(data)), data.train))


def replace_round(server: Server, at: int) -> Server:
    return server._replace(round=torch.tensor(at))


def test_a_shared_base_is_one_base() -> None:
    """From the start and through rounds, all clusters have the same base and heads of their own."""
    data = federation()
    method = ifca(data, share_base=True)
    for x in (method.init_server(Key.from_seed(5)).x, tree_of(rounds(method, data).server)):
        base, head = method.task.split(x)
        assert all(torch.equal(v[0], v[m]) for v in base.values() for m in (1, 2))
        assert all((v[0] != v[1]).any() for v in head.values())


def tree_of(server: dict[str, Tensor]) -> Params:
    return {k.removeprefix("x/"): v for k, v in server.items() if k.startswith("x/")}
