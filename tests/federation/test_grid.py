"""The two ends of Flower: what the server makes of messages that fail, and what a site's node lets out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from federation.in_process import InProcess, Node, answering, numbered
from fedprior.errors import FedpriorError
from fedprior.flower import client_app, messages
from fedprior.flower.orders import Order, Reply
from fedprior.flower.server_app import GridLink, find_sites

SITES = ("aachen", "bonn")
HONEST = answering(lambda site, document, arrays: ({**document, "by": site}, arrays))
SECRET = "patient 4711"


def only(site: str, node: Node) -> Node:
    """One site behaves so, the others are honest."""
    return lambda name, message: (node if name == site else HONEST)(name, message)


def exchanged(node: Node, timeout: float = 1.0) -> Mapping[str, Reply | str]:
    grid = InProcess(SITES, node)
    link = GridLink(grid, grid.sites, timeout)
    return link.exchange([Order(site, {"site": site}, {"w": np.ones(2)}) for site in SITES])


def content(text: str, **arrays: Array) -> RecordDict:
    return RecordDict({"document": ConfigRecord({"json": text}), "arrays": ArrayRecord(arrays)})


def broken(found: RecordDict) -> Node:
    return lambda name, message: Message(found, reply_to=message)


def forged(name: str, message: Message) -> Message:
    """An honest answer that another node sends."""
    reply = HONEST(name, message)
    assert reply is not None
    reply.metadata.__dict__["_src_node_id"] = 99
    return reply


def failing(code: int) -> Node:
    return lambda name, message: Message(Error(code, SECRET), reply_to=message)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (lambda name, message: None, "no answer within 1 s"),
        (failing(ErrorCode.CLIENT_APP_RAISED_EXCEPTION), "its node reports error "),
        (forged, "the answer came from another node"),
        (broken(RecordDict()), "its answer was rejected: it cannot be read"),
        (broken(content(SECRET)), "its answer was rejected: it cannot be read"),
        (broken(content("[" * 10_000)), "its answer was rejected: it cannot be read"),
        (broken(content('["a"]')), "its answer was rejected: it is not such a document"),
        (broken(content('"' + "x" * (1 << 22) + '"')), "its answer was rejected: its document is too large"),
        (
            broken(content("{}", w=Array("float32", (2,), "numpy.ndarray", b"\x93NUMPY" + SECRET.encode()))),
            "its answer was rejected: it cannot be read",
        ),
    ],
    ids=["silent", "error", "forged", "empty", "no JSON", "deep", "a list", "large", "no array"],
)
def test_an_answer_that_fails_is_a_reason_without_its_text(node: Node, why: str) -> None:
    """And the other site's answer counts."""
    found = exchanged(only("bonn", node))
    assert isinstance(found["bonn"], str)
    assert found["bonn"].startswith(why)
    assert "4711" not in found["bonn"]
    assert isinstance(found["aachen"], Reply)
    assert found["aachen"].document == {"site": "aachen", "by": "aachen"}


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE],
)
def test_a_message_that_was_lost_is_sent_again(code: int) -> None:
    """Only that one, until the time is up."""
    asked: list[str] = []

    def once(name: str, message: Message) -> Message | None:
        asked.append(name)
        return (HONEST if asked.count("bonn") > 1 or name != "bonn" else failing(code))(name, message)

    found = exchanged(once, timeout=30)
    assert all(isinstance(found[site], Reply) for site in SITES)
    assert asked == ["aachen", "bonn", "bonn"]
    never = exchanged(only("bonn", failing(code)))
    assert never["bonn"] == "no answer within 1 s"


def test_sites_are_found_by_the_names_of_their_keys() -> None:
    """Nodes that have none, or another, are not asked; one that is not there is named."""
    grid, told = InProcess(("", "bonn", "stranger", "aachen"), HONEST), list[Any]()
    assert find_sites(grid, ["aachen", "bonn"], 0, told.append) == {"aachen": 5, "bonn": 3}
    assert told == []
    with pytest.raises(FedpriorError, match="no node of cologne is online after 0 s"):
        find_sites(grid, ["aachen", "cologne"], 0, told.append)
    assert told == [{"kind": "waiting", "missing": ["cologne"]}]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (content(SECRET), "order"),
        (messages.pack({"kind": "finish", "site": "bonn"}, {}), "order"),
        (messages.pack({"kind": "check", "site": "aachen"}, {}), "name"),
    ],
)
def test_a_node_answers_with_a_code(sent: RecordDict, code: str, tmp_path: Path) -> None:
    assert refused(sent, tmp_path) == {"refused": code}


def test_a_node_that_cannot_even_write_its_log_answers_with_a_code(tmp_path: Path) -> None:
    """Where its folder should be is a file: the error names its path, which does not travel."""
    (tmp_path / "state").write_text("")
    assert refused(messages.pack({"kind": "check", "site": "bonn"}, {}), tmp_path) == {"refused": "internal"}


def refused(sent: RecordDict, folder: Path) -> dict[str, Any]:
    InProcess(SITES, HONEST)  # an identity for the server
    message = numbered(Message(sent, dst_node_id=2, message_type="train"), 1)
    own = {"site": "bonn", "table": str(folder / f"{SECRET}.csv"), "state": str(folder / "state")}
    reply = client_app.answer(message, SimpleNamespace(node_config=own))
    document, arrays = messages.unpack(reply.content)
    assert arrays == {}
    return document
