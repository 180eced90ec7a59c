"""Bad tables, sites and folders for the commands that come after a run, and for a comparison of a table."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile.cases import DRAWN, LONG, NO_TABLE, ROWS, SITES, command, refused

COMMANDS = {
    "predict": ["RUN", "TABLE", "--site", "SITE", "--out", "OUT"],
    "join": ["RUN", "TABLE", "--site-name", "new", "--updates", "1", "--draws", "1"],
    "export": ["RUN", "--site", "SITE", "--format", "safetensors", "--out", "OUT"],
    "card": ["RUN", "--site", "SITE"],
    "report": ["RUN", "--out", "OUT"],
    "resume": ["RUN"],
    "watch": ["RUN", "--no-open"],
    "compare": ["TABLE", "--site", "site", "--target", "class", "--rounds", "1", "--quiet", "--out", "OUT"],
}
NEED = {word: [name for name, given in COMMANDS.items() if word in given] for word in ("RUN", "TABLE", "SITE")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and a table like the one that it was trained on."""
    folder = tmp_path_factory.mktemp("after")
    (folder / "table.csv").write_text(ROWS, encoding="utf-8")
    data = [f"data.path={folder / 'table.csv'}", "data.target=class", "data.client=site", "model.name=softmax"]
    given = ["run", "--method", "fedavg", "--data", "csv", *data, "--no-local", "--rounds", "1", "--workers", "1"]
    assert command(*given, "--quiet", "--out", str(folder / "run")).code in (0, None)
    return folder


def asked(name: str, place: Path, **other: str) -> list[str]:
    """A command that is right, but for what is `other`."""
    right = {"RUN": str(place / "run"), "TABLE": str(place / "table.csv"), "SITE": "a", "OUT": str(place / "new" / "x")}
    return [name, *((right | other).get(word, word) for word in COMMANDS[name])]


WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(lambda t: t[0] not in "-")


@DRAWN
@given(st.sampled_from(NEED["TABLE"]), NO_TABLE, st.sampled_from([".csv", ".csv.gz", ".xlsx", ".parquet", ""]))
def test_tables(place: Path, name: str, content: bytes, ending: str) -> None:
    path = place / f"bad{ending}"
    path.write_bytes(gzip.compress(content) if ending == ".csv.gz" and len(content) % 2 else content)
    refused(asked(name, place, TABLE=str(path)), place)


@DRAWN
@given(st.sampled_from(NEED["SITE"]), (WORD | LONG.filter(bool)).filter(lambda site: site not in SITES))
def test_sites(place: Path, name: str, site: str) -> None:
    refused(asked(name, place, SITE=site), place)


@DRAWN
@given(
    st.sampled_from(NEED["RUN"]),
    st.sampled_from(["none", "file", "empty", "garbage", "damaged"]),
    st.binary(max_size=60),
)
def test_folders(place: Path, name: str, kind: str, content: bytes) -> None:
    folder = place / kind
    if kind == "file":
        folder.write_bytes(content)
    elif kind != "none":
        folder.mkdir(exist_ok=True)
    if kind == "garbage":
        (folder / "config.toml").write_bytes(b"=" + content)
    if kind == "damaged":
        for path in (place / "run").iterdir():
            if path.is_file() and path.name not in ("summary.json", "config.toml"):
                (folder / path.name).write_bytes(path.read_bytes())
        (folder / "config.toml").write_bytes(b"rounds = 1\n" + content)
        (folder / "summary.json").write_bytes(content)
    refused(asked(name, place, RUN=str(folder)), place)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("path", ["/nowhere/at/all", "a\0b", "x" * 5000, "\x1b[31m", "/dev/null"])
def test_paths(place: Path, name: str, path: str) -> None:
    refused(asked(name, place, **{"RUN" if "RUN" in COMMANDS[name] else "TABLE": path}), place)
