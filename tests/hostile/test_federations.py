"""Whatever is given to `tune` and to the commands of a federation: exit code 2, one sentence, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hostile.cases import DRAWN, LONG, NO_NUMBER, NO_TABLE, OF_METHODS, OF_WRAPPERS, ROWS, command, refused, toml

COMMANDS = {
    "tune": [
        "tune",
        "TABLE",
        "--site",
        "site",
        "--target",
        "class",
        "--methods",
        "local",
        "--tries",
        "1",
        "--out",
        "OUT",
    ],
    "schema": ["federation", "schema", "TABLE", "--target", "class", "--site", "site", "--out", "NEW"],
    "init": ["federation", "init", "OUT", "--sites", "a,b", "--schema", "SCHEMA"],
    "run": ["federation", "run", "FOLDER"],
    "resume": ["federation", "resume", "FOLDER"],
    "status": ["federation", "status", "FOLDER"],
    "stop": ["federation", "stop", "FOLDER"],
    "site": ["federation", "site", "FOLDER", "--table", "TABLE", "--state", "OUT"],
    "doctor": ["federation", "doctor", "FOLDER", "--table", "TABLE", "--state", "OUT"],
    "audit": ["federation", "audit", "FOLDER"],
    "try": ["federation", "try", "--out", "OUT"],
}
NEED = {word: [name for name, given in COMMANDS.items() if word in given] for word in ("TABLE", "SCHEMA", "FOLDER")}
NAMES = {
    "tune": ("--site", "--target", "--methods", "--tries", "--minutes", "--splits", "--rounds", "--seed", "--workers"),
    "init": ("--sites", "--method", "--rounds", "--experiment", "--host", "--port", "--timeout"),
    "schema": ("--target", "--site"),
    "try": ("--method", "--rounds"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and its schema."""
    folder = tmp_path_factory.mktemp("federation")
    (folder / "table.csv").write_text(ROWS, encoding="utf-8")
    assert command(*asked("schema", folder, NEW=str(folder / "schema.toml"))).code in (0, None)
    return folder


def asked(name: str, place: Path, **other: str) -> list[str]:
    """A command that is right, but for what is `other`."""
    right = {"TABLE": str(place / "table.csv"), "SCHEMA": str(place / "schema.toml"), "OUT": str(place / "new")}
    right |= {"NEW": str(place / "new.toml"), "FOLDER": str(place / "none")}
    return [(right | other).get(word, word) for word in COMMANDS[name]]


@DRAWN
@given(st.sampled_from([name for name in NEED["TABLE"] if name in ("tune", "schema")]), NO_TABLE)
def test_tables(place: Path, name: str, content: bytes) -> None:
    (place / "bad.csv").write_bytes(content)
    refused(asked(name, place, TABLE=str(place / "bad.csv")), place)


@DRAWN
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode), st.sampled_from([".toml", ".json", ""]))
def test_schemas(place: Path, content: bytes, ending: str) -> None:
    path = place / f"bad{ending}"
    path.write_bytes(content)
    refused(asked("init", place, SCHEMA=str(path)), place)


@DRAWN
@example("audit", "trial/bonn/sent.jsonl", b'{"time":')
@given(
    st.sampled_from(NEED["FOLDER"]),
    st.sampled_from(["none", "file", "empty", "federation.toml", "site.toml", "trial/bonn/sent.jsonl"]),
    st.binary(min_size=1, max_size=60) | st.text(min_size=1, max_size=60).map(str.encode),
)
def test_folders(place: Path, name: str, kind: str, content: bytes) -> None:
    folder = place / f"given-{Path(kind).name}"
    if kind == "file":
        folder.write_bytes(content)
    elif kind != "none":
        folder.mkdir(exist_ok=True)
    if "." in kind:
        (folder / kind).parent.mkdir(parents=True, exist_ok=True)
        (folder / kind).write_bytes(content)
    if (name, kind) == ("audit", "empty"):
        return
    refused(asked(name, place, FOLDER=str(folder)), place)


@DRAWN
@example(("tune", "--workers"), "\u0663")
@given(
    st.sampled_from([(name, option) for name, options in NAMES.items() for option in options]),
    LONG | st.sampled_from(["-1", "nan", "1e400", "9" * 5000, "\u0663", "a\0b", "-" * 50, "../../x", "no such"]),
)
def test_options(place: Path, where: tuple[str, str], value: str) -> None:
    name, option = where
    if (option in ("--experiment", "--host", "--sites") and value in ("no such", "nan", "-1")) or value == "":
        return  # names like others
    if option in ("--experiment", "--host") and value == "1e400":
        return  # one too
    refused([*asked(name, place), f"{option}={value}"], place)


@DRAWN
@given(st.sampled_from(["init", "try", "tune"]), st.sampled_from(OF_METHODS + OF_WRAPPERS), NO_NUMBER)
def test_overrides(place: Path, name: str, where: tuple[str, str], value: object) -> None:
    """Options of methods and of wrappers, guards among them."""
    wrapped = where in OF_WRAPPERS
    method = f"fedavg+{where[0]}" if wrapped else where[0]
    key = f"{where[0]}.{where[1]}" if wrapped else where[1]
    prefix = f'methods."{method}".' if name == "tune" else "method."
    chosen = ["--methods" if name == "tune" else "--method", method]
    refused([*asked(name, place), *chosen, f"{prefix}{key}={toml(value)}"], place)
