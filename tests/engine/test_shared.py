"""The global model's predictions, for many clients in one pass."""

from __future__ import annotations

import numpy as np

from fedprior.engine import Engine
from fedprior.engine.shared import gathered, predict_shared
from fedprior.models.task import EVALUATION_BATCH
from support import bound, federation


def test_clients_are_gathered_up_to_a_batch() -> None:
    """Batches of 500: 300 + 200, then 700 alone, then 0 + 500 + 0, then 1; in the order given."""
    assert EVALUATION_BATCH == 500
    assert gathered([1, 200, 0, 700, 500, 0, 300], [6, 1, 3, 2, 4, 5, 0]) == [[6, 1], [3], [2, 4, 5], [0]]
    assert gathered([0, 0], [0, 1]) == [[0, 1]]


def test_gathered_predictions_are_those_of_each_client() -> None:
    """As many rows as the client has, and its own numbers, in whatever order clients are gathered."""
    data = federation()
    with Engine(bound("fedavg", data), data, 0) as engine:
        for order in (range(len(data)), reversed(range(len(data)))):
            found = predict_shared(engine.method, engine.server, data.test, order)
            assert found is not None
            assert [len(values) for values in found] == list(data.test.size)
            for c, values in enumerate(found):
                alone = engine.method.predict_global(engine.server, data.test.client(c)[0])
                assert alone is not None
                np.testing.assert_allclose(values, alone.numpy(), rtol=1e-5, atol=1e-6)
    with Engine(bound("local", data), data, 0) as engine:
        assert predict_shared(engine.method, engine.server, data.test, range(len(data))) is None
