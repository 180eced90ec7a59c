"""What a bad site answers, round by round: the same lies in this process and in a real node's.

A node becomes the liar by a `sitecustomize` of its own (see `liar/`): the library itself has no switch for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import time
from collections.abc import Mapping
from typing import Any

LATE = "late"
FAULTS = {1: "nan", 2: "shape", 3: "dtype", 4: "oversized", 5: "truncated", 6: "replayed", 7: LATE}
"""By the rounds done before it."""
WHY = {
    1: "is not finite",
    2: "has the shape",
    3: "is of the type float64 and should be float32",
    4: "has the shape",
    5: "it lacks",
    6: "it is the answer to another round",
    7: "no answer within",
}


def lie(order: Mapping[str, Any], reply: Any) -> Any:
    """A reply as a bad site sends it."""
    import numpy as np

    fault = FAULTS.get(order["round"]) if order.get("kind") == "round" and order["train"] else None
    changes: dict[str, Any] = {
        "nan": lambda v: v * np.nan,
        "shape": lambda v: v[..., :1],
        "dtype": lambda v: v.astype(np.float64),
        "oversized": lambda v: np.concatenate([np.atleast_1d(v)] * 50),
    }
    if fault in changes:
        return reply._replace(arrays={name: changes[fault](values) for name, values in reply.arrays.items()})
    if fault == "truncated":
        return reply._replace(arrays=dict(list(reply.arrays.items())[1:]))
    if fault == "replayed":
        return reply._replace(document={**reply.document, "round": order["round"] - 1})
    return reply


class Hook(importlib.abc.MetaPathFinder):
    """Spoils the module that answers orders, when it is imported."""

    def __init__(self, delay: float) -> None:
        self.delay = delay

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "fedprior.flower.node":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            honest = module.Node.answer

            def answer(node: Any, document: Any, arrays: Any) -> Any:
                reply = honest(node, document, arrays)
                if document.get("train") and FAULTS.get(document["round"]) == LATE:
                    time.sleep(self.delay)
                return lie(document, reply)

            module.Node.answer = answer

        loader.exec_module = exec_module
        return spec
