"""A site's node, kept running: Flower's SuperNode ends when it is refused, as it is for a while after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from fedprior.errors import FedpriorError
from fedprior.flower.processes import end, start

PAUSE = 10.0
"""Seconds before a node is started again."""
SETTLED = 120.0
"""Seconds after which a node has been fine; Flower notices a dead one after about 50."""
TRIES = 12


def keep_running(
    command: Sequence[str],
    env: Mapping[str, str],
    tell: Callable[[str], None],
    *,
    mark: str | None = None,
    pause: float = PAUSE,
) -> None:
    """Start a node again whenever it ends, until it does not last `TRIES` times in a row."""
    tries = 0
    while True:
        began = time.monotonic()
        node = start(command, None, env, mark=mark)
        try:
            code = node.wait()
        finally:
            end(node)
        tries = 1 if time.monotonic() - began > SETTLED else tries + 1
        if tries >= TRIES:
            raise FedpriorError(
                f"the node ended {tries} times in a row, last with code {code}: read what it said above, and run "
                "`fedprior federation doctor` here and at the server."
            )
        tell(f"the node ended with code {code}; it is started again in {pause:.0f} s")
        time.sleep(pause)
