"""A table that does not fit into memory is refused before it is read."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from fedprior import room
from fedprior.data import reading
from fedprior.errors import FedpriorError
from hostile.cases import refused

TEXT = "site,x,y\n" + "".join(f"{'ab'[k % 2]},{k},{k % 3 % 2}\n" for k in range(500))


def written(folder: Path, ending: str) -> Path:
    path = folder / f"table{ending}"
    if ending == ".csv":
        path.write_text(TEXT)
    elif ending == ".csv.gz":
        path.write_bytes(gzip.compress(TEXT.encode()))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("table.csv", TEXT)
    return path


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".csv.zip"])
def test_text_counts_as_it_is_unpacked(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve bytes for each byte of text: one byte less is too little, whatever the file is packed to."""
    path, needed = written(tmp_path, ending), reading.GROWTH * len(TEXT)
    monkeypatch.setattr(room, "available", lambda: needed)
    assert len(reading.read_file(path)) == 500
    monkeypatch.setattr(room, "available", lambda: needed - 1)
    monkeypatch.setattr(reading, "_text", lambda path: pytest.fail("it was read"))
    with pytest.raises(FedpriorError, match=r"reading '.*table.*' would take about .* are free: give fewer rows"):
        reading.read_file(path)


def test_parquet_is_asked_how_large_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    pd.DataFrame({"x": range(1000), "y": 0.5}).to_parquet(path)
    monkeypatch.setattr(room, "available", lambda: 2 * 8 * 2 * 1000 - 1)
    monkeypatch.setattr(pd, "read_parquet", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(FedpriorError, match=r"table\.parquet' would take about"):
        reading.read_file(path)


def test_the_command_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, ".csv")
    monkeypatch.setattr(room, "available", lambda: 1000)
    told = refused(["compare", str(path), "--site", "site", "--target", "y", "--out", str(tmp_path / "out")], tmp_path)
    assert "of memory are free" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_limit_of_the_process_counts(tmp_path: Path) -> None:
    """8 MB of text need 96 MB, and the limit leaves 50 MiB."""
    path = tmp_path / "large.csv"
    path.write_text("site,x,y\n" + "a,1.5,0\n" * 1_000_000)
    script = f"""
import resource
from pathlib import Path
from fedprior.data.reading import read_file
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 50 * 2**20,) * 2)
try:
    read_file(Path({str(path)!r}))
except Exception as error:
    print(type(error).__name__, error)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("FedpriorError reading")
    assert "would take about 92 MiB" in found.stdout
