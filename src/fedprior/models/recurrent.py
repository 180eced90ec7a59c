"""A recurrent network for text; parameter counts are tested."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from fedprior.errors import FedpriorError
from fedprior.files import read_tensors
from fedprior.models.layers import activation, classifier


class Frozen(nn.Module):
    """Fixed vectors of tokens: neither parameters nor buffers, so that no update, norm or message includes them."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table  # [vocabulary, embedding]

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, embedding]."""
        return F.embedding(ids, self.table)


class Reader(nn.Module):
    """Two bidirectional LSTM layers over the tokens of a text."""

    def __init__(self, vectors: nn.Module, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.vectors, self.vocabulary = vectors, vocabulary
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids [B, T], as integers or as floats, -> [B, 4 hidden].

        The last layer's outputs at the last token, then its final states, backward before forward. The forward output
        and the forward final state are the same numbers: the paper's read-out, kept as published.
        """
        ids = x.long()
        ids = torch.where(ids == x, ids, -1)  # only whole numbers are tokens
        try:
            vectors = self.vectors(ids)
        except IndexError:
            raise FedpriorError(
                f"model 'lstm' takes token ids from 0 to {self.vocabulary - 1}, but the data has other values: raise "
                "model.vocabulary, and do not scale token ids."
            ) from None
        outputs, (final, _) = self.lstm(vectors.to(self.lstm.weight_ih_l0.dtype))
        return torch.cat([outputs[:, -1], final[-1], final[-2]], 1)


def lstm(
    shape: tuple[int, ...],
    outputs: int,
    *,
    vocabulary: Annotated[PositiveInt, Field(description="number of tokens")] = 22_764,
    embedding: Annotated[PositiveInt, Field(description="length of a token's vector")] = 50,
    hidden: Annotated[PositiveInt, Field(description="width of an LSTM layer in each direction")] = 50,
    features: Annotated[PositiveInt, Field(description="inputs of the head")] = 5_000,
    frozen: Annotated[bool, Field(description="whether the tokens' vectors stay as they are")] = True,
    vectors: Annotated[str | None, Field(description="safetensors file with the tokens' vectors")] = None,
) -> nn.Module:
    """pFedBreD's network for Sent140, 5,000 features (1,116,602 parameters with two outputs).

    Frozen vectors (`vocabulary` × `embedding`, 1,138,200 numbers that are not parameters), two bidirectional LSTM
    layers, a linear layer with leaky ReLU of slope 0.1, the head. The paper's vectors are GloVe's: `vectors` names a
    safetensors file with one tensor of that name, whose row 0 stands for padding. Without a file, frozen vectors are
    standard normal, the same in every run, and zero for padding; with `frozen=False` they are initialised so and
    trained (2,254,802 parameters). An example is a row of token ids, padded to a common length (the paper's is 25).
    """
    if len(shape) != 1 or shape[0] < 1:
        raise FedpriorError(f"model 'lstm' takes rows of token ids, but the data has shape {shape}.")
    if vectors is not None and not frozen:
        raise FedpriorError("model 'lstm': vectors from a file are not trained: leave out `vectors` or frozen=False.")
    table = _table(vocabulary, embedding, vectors) if frozen else None
    tokens = nn.Embedding(vocabulary, embedding, padding_idx=0) if table is None else Frozen(table)
    base = [
        *(Reader(tokens, vocabulary, embedding, hidden), nn.Linear(4 * hidden, features)),
        activation("leaky_relu", 0.1),
    ]
    return classifier(base, features, outputs)


def _table(vocabulary: int, embedding: int, file: str | None) -> Tensor:
    if file is None and torch.get_default_device().type == "meta":
        return torch.empty(vocabulary, embedding)
    if file is None:
        table = torch.randn(vocabulary, embedding, generator=torch.Generator().manual_seed(0))
        table[0] = 0.0
        return table
    tensors, _ = read_tensors(Path(file))
    if set(tensors) != {"vectors"} or tensors["vectors"].dim() != 2 or not tensors["vectors"].is_floating_point():
        raise FedpriorError(f"'{file}' holds no word vectors: it must contain a matrix of floats named 'vectors'.")
    rows, width = tensors["vectors"].shape
    if (rows, width) != (vocabulary, embedding):
        raise FedpriorError(
            f"'{file}' has {rows} vectors of {width} numbers, but model 'lstm' expects {vocabulary} of {embedding}: "
            f"set model.vocabulary={rows} and model.embedding={width}."
        )
    return tensors["vectors"]
