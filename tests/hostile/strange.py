"""Names that people give, or might: what breaks terminals, spreadsheets, file systems and encodings."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedprior.data.federation import Federation, from_arrays

NAMES = (
    "Clinic [north]",
    "a[/]",
    "[bold red]x[/bold red]",
    "[link=http://x]y[/link]",
    ":smile: {task.description} %s {0}",
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;http://x\x07link\x1b]8;;\x07",
    "\x1b]0;title\x1b\\",
    "\x9b2J",
    "bell\x07 and back\b\b",
    "\u202eright to left\u202c",
    "\u2066isolated\u2069\u200f",
    "\u2028line\u2029paragraph",
    "👩‍⚕️ 🏥",
    "東京都立広尾病院東京都立広尾病院東京都立広尾病院東京都",
    "x" * 300,
    "x" * 299 + "y",
    "é" * 150,
    "ward/1",
    "ward\\1",
    "../../up",
    ".",
    "..",
    ".hidden",
    "dots...",
    " spaces ",
    "CON",
    "con",
    "Con.txt",
    "lpt1",
    "Site",
    "SITE",
    "caf\u00e9",
    "cafe\u0301",
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    " =1",
    "'quoted",
    "'=1",
    "''=1",
    '"quoted", and a comma',
    "two\nlines",
    "two\r\nlines\r",
    "nul\x00inside",
    "nan",
    "1e5",
    "__metadata__",
    "___metadata__",
    "index",
    "<script>alert(1)</script>&amp;",
    "$x^2_{$",
    "a+b",
    "50%",
)


def names() -> st.SearchStrategy[str]:
    """Any text that UTF-8 can hold, such names, and pieces of them joined."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    pieces = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("".join)
    return st.one_of(text, st.sampled_from(NAMES), pieces).filter(lambda name: name.strip() != "")


def several(most: int = 6) -> st.SearchStrategy[list[str]]:
    """Names that differ."""
    return st.lists(names(), min_size=1, max_size=most, unique=True)


def federation(clients: list[str], **options: Any) -> Federation:
    """Five examples of two classes for everyone."""
    rng = np.random.default_rng(0)
    return from_arrays({name: (rng.normal(size=(5, 2)), np.arange(5) % 2) for name in clients}, classes=2, **options)


def raw(text: str) -> list[str]:
    """The characters of a text that a terminal would obey or hide, line breaks aside."""
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return [c for c in text if unicodedata.category(c) in kinds and c not in "\n\u200c\u200d"]
