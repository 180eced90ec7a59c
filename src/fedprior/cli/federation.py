"""`fedprior federation`: a real federation, at the server and at its sites."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from fedprior.cli.arguments import Json, Options
from fedprior.cli.screen import loading, say, screen
from fedprior.cli.signals import SAME, interruptible
from fedprior.errors import FedpriorError

app = typer.Typer(
    help="A real federation over Flower: the server, its sites, and a trial of both.", no_args_is_help=True
)
Server = Annotated[Path, typer.Argument(help="the server's folder, made by `federation init`")]
Table = Annotated[Path, typer.Option("--table", help="the site's table, a CSV file")]
Port = Annotated[int, typer.Option("--port", help="a free port on the site's machine, for Flower's own use")]
MinClassRows = Annotated[
    int,
    typer.Option(
        "--min-class-rows",
        min=0,
        help="decline a method that sends the mean of a class with fewer training rows; 0: warn below 5",
    ),
]
State = Annotated[Path, typer.Option("--state", help="where the site keeps its states and its model")]


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
        say(console, f"send {place.site(name)} to {name}, by a private way: it holds the site's key")
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
        from fedprior.flower import link
        from fedprior.flower.place import Place

        place = Place.read(folder)
    console = screen(100)
    with interruptible(lambda: f"the experiment goes on; see `fedprior federation status {folder}`, or `stop` it"):
        link.start_link(place)
        link.register(place)
        say(console, f"the server listens at {place.listen}; waiting for {', '.join(place.sites)}")
        link.submit(place)
        ended = link.follow(place, lambda found: say(console, _told(found)))
    if ended["state"] != "finished":
        raise FedpriorError(f"the experiment failed: {ended.get('why', 'see the log')}")
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


@app.command()
def site(
    folder: Annotated[Path, typer.Argument(help="the site's folder, as it was received")],
    table: Table,
    state: State = Path("state"),
    port: Port = 9094,
    min_class_rows: MinClassRows = 0,
) -> None:
    """Start this site's node, and keep it running until Ctrl-C.

    Example: fedprior federation site basel --table basel.csv
    """
    from fedprior.flower.keep import keep_running
    from fedprior.flower.processes import environment, mark, marked, supernode
    from fedprior.flower.settings import SiteSettings

    if not table.is_file():
        raise FedpriorError(f"there is no file '{table}': give --table the site's CSV file.")
    own = SiteSettings.read(folder)
    if marked([mark(folder)]):
        raise FedpriorError(f"the node of '{own.site}' already runs on this machine.")
    command = supernode(folder, own.address, own.site, table, state, port, min_class_rows)
    with interruptible(lambda: "the node has ended; the same command starts it again"):
        keep_running(
            command, environment(state.absolute() / ".flwr"), lambda line: say(screen(100), line), mark=mark(folder)
        )


@app.command()
def doctor(
    folder: Annotated[Path, typer.Argument(help="the server's or a site's folder")],
    table: Annotated[Path | None, typer.Option("--table", help="at a site: its table")] = None,
    state: State = Path("state"),
    port: Port = 9094,
    min_class_rows: MinClassRows = 0,
    as_json: Json = False,
) -> None:
    """Check versions, certificates, clocks, ports, disk and the table, at either end.

    Example: fedprior federation doctor basel --table basel.csv
    """
    with loading("PyTorch", quiet=as_json):
        from fedprior.flower.doctor import examine

        found = examine(folder, table, state, port, min_class_rows)
    if as_json:
        print(json.dumps([entry._asdict() for entry in found], indent=2))
    else:
        for entry in found:
            mark = "FAIL" if not entry.fine else "NOTE" if entry.mind else "ok  "
            say(screen(100), f"{mark}  {entry.what}: {entry.told}")
    if not all(entry.fine for entry in found):
        raise FedpriorError(
            f"{sum(not entry.fine for entry in found)} of {len(found)} checks failed: correct them first."
        )


@app.command()
def audit(
    state: Annotated[Path, typer.Argument(help="the site's state folder")],
    each: Annotated[bool, typer.Option("--messages", help="list every message with its round")] = False,
    as_json: Json = False,
) -> None:
    """Show what has left this site: fields, meaning and bytes of every message.

    Example: fedprior federation audit state
    """
    from fedprior.flower.audit import audited, lines

    found = audited(state)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        for line in lines(found, each=each):
            say(screen(120), line)


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
    return f"{found['state']}{where}{why}"
