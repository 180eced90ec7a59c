"""Names are data: how a client, a column, a level, a folder or a file is shown, put in a cell and made a file name.

People name their sites as they like: with brackets, escape sequences, formulas, any script and any length. Nothing in
such a name may be obeyed by a terminal, a spreadsheet or a file system; and none may be lost, so that a name read back
is the name that was given.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from urllib.parse import quote

SHOWN = 60
"""Characters of a name that a screen shows."""
SENTENCE = 4000
"""Characters of a message that a screen shows."""
FILE_BYTES = 88
"""The longest file name before its ending: with `.safetensors`, 100 bytes."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # controls, formats such as bidi overrides, surrogates, line ends
_JOINERS = frozenset("\u200c\u200d")  # formats that scripts and emoji are written with
_FORMULA = re.compile(r"'*(?:[\s\x00-\x1f]*[=+\-@＝＋－＠]|[\t\r\n\x00])")
_MARKED = re.compile(r"'" + _FORMULA.pattern)
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$)", re.IGNORECASE)
_RESERVED = re.compile(r"_+_metadata__")


def visible(text: str, most: int = SENTENCE) -> str:
    """A text in one line, whose controls are seen and not obeyed; of a long one, both ends."""
    if len(text) > 4 * most:  # before every character is looked at
        text = f"{text[: 2 * most]}{text[-2 * most :]}"
    if not text.isprintable():
        text = "".join(_escaped(character) for character in text)
    return text if len(text) <= most else f"{text[: most - most // 3 - 1]}…{text[-(most // 3) :]}"


def on_screen(name: object, most: int = SHOWN) -> str:
    """A name as a terminal, a picture or a page shows it. It is plain text: print it without markup."""
    return visible(str(name), most)


def apart(names: Iterable[object], most: int = SHOWN) -> list[str]:
    """Names as `on_screen` shows them, with a number behind those that look like an earlier one."""
    seen: set[str] = set()
    found = []
    for name in names:
        plain = shown = on_screen(name, most)
        k = 2
        while shown in seen:
            shown, k = f"{plain} ({k})", k + 1
        seen.add(shown)
        found.append(shown)
    return found


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def csv_cell(name: str) -> str:
    """A name as a cell that no spreadsheet takes for a formula: with a `'` before it where one might."""
    return f"'{name}" if _FORMULA.match(name) else name


def from_csv_cell(cell: str) -> str:
    """The inverse of `csv_cell`."""
    return cell[1:] if _MARKED.match(cell) else cell


def tensor_key(name: str) -> str:
    """A name as a key of a safetensors file, which keeps `__metadata__` for itself."""
    return f"_{name}" if _RESERVED.fullmatch(name) else name


def file_name(name: str) -> str:
    """A name as a file name of any length: letters, digits, `-`, `_`, `.`, `~` and spaces stay, the rest is escaped."""
    plain = quote(name, safe=" ")
    return plain if plain.strip(".") else plain.replace(".", "%2E")


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Names as file names that differ on every file system and have at most `FILE_BYTES` bytes.

    Those that are too long, or that only case tells apart, end in `+` and a digest; no others have a `+`.
    """
    plain = {name: _portable(file_name(name)) for name in names}
    alike = Counter(found.casefold() for found in plain.values())
    return {
        name: found if len(found) <= FILE_BYTES and alike[found.casefold()] == 1 else _digested(name, found)
        for name, found in plain.items()
    }


def _portable(plain: str) -> str:
    """Neither empty, nor the name of a device, as some systems have in every folder."""
    if _DEVICES.match(plain):
        return f"%{ord(plain[0]):02X}{plain[1:]}"
    return plain or "%"


def _digested(name: str, plain: str) -> str:
    digest = blake2b(name.encode(), digest_size=10).hexdigest()
    start = re.sub(r"%[0-9A-F]?$", "", plain[: FILE_BYTES - 1 - len(digest)])
    return f"{start}+{digest}"


def is_text(name: str) -> bool:
    """Whether a file in UTF-8 can hold it: half of a surrogate pair is no character."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)
