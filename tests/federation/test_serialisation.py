"""Every method and wrapper over Flower's own messages, serialised and read back, equals the simulator bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fedprior.flower import messages
from fedprior.flower.codec import RejectedError
from fedprior.flower.orders import Order, Reply
from fedprior.protocol import METHODS
from flower.sites import Sites, deployed, same_values, simulated
from flower.test_equality import WRAPPED
from support import bound, federation


def travelled(content: RecordDict) -> RecordDict:
    """As it arrives at the other end."""
    proto = recorddict_to_proto(content)
    return recorddict_from_proto(type(proto).FromString(proto.SerializeToString()))


class Wire:
    """Orders and replies as bytes of Flower's protocol."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites

    def exchange(self, orders: Sequence[Order]) -> Mapping[str, Reply | str]:
        replies: dict[str, Reply | str] = {}
        for order in orders:
            document, arrays = messages.unpack(travelled(messages.pack(order.document, order.arrays)))
            reply = self.sites(order.site, document, arrays)
            replies[order.site] = Reply(*messages.unpack(travelled(messages.pack(reply.document, reply.arrays))))
        return replies


@pytest.mark.parametrize("name", [*sorted(METHODS), *WRAPPED])
def test_every_method_equals_the_simulator(name: str, tmp_path: Path) -> None:
    data = federation((12, 5, 9))
    method = bound(name, data)
    sites = Sites(method, data, tmp_path)
    found, expected = deployed(method, data, Wire(sites)), simulated(method, data)
    assert same_values(found.values, expected.values)
    for client in data.clients:
        own = sites.personal(client, found.selected)
        assert all(np.array_equal(own[k][0], v, equal_nan=True) for k, v in expected.arrays(client).items())


def test_arrays_keep_their_types_and_shapes() -> None:
    given = {
        "scalar": np.array(2.5, dtype=np.float64),
        "bits": np.array([True, False]),
        "empty": np.empty((0, 3), dtype=np.float32),
        "whole": np.arange(6).reshape(2, 3),
    }
    _, found = messages.unpack(travelled(messages.pack({"a": 1}, given)))
    assert found.keys() == given.keys()
    for name, values in given.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape)
        assert np.array_equal(found[name], values)


@pytest.mark.parametrize("content", [RecordDict(), messages.pack({}, {})])
def test_a_message_that_is_not_ours_is_rejected(content: RecordDict) -> None:
    if "document" in content:
        content["document"]["json"] = "[1, 2]"
    with pytest.raises(RejectedError):
        messages.unpack(content)
