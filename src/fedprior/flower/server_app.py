"""The ServerApp: the library's own loop, over Flower's Grid."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import Context, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedprior.errors import FedpriorError
from fedprior.experiment.journal import Observer
from fedprior.flower.codec import RejectedError
from fedprior.flower.orders import Order, Reply

app = ServerApp()
POLL = 0.2
LOST = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""Errors of the way, not of the site: asking again may help, and a site gives the same answer twice."""


class GridLink:
    """Sites behind a SuperLink, by the names that their keys were registered with."""

    def __init__(self, grid: Grid, sites: Mapping[str, int], timeout: float) -> None:
        self.grid, self.sites, self.timeout = grid, sites, timeout

    def exchange(self, orders: Sequence[Order]) -> Mapping[str, Reply | str]:
        """Ask all at once, and again those whose message was lost, until the time is up."""
        end, replies, left = time.monotonic() + self.timeout, dict[str, Reply | str](), list(orders)
        while left and time.monotonic() < end:
            lost, answered = self._once(left, end)
            replies |= answered
            left = [order for order in left if order.site in lost]
            if left:
                self._wait([order.site for order in left], end)
        return replies | {order.site: f"no answer within {self.timeout:.0f} s" for order in left}

    def _once(self, orders: Sequence[Order], end: float) -> tuple[set[str], dict[str, Reply | str]]:
        from fedprior.flower import messages

        ttl = max(1.0, end - time.monotonic())
        sent = [
            Message(messages.pack(o.document, o.arrays), dst_node_id=self.sites[o.site], message_type="train", ttl=ttl)
            for o in orders
        ]
        waiting = dict(zip(self.grid.push_messages(sent), [order.site for order in orders], strict=True))
        replies, lost = dict[str, Reply | str](), set[str]()
        while waiting and time.monotonic() < end:
            for message in self.grid.pull_messages(list(waiting)):
                site = waiting.pop(message.metadata.reply_to_message_id, None)
                if site is None:
                    continue
                if message.has_error() and message.error.code in LOST:
                    lost.add(site)
                else:
                    replies[site] = self._read(site, message)
            time.sleep(POLL if waiting else 0)
        return lost, replies | dict.fromkeys(waiting.values(), f"no answer within {self.timeout:.0f} s")

    def _read(self, site: str, message: Message) -> Reply | str:
        from fedprior.flower import messages

        if message.has_error():
            return f"its node reports error {int(message.error.code)}"  # never the text: it may quote the site's data
        if message.metadata.src_node_id != self.sites[site]:
            return "the answer came from another node"
        try:
            return Reply(*messages.unpack(message.content))
        except RejectedError as error:
            return f"its answer was rejected: {error}"

    def _wait(self, sites: Sequence[str], end: float) -> None:
        """Until the nodes are back, or the time is up."""
        while time.monotonic() < end:
            online = {node.node_id for node in self.grid.get_nodes() if node.status == "online"}
            if all(self.sites[site] in online for site in sites):
                return
            time.sleep(1)


def find_sites(grid: Grid, wanted: Sequence[str], patience: float, observe: Observer) -> dict[str, int]:
    """The sites' nodes by name, once all are there; until then the observer is told who is not."""
    end, told = time.monotonic() + patience, list[str]()
    while True:
        found = {node.name: node.node_id for node in grid.get_nodes() if node.name and node.status == "online"}
        missing = sorted(set(wanted) - found.keys())
        if not missing:
            return {site: found[site] for site in wanted}
        if missing != told:
            observe({"kind": "waiting", "missing": missing})
            told = missing
        if time.monotonic() > end:
            raise FedpriorError(f"no node of {', '.join(missing)} is online after {patience:.0f} s: start it.")
        time.sleep(1)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of a folder, or go on with it."""
    from fedprior.flower.place import Place
    from fedprior.flower.serve import serve
    from fedprior.flower.status import reported

    place = Place.read(Path(str(context.run_config["folder"])))
    with reported(place.status) as observe:
        sites = find_sites(grid, place.plan.sites, place.patience, observe)
        serve(GridLink(grid, sites, place.timeout), place.plan, place.run, observe)
