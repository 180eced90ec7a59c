"""A site that answers nonsense, late or not at all: rejected with a reason, rolled back, and nobody else is harmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedprior import tree
from fedprior.engine import Engine
from fedprior.flower.codec import Layout, RejectedError, encode
from fedprior.flower.here import Here
from fedprior.flower.orders import Order, Reply, RoundOrder
from fedprior.flower.refusal import CODES, RefusedError, reason
from fedprior.flower.remote import remote
from fedprior.flower.store import Store
from flower.sites import deployed, known, linked, simulated
from support import bound, federation

SMALL = (12, 5, 9)
VICTIM = "site-1"


def spoilt(change: Callable[[Reply], Reply], *, when: int = 1) -> Callable[[str, RoundOrder, Reply], Reply]:
    def tamper(name: str, order: RoundOrder, reply: Reply) -> Reply:
        return change(reply) if (name, order.round, order.train) == (VICTIM, when, True) else reply

    return tamper


def arrays(change: Callable[[Any], Any]) -> Callable[[Reply], Reply]:
    return lambda reply: reply._replace(arrays={path: change(values) for path, values in reply.arrays.items()})


def array(name: str, change: Callable[[Any], Any]) -> Callable[[Reply], Reply]:
    return lambda reply: reply._replace(arrays={**reply.arrays, name: change(reply.arrays[name])})


def told(**fields: Any) -> Callable[[Reply], Reply]:
    return lambda reply: reply._replace(document={**reply.document, **fields})


FAULTS: dict[str, tuple[Callable[[Reply], Reply], str]] = {
    "nan": (arrays(lambda v: v * np.nan), "bias' is not finite"),
    "shape": (arrays(lambda v: v[..., :1]), "has the shape"),
    "oversized": (arrays(lambda v: np.concatenate([v] * 50)), "has the shape"),
    "dtype": (arrays(lambda v: v.astype(np.float16)), "is of the type float16 and should be float64"),
    "truncated": (lambda r: r._replace(arrays=dict(list(r.arrays.items())[1:])), "it lacks"),
    "empty": (lambda r: r._replace(arrays={}), "it lacks 'n' and 4 more"),
    "negative": (array("n", lambda v: -v), "its 'n' does not fit its "),
    "boasting": (array("n", lambda v: v * 1e9), "its 'n' does not fit its "),
    "more": (lambda r: r._replace(arrays={**r.arrays, "rows": np.ones(3)}), "1 fields that were not asked for"),
    "replayed": (told(round=0), "it is the answer to another round"),
    "gossip": (told(logs={"patient 4711": 1.0}), "it tells what was not asked for"),
    "no document": (lambda r: r._replace(document={"x": 1}), "is not valid"),
    "text for numbers": (told(logs="patient 4711"), "its 'logs' is not valid"),
    "metrics": (told(scores={"test": {"accuracy": 1.0}}), "it tells what was not asked for"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_is_rejected_and_the_site_rolls_back(fault: str, tmp_path: Path) -> None:
    """In round 2 of 3 the victim's answer is spoilt. The run is as if the victim had been silent in that round."""
    change, why = FAULTS[fault]
    data = federation(SMALL)
    method = bound("fedavg", data)
    _, link = linked(method, data, tmp_path / "a", spoilt(change))
    found = deployed(method, data, link, rounds=3, eval_every=3)
    events = [event for event in found.journal.events if event["kind"] == "round"]
    assert [list(event["left_out"]) for event in events] == [[], [VICTIM], []]
    assert why in events[1]["left_out"][VICTIM]
    assert "4711" not in str(found.journal.events)
    _, quiet = linked(method, data, tmp_path / "b")
    absent = deployed(method, data, Silent(quiet), rounds=3, eval_every=3)
    assert found.values == absent.values


class Silent:
    """A link on which the victim's answer to round 2 does not arrive, although the site has done the work."""

    def __init__(self, link: Here) -> None:
        self.link = link

    def exchange(self, orders: Sequence[Order]) -> dict[str, Reply | str]:
        replies = dict(self.link.exchange(orders))
        for order in orders:
            if (order.site, order.document["round"], order.document["train"]) == (VICTIM, 1, True):
                del replies[order.site]
        return replies


@pytest.mark.parametrize("name", ["pfedvem", "scaffold", "fedamp", "ditto"])
def test_a_late_site_goes_back_to_the_last_round_that_counted(name: str, tmp_path: Path) -> None:
    """Its state moved on uncounted; the prior and all personal models are those of a run in which it was lost."""
    data = federation(SMALL)
    method = bound(name, data)
    sites, link = linked(method, data, tmp_path)
    found = deployed(method, data, Silent(link), rounds=3, eval_every=3, select="last")
    counted = [order.counted for site, order in sites.orders if site == VICTIM]
    assert counted == [0, 1, 1, 3], "round 3 starts from the state after round 1"

    engine = Engine(method, data, 0, chunk=1)
    others = [row for row in engine.everyone if data.clients[row] != VICTIM]
    with engine:
        engine.round(0, engine.everyone, engine.everyone)
        engine.round(1, others, others)
        engine.round(2, engine.everyone, engine.everyone)
        expected = engine.evaluate(3, ("test",))
    for row, client in enumerate(data.clients):
        assert found.values[client] == expected.scores["test"][row]
        own = sites.personal(client, 3)
        for path, leaf in tree.items(engine.memory.personal):
            assert np.array_equal(own[path][0], leaf[row].numpy()), (client, path)


