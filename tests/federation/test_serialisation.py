"""Every method and wrapper on an in-process Grid, with Flower's own messages, equals the simulator bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from flwr.app import RecordDict

from federation.in_process import InProcess, answering
from fedprior.flower import messages
from fedprior.flower.codec import RejectedError
from fedprior.flower.orders import Order, Reply
from fedprior.flower.server_app import GridLink
from fedprior.protocol import METHODS
from flower.sites import Sites, deployed, same_values, simulated
from flower.test_equality import WRAPPED
from support import bound, federation


@pytest.mark.parametrize("name", [*sorted(METHODS), *WRAPPED])
def test_every_method_equals_the_simulator(name: str, tmp_path: Path) -> None:
    data = federation((12, 5, 9))
    method = bound(name, data)
    sites = Sites(method, data, tmp_path)
    grid = InProcess(data.clients, answering(sites))
    link = GridLink(grid, grid.sites, timeout=60)
    found, expected = deployed(method, data, link), simulated(method, data)
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
    grid = InProcess(["bonn"], answering(lambda site, document, arrays: (document, arrays)))
    link = GridLink(grid, grid.sites, timeout=60)
    reply = link.exchange([Order("bonn", {"a": 1}, given)])["bonn"]
    assert isinstance(reply, Reply)
    found = reply.arrays
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
