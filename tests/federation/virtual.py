"""A federation's folder on Flower's simulation engine: `python virtual.py FOLDER`. Virtual nodes have no names."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedprior.flower import client_app
from fedprior.flower.place import Place
from fedprior.flower.serve import serve
from fedprior.flower.server_app import GridLink

FOLDER = Path(sys.argv[1]).absolute()
NAMES = FOLDER / "names.json"
nodes, server = ClientApp(), ServerApp()


@nodes.train()
def answer(message: Message, context: Context) -> Message:
    """As the site that the server takes this node for."""
    site = json.loads(NAMES.read_text())[str(context.node_id)]
    own = {"site": site, "table": str(FOLDER / "tables" / f"{site}.csv"), "state": str(FOLDER / "sites" / site)}
    context.node_config = {**context.node_config, **own}
    return client_app.answer(message, context)


@server.main()
def main(grid: Grid, context: Context) -> None:
    place = Place.read(FOLDER / "federation")
    while len(list(grid.get_node_ids())) < len(place.sites):
        time.sleep(0.1)
    sites = dict(zip(place.sites, sorted(grid.get_node_ids()), strict=True))
    NAMES.write_text(json.dumps({str(node): site for site, node in sites.items()}))
    serve(GridLink(grid, sites, place.timeout), place.plan, place.run)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, nodes, num_supernodes=3, backend_config=resources)
