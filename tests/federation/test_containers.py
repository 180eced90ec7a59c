"""The services of deploy/ without a container engine: their commands, users, paths, mounts and health checks.

Every service runs with this machine's file system as its own, read-only, as user 10001 without capabilities. Networks
of containers are not imitated: all services share one, in which nothing else listens.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")

from federation.real import NGINX, assert_identical
from fedprior.flower import trial
from fedprior.flower.place import Place
from fedprior.flower.processes import Process, end, end_marked, environment, mark, start

yaml = pytest.importorskip("yaml")
DEPLOY = Path(__file__).parents[2] / "deploy"
CONTAINED = Path(__file__).with_name("contained.sh")
IMAGE = (DEPLOY / "Dockerfile").read_text()
ALONE = ["unshare", "--mount", "--net", "true"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        Path(sys.prefix).is_relative_to("/tmp"), reason="services have a /tmp of their own: use a checkout elsewhere"
    ),
    pytest.mark.skipif(
        os.geteuid() != 0 or NGINX is None or subprocess.run(ALONE, check=False, capture_output=True).returncode != 0,
        reason="needs root, namespaces and nginx",
    ),
]


def service(file: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / file).read_text())["services"][name]
    assert (found["user"], found["read_only"], found["cap_drop"]) == ("10001:10001", True, ["ALL"])
    return found


def entry() -> list[str]:
    (found,) = re.findall(r'^ENTRYPOINT \["(\w+)", "(\w+)"\]$', IMAGE, re.MULTILINE)
    return list(found)


def settings() -> dict[str, str]:
    """The image's environment."""
    (block,) = re.findall(r"^ENV (.*?)\n\n", IMAGE, re.MULTILINE | re.DOTALL)
    return dict(word.split("=", 1) for word in block.replace("\\\n", " ").split())


def contained(found: dict[str, Any], here: Path, root: Path, command: list[str]) -> tuple[list[str], dict[str, str]]:
    """A service's command on this machine; relative volumes are in `here`, named ones are folders there."""
    mounts = []
    for volume in found.get("volumes", []):
        source, target, *mode = volume.split(":")
        mounts.append(f"{(here / source).absolute()} {target} {mode[0] if mode else 'rw'}")
    env = {**settings(), "PATH": f"/usr/local/bin:/usr/sbin:{os.environ['PATH']}", "HOME": "/state"}
    env |= {"MOUNTS": "\n".join(mounts), "TMPFS": " ".join(part.split(":")[0] for part in found.get("tmpfs", []))}
    env |= {"PYTHON": sys.executable, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "WORKDIR": "/"}
    return ["unshare", "--mount", str(CONTAINED), str(root), *command], env


def inside(net: Process, command: list[str]) -> list[str]:
    """In the network that the services share."""
    return ["nsenter", f"--net=/proc/{net.pid}/ns/net", *command]


def test_the_services_of_deploy_run_as_they_are_written(tmp_path: Path) -> None:
    tables, here = trial.write_tables(tmp_path / "tables"), tmp_path / "deploy"
    sites, tables = trial.SITES[:2], {site: tables[site] for site in trial.SITES[:2]}
    here.mkdir()
    tmp_path.chmod(0o755)
    shutil.copy(DEPLOY / "nginx.conf", here)
    schema = tmp_path / "schema.toml"
    trial.schema_of(tables, "target").write(schema)
    init = [
        sys.executable,
        "-m",
        "fedprior",
        "federation",
        "init",
        str(here / "federation"),
        "--sites",
        ",".join(sites),
    ]
    init += ["--schema", str(schema), "--rounds", "2", "--experiment", "trial", "--host", "localhost", "--port", "8443"]
    subprocess.run([*init, "--listen", "0.0.0.0:8000"], check=True, capture_output=True)
    for site in sites:
        own = tmp_path / site
        shutil.copytree(here / "federation" / "sites" / site, own / "site")
        (own / "data").mkdir()
        shutil.copy(tables[site], own / "data" / "table.csv")
        (own / "state").mkdir()
    for folder in (here, *(tmp_path / site for site in sites)):
        subprocess.run(["chown", "-R", "10001:10001", str(folder)], check=True)

    started: list[Process] = []
    network = start(["unshare", "--net", "sleep", "3600"], None, os.environ)
    started.append(network)
    time.sleep(0.5)
    subprocess.run(inside(network, ["ip", "link", "set", "lo", "up"]), check=True)

    def up(found: dict[str, Any], where: Path, name: str, *more: str, command: list[str] | None = None) -> Process:
        words, env = contained(found, where, tmp_path / f"root-{name}", command or [*entry(), *found["command"], *more])
        process = start(inside(network, words), tmp_path / f"{name}.log", env)
        started.append(process)
        return process

    server, proxy, node = (
        service(*of)
        for of in (("server.compose.yaml", "server"), ("server.compose.yaml", "proxy"), ("site.compose.yaml", "site"))
    )
    try:
        run = up(server, here, "server")
        up(proxy, here, "proxy", command=proxy["command"])
        for k, name in enumerate(sites):
            up(node, tmp_path / name, name, "--port", str(9094 + k))
        until = time.monotonic() + 600
        healthy = 1
        while run.poll() is None and time.monotonic() < until:
            if healthy and "round 1" in (tmp_path / "server.log").read_text():
                check = up(server, here, "health", command=server["healthcheck"]["test"][1:])
                healthy = check.wait(timeout=120)
            time.sleep(0.5)
        logs = {path.name: path.read_text()[-1500:] for path in tmp_path.glob("*.log")}
        assert run.poll() == 0, logs
        assert healthy == 0, logs
    finally:
        end(*reversed(started))
        end_marked([mark(here / "federation")])  # with its container the SuperLink would have ended
    (tmp_path / "sites").mkdir()
    for site in sites:
        (tmp_path / "sites" / site).symlink_to(tmp_path / site / "state")
    assert_identical(Place.read(here / "federation"), tables, tmp_path)


def test_a_contained_program_is_really_contained(tmp_path: Path) -> None:
    """It cannot write to its root, is not root, and has no capabilities."""
    found = service("demo.compose.yaml", "demo")
    tmp_path.chmod(0o755)
    words, env = contained(
        found, tmp_path, tmp_path / "root", ["sh", "-c", "id -u; grep CapEff /proc/self/status; : > /x"]
    )
    done = subprocess.run(words, env={**environment(tmp_path), **env}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["10001", "CapEff:", "0000000000000000"]
    assert "Read-only file system" in done.stderr or "Permission denied" in done.stderr
    assert done.returncode != 0
