"""Text as token ids, without a vocabulary: sites need not share their words to number them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

TOKEN = re.compile(r"\w+|[^\w\s]")


def tokens(text: str) -> list[str]:
    """Lower-case words and single punctuation marks."""
    return TOKEN.findall(text.lower())


def token_ids(texts: Iterable[str], length: int, vocabulary: int) -> NDArray[np.int64]:
    """The first `length` tokens of each text as numbers 1 to `vocabulary` - 1, padded with 0.

    A token's number is its CRC-32 modulo `vocabulary` - 1, plus 1. Two tokens may share one; in return a number
    depends on the token alone, so no site's text is read to build it, and no test text.
    """
    known: dict[str, int] = {}
    rows = []
    for text in texts:
        row = [0] * length
        for i, token in enumerate(tokens(text)[:length]):
            if token not in known:
                known[token] = 1 + zlib.crc32(token.encode()) % (vocabulary - 1)
            row[i] = known[token]
        rows.append(row)
    return np.array(rows, dtype=np.int64).reshape(-1, length)
