"""What `federation init` writes: the server's folder, the Flower app, and a folder for every site."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedprior import __version__
from fedprior.data.schema import Schema
from fedprior.data.site_table import Reading
from fedprior.data.target import Number
from fedprior.errors import FedpriorError
from fedprior.files import new_folder, write_bytes, write_text
from fedprior.flower.agreement import adds_noise, configured
from fedprior.flower.audit import AGREED, FITS, meaning
from fedprior.flower.certificates import make_authority, make_site_key
from fedprior.flower.place import SCHEMA, Place, default_listen
from fedprior.flower.proxy import nginx
from fedprior.flower.settings import SiteSettings

APP = {
    "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
    "project": {
        "name": "fedprior-federation",
        "version": "1.0.0",
        "description": "Runs an experiment of fedprior; the code is the installed library's.",
        "license": "Apache-2.0",
        "dependencies": [],
    },
    "tool": {
        "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
        "flwr": {
            "app": {
                "publisher": "fedprior",
                "config": {"folder": ""},  # given when an experiment is submitted
                "components": {
                    "serverapp": "fedprior.flower.server_app:app",
                    "clientapp": "fedprior.flower.client_app:app",
                },
            }
        },
    },
}


def init(
    folder: Path,
    sites: Sequence[str],
    schema: Schema,
    sections: Mapping[str, Any],
    *,
    experiment: str = "first",
    host: str = "127.0.0.1",
    port: int = 8000,
    listen: str | None = None,
    timeout: float = 3600,
    patience: float = 600,
) -> Place:
    """A folder with all that a federation needs; it appears whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedpriorError(f"'{folder}' is already in use: choose another folder.")
    final = folder.absolute()
    plan = (experiment, host, port, listen or default_listen(host, port), timeout, patience, tuple(sites), sections)
    place = Place(final, *plan)
    place.check()
    with new_folder(final) as new:
        draft = Place(new, *plan)
        schema.write(new / SCHEMA)
        _server(draft, final / "server")
        for site in sites:
            _site(draft, site)
        draft.write()
    return place


def _server(place: Place, final: Path) -> None:
    place.server.mkdir(parents=True)
    make_authority(place.server, {place.host, place.local[0]})
    write_text(place.folder / "app" / "pyproject.toml", tomli_w.dumps(APP))
    if place.proxied:
        (place.server / "nginx").mkdir()
        text = nginx(place.port, place.listen, certificates=str(final), temporary=str(final / "nginx"))
        write_text(place.server / "nginx.conf", text)


def _site(place: Place, site: str) -> None:
    folder = place.site(site)
    folder.mkdir(parents=True)
    shutil.copy(place.server / "ca.crt", folder / "ca.crt")
    write_bytes(place.server / "keys" / f"{site}.pub", make_site_key(folder))
    SiteSettings(site, place.host, place.port, len(place.sites), place.sections).write(folder)
    shutil.copy(place.folder / SCHEMA, folder / SCHEMA)
    write_text(folder / "README.md", instructions(place, site))


def _agreed(place: Place) -> str:
    """What a site tells before the first round."""
    told = [FITS, AGREED["sizes"]]
    if isinstance(place.plan.schema.target, Number):
        told += [AGREED["labels"], AGREED["square"]]
    if Reading.of(place.sections.get("data") or {}).scaling == "shared":
        told.append("for shared scaling, number of known and missing values, mean and spread of each input")
    return "; ".join(told)


def instructions(place: Place, site: str) -> str:
    """One page for the people at a site."""
    config = configured(place.sections)
    method = config.build_method()
    extras = "flower,privacy" if adds_noise(place.sections) else "flower"
    fields = getattr(method.types[3], "_fields", ())
    sent = "; ".join(meaning(field, method.about.name.split("+")[0]) for field in fields) or "nothing"
    plan = (
        f"The plan is {method.about.title} with {config.rounds} rounds. Before the first round your node sends "
        f"{_agreed(place)}. In each round it sends: {sent}."
    )
    return f"""# {site}: how to take part

You have been given this folder. It holds `site.key`, which identifies your site: keep it private, and ask for a new one
if anybody else has seen it.

1. Install: `pip install "fedprior[{extras}]=={__version__}"` with Python 3.11 (Linux).
2. Prepare your table as a CSV file whose columns are those of `{SCHEMA}` (other columns are ignored), and check it:

       fedprior federation doctor . --table patients.csv

3. Start your node, and leave it running; it reconnects by itself:

       fedprior federation site . --table patients.csv --state state

## What leaves your site

{textwrap.fill(plan, 118)}
It also sends numbers about training from a fixed list, and metrics on your validation and test rows. If the plan
changes, what your node sends changes too: `fedprior federation audit state` lists what has left.

With `--min-class-rows 5`, your node declines any method that sends a mean over fewer than five training rows of a
class, and the server learns only that it declines; without the option, `doctor` and the node warn you.

Your node connects to `{place.address}` (outgoing TLS only; nothing connects to you). Your rows never leave your
machine; everything that does is recorded in `state/*/{site}/sent.jsonl`.
When the experiment is over, your own model, its report and its model card are in `state/{place.experiment}/{site}`.

Keep the `state` folder: without it your site cannot go on with an experiment. The clock of your machine must be
right to within five seconds.
"""
