"""`fedprior federation`: a real federation, at the server and at its sites."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from fedprior.cli.arguments import Json, Options
from fedprior.cli.federation_site import audit, doctor, site
from fedprior.cli.screen import loading, say, screen
from fedprior.cli.signals import SAME, interruptible
from fedprior.errors import FedpriorError

app = typer.Typer(
    help="A real federation over Flower: the server, its sites, and a trial of both.", no_args_is_help=True
)
Server = Annotated[Path, typer.Argument(help="the server's folder, made by `federation init`")]


@app.command()
def schema(
    table: Annotated[Path, typer.Argument(help="one site's table, a CSV file")],
    target: Annotated[str, typer.Option("--target", help="the column to predict")],
    out: Annotated[Path, typer.Option("--out", help="the schema's file, .toml or .json")] = Path("schema.toml"),
    site: Annotated[
        str | None, typer.Option("--site", help="the column that names the site, which is not an input")
    ] = None,
) -> None:
    """Describe a table without its rows: columns, kinds and levels, for all sites to check theirs against.

    Example: fedprior federation schema basel.csv --target outcome --out schema.toml
    """
    from fedprior.data.reading import read_file
    from fedprior.data.schema import Schema

    found = Schema.inferred(read_file(table), target=target, site=site, where=f"'{table}'")
    found.write(out)
    console = screen(100)
    say(console, f"{len(found.used)} columns make {len(found.inputs)} inputs; the target is '{target}'")
    for name, why in found.left_out.items():
        say(console, f"not used: '{name}' ({why})")
    say(console, f"Read '{out}' before you send it: the levels of categories are values of your table.")


@app.command("init")
def init_folder(
    folder: Annotated[Path, typer.Argument(help="a new folder")],
    sites: Annotated[str, typer.Option("--sites", help="comma-separated names")],
    schema: Annotated[Path, typer.Option("--schema", help="made by `federation schema`")],
    options: Options = None,
    method: Annotated[str, typer.Option("--method", help="method, see `fedprior methods`")] = "fedmap",
    rounds: Annotated[int, typer.Option("--rounds", help="communication rounds")] = 20,
    experiment: Annotated[str, typer.Option("--experiment", help="name of the experiment")] = "first",
    host: Annotated[
        str, typer.Option("--host", help="the name or IP address by which sites reach the server")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="port of the server")] = 8000,
    listen: Annotated[
        str | None, typer.Option("--listen", help="where the server listens on this machine, such as 127.0.0.1:18000")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds that a site has to answer")] = 3600,
) -> None:
    """Set up a federation: plan, certificates, and a folder with a key and instructions for every site.

    Example: fedprior federation init study --sites basel,geneva --schema schema.toml --host server.example
    """
    with loading("PyTorch", quiet=False):
        from fedprior.data.schema import Schema
        from fedprior.experiment.config import parse
        from fedprior.flower.layout import init

        given = {"method": {"name": method}, "rounds": rounds, "data": {"name": "sites"}}
        sections = {k: v for k, v in _given(parse(given, overrides=options or [])).items() if k != "methods"}
        names = [name.strip() for name in sites.split(",") if name.strip()]
        place = init(
            folder,
            names,
            Schema.read(schema),
            sections,
            experiment=experiment,
            host=host,
            port=port,
            listen=listen,
            timeout=timeout,
        )
    console = screen(100)
    say(console, f"{place.folder}: the plan is in federation.toml, the schema in schema.toml")
    for name in names:
        say(console, f"send {place.site(name)} to {name}, by a private channel: it holds the site's key")
    if place.proxied:
        say(console, f"the server listens at {place.listen}: start a proxy before it with server/nginx.conf, as root:")
        say(console, f"  nginx -c {place.server / 'nginx.conf'}")
    say(console, f"then start the server: fedprior federation run {folder}")


def _given(config: Any) -> dict[str, Any]:
    """What was given, and no default."""
    found: dict[str, Any] = json.loads(config.model_dump_json(exclude_unset=True, exclude_defaults=True))
    return {**found, "method": dict(config.method), "rounds": config.rounds, "data": dict(config.data)}


@app.command()
def run(folder: Server) -> None:
    """Start the server and the experiment, or continue it, and wait until it is over. The server runs until `stop`.

    Example: fedprior federation run study
    """
    with loading("PyTorch", quiet=False):
        from fedprior.experiment.folder import COMPLETE
        from fedprior.experiment.wording import privacy
        from fedprior.flower import link
        from fedprior.flower.place import Place

        place = Place.read(folder)
    console = screen(100)
    with interruptible(lambda: f"the experiment goes on; see `fedprior federation status {folder}`, or `stop` it"):
        link.start_link(place)
        link.register(place)
        say(console, f"the server listens at {place.listen}; waiting for {', '.join(place.sites)}")
        link.submit(place)
        ended = link.follow(place, lambda found: None if found["state"] == "failed" else say(console, _told(found)))
    if ended["state"] != "finished":
        raise FedpriorError(f"the experiment failed: {ended.get('why', 'see the log')}")
    for sentence in privacy(json.loads((place.run / COMPLETE).read_text(encoding="utf-8"))):
        say(console, sentence)
    say(console, f"results: {place.run}; the server still runs: `fedprior federation stop {folder}` ends it")


@app.command()
def resume(folder: Server) -> None:
    """Continue an interrupted experiment; the result is the same.

    Example: fedprior federation resume study
    """
    run(folder)


@app.command()
def status(
    folder: Server,
    as_json: Json = False,
    check: Annotated[bool, typer.Option("--check", help="fail unless the server runs and nothing has failed")] = False,
) -> None:
    """Show how the experiment is going.

    Example: fedprior federation status study
    """
    from fedprior.flower.link import runs
    from fedprior.flower.place import Place
    from fedprior.flower.status import read_status

    place = Place.read(folder)
    found = {**read_status(place.status), "server": runs(place)}
    if as_json:
        print(json.dumps(found))
    else:
        say(screen(100), f"{_told(found)}; the server {'runs' if found['server'] else 'does not run'}")
    if check and (found["state"] == "failed" or not found["server"]):
        raise typer.Exit(1)


@app.command()
def stop(folder: Server) -> None:
    """Stop the server and the experiment, which can be resumed.

    Example: fedprior federation stop study
    """
    from fedprior.flower.link import stop_link
    from fedprior.flower.place import Place

    say(screen(100), "stopped" if stop_link(Place.read(folder)) else "nothing was running")


for command in (site, doctor, audit):
    app.command()(command)


@app.command("try")
def try_it(
    options: Options = None,
    method: Annotated[str, typer.Option("--method", help="method, see `fedprior methods`")] = "fedmap",
    rounds: Annotated[int, typer.Option("--rounds", help="communication rounds")] = 3,
    out: Annotated[Path | None, typer.Option("--out", help="keep everything in this new folder")] = None,
    as_json: Json = False,
) -> None:
    """Run a whole federation on this machine, with real processes, and compare it with the simulator.

    Example: fedprior federation try --method fedmap --rounds 3
    """
    with loading("PyTorch", quiet=as_json):
        from fedprior.experiment.config import parse
        from fedprior.flower.trial import attempt

        given = {"method": {"name": method}, "rounds": rounds, "data": {"name": "sites"}}
        sections = _given(parse(given, overrides=options or []))
    folder = out or Path(tempfile.mkdtemp(prefix="fedprior-federation-"))
    console = screen(100)
    with interruptible(lambda: SAME):
        try:
            found = attempt(folder, sections, lambda line: None if as_json else say(console, line))
        finally:
            if out is None:
                shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps(found._asdict(), indent=2))
    else:
        for name, values in found.clients.items():
            shown = ", ".join(
                f"{metric} {value:.3f}" for metric, value in list(values.items())[:3] if value is not None
            )
            say(console, f"{name}: {shown}")
        say(
            console,
            f"{sum(found.seconds.values()):.0f} s ({', '.join(f'{k} {v:.0f}' for k, v in found.seconds.items())})",
        )
        say(console, "identical to the simulator, bit for bit" if found.identical else "NOT identical to the simulator")
    if not found.identical:
        raise FedpriorError(f"the federation and the simulator differ in {', '.join(found.differences[:5])}.")


def _told(found: dict[str, Any]) -> str:
    where = f", round {found['round']}" if found.get("round") else ""
    why = f": {found['why']}" if found.get("why") else ""
    missing = f": {', '.join(found['missing'])}" if found.get("missing") else ""
    without = f", but not at {', '.join(found['unfinished'])}" if found.get("unfinished") else ""
    return f"{found['state']}{where}{why}{missing}{without}"
