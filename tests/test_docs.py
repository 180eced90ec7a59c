"""The documentation agrees with the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedprior import methods
from fedprior.protocol import METHODS

ROOT = Path(__file__).parent.parent


def test_generated_tables_are_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, f"run `make docs`: {check.stdout}{check.stderr}"


def test_every_method_has_a_page_with_its_options() -> None:
    assert methods.METHODS is METHODS
    for name in METHODS:
        page = ROOT / "docs" / "methods" / f"{name}.md"
        assert f"<!-- options:{name} -->" in page.read_text(), name
