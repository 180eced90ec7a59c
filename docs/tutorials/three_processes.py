# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A federation on three processes
#
# In a simulation, one process holds all rows. Here each site is a process of its own that reads its own file and keeps
# its own state; only messages pass between it and the server. It is what happens at real sites, where
# [Flower](../deploy.md) carries the messages with encryption and keys. Here a pipe carries them, so that you can watch.
#
# Three hospitals, three files:

# %%
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import safetensors.numpy

from fedprior.data.schema import Schema
from fedprior.flower.node import Node
from fedprior.flower.orders import Order, Reply
from fedprior.flower.serve import Plan, serve
from fedprior.flower.trial import write_tables

tables = write_tables(Path("tables"))
pd.DataFrame(
    {site: pd.read_csv(path)["target"].value_counts() for site, path in tables.items()}
)


# %% [markdown]
# ## A site
#
# A loop in a process of its own: receive an order, let the node do it, reply. A message is a document of plain values
# and named arrays; as bytes it is JSON and safetensors.


# %%
def packed(document: dict, arrays: Mapping) -> bytes:
    return safetensors.numpy.save(
        {k: np.ascontiguousarray(v) for k, v in arrays.items()},
        {"told": json.dumps(document)},
    )


def unpacked(message: bytes) -> tuple[dict, dict]:
    header = json.loads(message[8 : 8 + int.from_bytes(message[:8], "little")])
    return json.loads(header["__metadata__"]["told"]), safetensors.numpy.load(message)


def site(name: str, table: Path, connection) -> None:
    node = Node(name, table, Path("states") / name)
    while True:
        reply = node.answer(*unpacked(connection.recv_bytes()))
        connection.send_bytes(packed(reply.document, reply.arrays))


processes = multiprocessing.get_context("fork")
ends, workers = {}, {}
for name, table in tables.items():
    ends[name], theirs = processes.Pipe()
    workers[name] = processes.Process(
        target=site, args=(name, table, theirs), daemon=True
    )
    workers[name].start()
{name: worker.is_alive() for name, worker in workers.items()}


# %% [markdown]
# ## The server
#
# It knows the sites' names, the columns that were agreed on, and the settings. It has no rows.


# %%
class Pipes:
    """Carries orders to the sites, and counts bytes."""

    def __init__(self) -> None:
        self.received = []

    def exchange(self, orders: Sequence[Order]) -> dict[str, Reply]:
        for order in orders:
            ends[order.site].send_bytes(packed(order.document, order.arrays))
        replies = {}
        for order in orders:
            message = ends[order.site].recv_bytes()
            document, arrays = unpacked(message)
            replies[order.site] = Reply(document, arrays)
            self.received.append(
                (order.site, order.document["kind"], len(message), sorted(arrays))
            )
        return replies


config = {
    "method": {"name": "fedmap"},
    "rounds": 5,
    "data": {"name": "sites", "scaling": "shared"},
}
schema = Schema.inferred(pd.read_csv(next(iter(tables.values()))), target="target")
link = Pipes()
result = serve(
    link, Plan("tutorial", tuple(tables), schema, config), Path("runs/server")
)
result.clients[["train", "accuracy", "nll"]].round(3)

# %% [markdown]
# ## What left the sites
#
# The first message holds sums for the shared scaling, then one message per round with weights and the evidence weight
# ω, and metrics. Every site also keeps its own list, `sent.jsonl`.

# %%
pd.DataFrame(link.received, columns=["site", "message", "bytes", "arrays"]).groupby(
    "message"
).first()

# %%
sent = next(Path("states").rglob("sent.jsonl"))
pd.DataFrame([json.loads(line) for line in sent.read_text().splitlines()])[
    ["kind", "round"]
].tail(3)

# %% [markdown]
# How many bytes that is. It does not depend on the number of patients, because messages hold weights and sums, not rows.

# %%
import altair as alt

sent_bytes = pd.DataFrame([(site, kind, size) for site, kind, size, _ in link.received])
sent_bytes.columns = ["site", "message", "bytes"]
alt.Chart(sent_bytes).mark_bar().encode(
    x=alt.X("sum(bytes):Q", title="bytes sent"),
    y=alt.Y("site:N", title=None),
    color=alt.Color("message:N", title=None),
).properties(width=480, height=110)

# %% [markdown]
# ## What stayed
#
# The personal models are at the sites, not at the server:

# %%
[
    str(path)
    for path in sorted(Path("states").rglob("*.safetensors"))
    if "model" in path.name
]

# %%
for worker in workers.values():
    worker.terminate()
