"""Orders and replies as Flower's records: the document as JSON, arrays as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedprior.flower.codec import Arrays, RejectedError
from fedprior.flower.orders import LARGEST

DOCUMENT, ARRAYS = "document", "arrays"


def pack(document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RecordDict:
    """A message's content."""
    records = RecordDict({DOCUMENT: ConfigRecord({"json": json.dumps(dict(document))})})
    if arrays:
        records[ARRAYS] = ArrayRecord({name: Array(values) for name, values in arrays.items()})
    return records


def unpack(content: RecordDict) -> tuple[dict[str, Any], Arrays]:
    """The document and the arrays; a message that has not the form of ours is rejected."""
    try:
        text = str(content[DOCUMENT]["json"])
        if len(text) > LARGEST:
            raise RejectedError("its document is too large")
        document = json.loads(text)
        found = content.get(ARRAYS)
        arrays = {} if found is None else {str(name): values.numpy() for name, values in found.items()}
    except RejectedError:
        raise
    except Exception:  # whatever Flower or NumPy say of bytes that a stranger wrote
        raise RejectedError("it cannot be read") from None
    if not isinstance(document, dict):
        raise RejectedError("it is not such a document")
    return document, arrays
