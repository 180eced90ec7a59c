"""How much disk an experiment takes, foretold from its plan and compared with what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from fedprior.errors import FedpriorError
from fedprior.flower.node import Node
from fedprior.flower.orders import Reply
from fedprior.flower.serve import serve
from fedprior.flower.space import BASE, MARGIN, server_bytes, site_bytes
from flower.test_agreement import nodes, plan, tables

LARGE = {"name": "mlp", "hidden": [300, 300]}
HEADERS = 16 << 10
"""Bytes of names and shapes in small files."""


def size(folder: Path) -> int:
    """Of tensors: what grows with the model; the rest is `BASE`."""
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize(
    "sections",
    [
        {"method": {"name": "fedavg"}, "rounds": 1},
        {"method": {"name": "pfedvem"}, "rounds": 3, "eval_every": 1},
        {"method": {"name": "ditto"}, "rounds": 4, "eval_every": 2, "data": {"scaling": "shared"}},
        {"method": {"name": "fedamp"}, "rounds": 3, "eval_every": 2},
    ],
    ids=lambda of: of["method"]["name"],
)
def test_what_is_foretold_is_what_is_written(sections: dict[str, Any], tmp_path: Path) -> None:
    """Without margin: not less than the largest that a site's folder ever was, and not more than three times that."""
    paths = tables(tmp_path)
    given = plan(paths, model=LARGE, **sections)
    link, largest = nodes(paths, tmp_path / "state"), 0
    honest = link.answer

    def watched(site: str, document: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Reply:
        nonlocal largest
        reply = honest(site, document, arrays)
        largest = max(largest, size(tmp_path / "state" / "trial" / "bonn"))
        return reply

    link.answer = watched
    serve(link, given, tmp_path / "run")
    counted = (site_bytes(given.config, given.schema, 3) - BASE) / MARGIN
    assert largest <= counted + HEADERS <= 3 * largest + HEADERS
    at_server = (server_bytes(given.config, given.schema, 3) - BASE) / MARGIN
    assert size(tmp_path / "run") <= at_server + HEADERS


def test_a_larger_model_and_more_evaluations_need_more(tmp_path: Path) -> None:
    """Ten million weights in single precision are 40 MB per evaluation, which a site keeps until the end."""
    paths = tables(tmp_path)
    given = plan(paths)
    large = {**given.config, "model": {"name": "mlp", "hidden": [3160, 3160]}, "rounds": 100}
    every, tenth = ({**large, "eval_every": k} for k in (1, 10))
    assert site_bytes(every, given.schema, 3) > 100 * 40_000_000
    assert 10 * 40_000_000 < site_bytes(tenth, given.schema, 3) < 3 * 10 * 40_000_000
    assert site_bytes(given.config, given.schema, 3) < 2 * BASE


def test_numbers_are_foretold_too(tmp_path: Path) -> None:
    paths = tables(tmp_path, number=True)
    given = plan(paths)
    assert site_bytes(given.config, given.schema, 3) > BASE
    with pytest.raises(FedpriorError, match="unknown method"):
        site_bytes({**given.config, "method": {"name": "nonsense"}}, given.schema, 3)
    assert Node("bonn", paths["bonn"], tmp_path).min_class_rows == 0
