"""Sentiment140: tweets."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedprior.data import store
from fedprior.data.registry import register_dataset
from fedprior.data.store.record import Record
from fedprior.data.table import Recipe, Table
from fedprior.data.target import Classes
from fedprior.data.text import token_ids

RECORD = Record(
    name="sent140",
    title="Sentiment140: tweets by user, positive or negative",
    classes=2,
    shape=(),
    dtype="str",
    formats=("tweets",),
    accepts="a CSV file (also .gz) with the columns user, text and label",
    licence="for research; the tweets are their authors'",
    citation="A. Go, R. Bhayani, L. Huang. Twitter Sentiment Classification using Distant Supervision. 2009.",
    columns=("user",),
)


@register_dataset(record=RECORD, partition="merged")
def sent140(
    length: Annotated[int, Field(ge=1, description="tokens of a tweet that are read")] = 25,
    vocabulary: Annotated[int, Field(ge=2, description="token ids, 0 being padding; as model.vocabulary")] = 22_764,
) -> Table:
    """Sentiment140: tweets by user, positive or negative, as token ids.

    Words and punctuation marks are numbered by a hash, so that there is no vocabulary to build: see `text.token_ids`.
    """
    pool = store.load(RECORD.name).pool()
    recipe: Recipe = {
        "model": {"name": "lstm", "vocabulary": vocabulary},
        "train": {"optimizer": "sgd", "lr": 0.01, "batch_size": 400, "steps": 20},
    }
    x = token_ids(pool.x, length, vocabulary)
    return Table(x, pool.y, Classes.numbered(RECORD.classes), recipe, pool.client_columns)