def test_fewer_answers_than_needed_leave_the_prior(tmp_path: Path) -> None:
    data = federation(SMALL)
    method = bound("fedavg", data)
    sites, link = linked(method, data, tmp_path)
    with Engine(method, known(data), 0, chunk=1, runner=remote(Silent(link)), min_answers=3) as engine:
        engine.round(0, engine.everyone, engine.everyone)
        before = tree.clone(engine.server)
        assert engine.round(1, engine.everyone, engine.everyone).counted == []
        assert all((a == b).all() for a, b in zip(tree.leaves(before), tree.leaves(engine.server), strict=True))
    assert len(sites.orders) == 6


def test_a_site_that_does_not_evaluate_is_named_and_that_round_is_not_chosen(tmp_path: Path) -> None:
    data = federation(SMALL)
    method = bound("fedavg", data)
    _, link = linked(method, data, tmp_path, spoilt(lambda reply: Reply({"round": 1, "refused": "disk"})))
    found = deployed(method, data, link, rounds=3)
    first, *others = [event for event in found.journal.events if event["kind"] == "evaluation"]
    assert (first["round"], first["unanswered"]) == (1, [VICTIM])
    assert first["personal"]["test"]["evaluated"] == 2
    assert all("unanswered" not in event for event in others)
    assert found.selected > 1
    rounds = [event for event in found.journal.events if event["kind"] == "round"]
    assert rounds[1]["left_out"] == {VICTIM: CODES["disk"]}


def test_a_resumed_server_asks_again_and_gets_the_same(tmp_path: Path) -> None:
    """Killed after round 2 of 4: checkpoint, journal and the sites' states lead to the uninterrupted result."""
    data = federation(SMALL)
    method = bound("pfedvem", data)
    _, link = linked(method, data, tmp_path / "state")

    class Killed:
        def exchange(self, orders: Sequence[Order]) -> Any:
            replies = link.exchange(orders)  # the sites have done it
            if orders[0].document["round"] == 2:
                raise KeyboardInterrupt
            return replies

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        deployed(method, data, Killed(), folder, rounds=4)
    found, expected = deployed(method, data, link, folder, rounds=4), simulated(method, data, rounds=4)
    assert found.values == expected.values
    assert found.selected == expected.selected
    assert not (folder / "models").exists(), "personal models stay at their sites"
    assert (folder / "summary.json").exists()


# The parts


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    data = federation(SMALL)
    sites, link = linked(bound("ditto", data), data, tmp_path)
    deployed(sites.method, data, link)
    store = sites.site(VICTIM).store
    (path,) = store.folder.glob("state-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RefusedError, match="its checksum is wrong") as refused:
        store.read("state", 2, sites.site(VICTIM).layouts.state)
    assert refused.value.code == "state"
    path.unlink()
    with pytest.raises(RefusedError, match="there is no state of round 2"):
        store.roll_back(2)


def test_a_store_keeps_what_may_be_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path, "../odd name", "site/1")
    for number in (1, 2, 3):
        store.keep("state", number, {"a": torch.tensor(number)})
    store.roll_back(2)
    assert store.numbers("state") == [2]
    assert tmp_path in store.folder.parents, "no name leads elsewhere"


def test_an_experiment_is_known_by_its_hash_and_data(tmp_path: Path) -> None:
    store = Store(tmp_path, "e", "s")
    store.agree({"hash": "a", "data": "d"})
    store.agree({"hash": "a", "data": "d"})
    with pytest.raises(RefusedError) as refused:
        store.agree({"hash": "b", "data": "d"})
    assert refused.value.code == "another"
    with pytest.raises(RefusedError) as refused:
        store.agree({"hash": "a", "data": "e"})
    assert refused.value.code == "changed"


def test_a_layout_by_hand() -> None:
    sample = {"b": torch.tensor(2.0), "w": torch.ones(1, 3, dtype=torch.float64)}
    layout = Layout.of(dict, sample)
    assert layout.nbytes == 4 + 24
    found = layout.decode(encode(sample))
    assert found["b"].shape == ()
    assert found["b"].dtype == torch.float32
    with pytest.raises(RejectedError, match="it lacks 'b' and 1 more"):
        layout.decode({})


def test_an_unknown_code_says_nothing() -> None:
    assert reason("patient 4711") == reason(3) == CODES["internal"]


def test_what_a_method_logs_of_single_rows_stays_at_the_site(tmp_path: Path) -> None:
    """Names that are not on the list are dropped; under a name that is, a number per row is refused as a whole."""
    data = federation(SMALL)

    class Gossip(type(bound("fedavg", data))):  # type: ignore[misc]
        rows: ClassVar[str] = "oldest_patient"

        def local_update(self, client: Any, down: Any, data: Any, keys: Any) -> Any:
            client, up, logs = super().local_update(client, down, data, keys)
            return client, up, {**logs, self.rows: data.x.double().flatten()[None], "patient.loss": logs["loss"]}

    plain = bound("fedavg", data)
    method = Gossip().bind(plain.task, plain.train)
    sites, link = linked(method, data, tmp_path / "a")
    seen: list[Reply] = []

    def overheard(name: str, order: RoundOrder, reply: Reply) -> Reply:
        seen.append(reply)
        return reply

    sites.tamper = overheard
    deployed(method, data, link, rounds=1)
    assert [set(reply.document["logs"]) for reply in seen if reply.arrays] == [{"loss"}] * len(SMALL)
    Gossip.rows = "loss"
    with pytest.raises(TypeError):
        deployed(method, data, linked(method, data, tmp_path / "b")[1], rounds=1)
