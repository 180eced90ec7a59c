"""All sites in this process: a link without a network, which hands over what a network would carry."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fedprior.flower.orders import Order, Reply

Answering = Callable[[str, dict[str, Any], Mapping[str, NDArray[Any]]], Reply]
"""A site's name, an order and its arrays -> the reply."""


@dataclass
class Here:
    """Asks every site in turn; documents go through JSON, as they would on the way."""

    answer: Answering
    bytes_up: int = field(default=0)
    bytes_down: int = field(default=0)

    def exchange(self, orders: Sequence[Order]) -> Mapping[str, Reply | str]:
        """All replies."""
        replies: dict[str, Reply | str] = {}
        for order in orders:
            self.bytes_down += sum(array.nbytes for array in order.arrays.values())
            document, arrays = self.answer(order.site, json.loads(json.dumps(order.document)), order.arrays)
            self.bytes_up += sum(array.nbytes for array in arrays.values())
            replies[order.site] = Reply(json.loads(json.dumps(document)), arrays)
        return replies
