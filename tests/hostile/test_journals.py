"""Damaged files of a run are reported, and never give wrong numbers in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hostile.kills import timeless
from hostile.runs import everything, go, refusal, stop_at


def flipped(path: Path) -> None:
    """The first digit of the bytes sent, or of the first metric, is another."""
    text = path.read_text()
    where = text.index('"bytes_up": ') + 12 if path.suffix == ".jsonl" else text.index("\n1,") + 1
    path.write_text(text[:where] + str((int(text[where]) + 1) % 10) + text[where + 1 :])


def shortened(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-8]))


def doubled(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], *lines[1:]]))


def other(path: Path) -> None:
    path.write_text("{}\n" * 12)


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
@pytest.mark.parametrize("name", ["events.jsonl", "clients.csv", "logs.csv"])
@pytest.mark.parametrize("damage", [flipped, shortened, doubled, other, Path.unlink])
def test_a_damaged_journal_is_told_and_left(
    damage: Callable[[Path], None], name: str, finished: bool, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if finished:
        go(out)
    else:
        with pytest.raises(KeyboardInterrupt):
            go(out, observers=stop_at(4))
    damage(out / name)
    before = everything(tmp_path)
    assert str(out / name) in refusal(lambda: go(out))
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["predictions.safetensors", "models/a.safetensors"])
def test_a_flipped_bit_in_a_finished_run_is_told(name: str, tmp_path: Path) -> None:
    go(tmp_path / "out")
    content = bytearray((tmp_path / "out" / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / "out" / name).write_bytes(bytes(content))
    assert name in refusal(lambda: go(tmp_path / "out"))


def test_lines_behind_the_checkpoint_do_not_matter(tmp_path: Path) -> None:
    """Whatever a crash left there, half a line or a table with more columns, those rounds run again."""
    go(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", observers=stop_at(4))
    for name in ("events.jsonl", "clients.csv"):
        with (tmp_path / "cut" / name).open("ab") as file:
            file.write(b'4,"\xff\n{"kind')
    path = tmp_path / "cut" / "logs.csv"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},more", *(f"{line}," for line in lines), "4,a,4,,1.0"]) + "\n")
    go(tmp_path / "cut")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
