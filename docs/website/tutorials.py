"""Tutorials: Python files in the percent format, executed as notebooks and shown with what they print and draw."""

from __future__ import annotations

import base64
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

from website.charts import embedded
from website.pages import ROOT, relinked

SECONDS = 250
"""Limit of one cell."""
KEPT = ROOT / "build" / "notebooks"
"""Executed notebooks and the files they have left, by the checksum of the tutorial and of all sources."""
OFFLINE = """# %%
import altair

altair.renderers.register("document", lambda spec, **_: {"application/vnd.vegalite.v6+json": spec})
altair.renderers.enable("document")
"""
"""Executed before a tutorial: charts as documents, which need no script from elsewhere."""
REPORT = "report.html"


def page(path: Path, folder: Path) -> str:
    """The tutorial as Markdown; its pictures, its notebook and its report go to `folder`."""
    kept = executed(path)
    notebook = jupytext.read(kept / f"{path.stem}.ipynb")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(kept / f"{path.stem}.ipynb", folder)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = relinked(cell.source, path.relative_to(ROOT).as_posix(), f"tutorials/{path.stem}.md")
    parts = [_cell(cell, folder, f"{path.stem}-{k}") for k, cell in enumerate(notebook.cells)]
    head, _, rest = "\n\n".join(parts).partition("\n")
    links = f"[Download as a notebook]({path.stem}.ipynb)"
    if (kept / REPORT).exists():
        shutil.copy(kept / REPORT, folder / f"{path.stem}-{REPORT}")
        links += f" · [the report that this tutorial writes]({path.stem}-{REPORT})"
    return f"{head}\n\n{links}\n{rest}\n"


def executed(path: Path) -> Path:
    """The folder of the executed notebook; it is executed only if the tutorial or the library has changed."""
    kept = KEPT / f"{path.stem}-{_checksum(path)}"
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory() as place:
        notebook = run(jupytext.read(path), Path(place))
        part = kept.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        for report in sorted(Path(place).glob(f"runs/*/{REPORT}")):
            shutil.copy(report, part)
    jupytext.write(notebook, part / f"{path.stem}.ipynb")
    return part.rename(kept)


def run(notebook: Any, place: Path) -> Any:
    """The notebook with its outputs, run in a kernel of its own whose folder is `place`."""
    resources = {"metadata": {"path": str(place)}}
    first = jupytext.reads(OFFLINE, fmt="py:percent").cells
    notebook.cells[:0] = first
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    del notebook.cells[: len(first)]
    return notebook


def _checksum(path: Path) -> str:
    found = hashlib.sha256(path.read_bytes() + OFFLINE.encode())
    for source in sorted((ROOT / "src").rglob("*.py")):
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def _cell(cell: Any, folder: Path, stem: str) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    parts = [f"```python\n{cell.source}\n```"] if cell.source.strip() else []
    return "\n\n".join(parts + [_output(output, folder, f"{stem}-{k}") for k, output in enumerate(cell.outputs)])


def _output(output: Any, folder: Path, stem: str) -> str:
    """What a cell has printed or shown."""
    if output.output_type == "stream":
        return _text(output.text) if output.name == "stdout" else ""
    data = output.get("data", {})
    vega = next((data[kind] for kind in data if kind.startswith("application/vnd.vegalite")), None)
    if vega is not None:
        return embedded({key: value for key, value in vega.items() if key not in ("$schema", "config")})
    if "image/png" in data:
        (folder / f"{stem}.png").write_bytes(base64.b64decode(data["image/png"]))
        return f"![Output of the cell above]({stem}.png)"
    if "text/html" in data:
        return f'<div class="output">{"".join(line.strip() for line in data["text/html"].splitlines())}</div>'
    return _text(data.get("text/plain", ""))


def _text(text: str) -> str:
    return f'```text title="Output"\n{text.rstrip()}\n```' if text.strip() else ""
