"""A target that is a count: declared and checked, never inferred."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedprior.data.federation import from_arrays
from fedprior.data.frames import from_frame
from fedprior.data.schema import Schema
from fedprior.data.target import Classes, Count, Number, from_document
from fedprior.errors import FedpriorError


def table(falls: Any = None, n: int = 60) -> pd.DataFrame:
    """Three wards with falls per stay."""
    rng = np.random.default_rng(0)
    falls = rng.poisson(2.0, size=n) if falls is None else falls
    return pd.DataFrame(
        {"ward": np.array(["x", "y", "z"])[np.arange(n) % 3], "age": rng.normal(size=n), "falls": falls}
    )


def test_it_is_declared_and_never_inferred() -> None:
    """Few whole numbers are classes and many are a number, unless the column is declared."""
    assert isinstance(Schema.inferred(table(), target="falls").target, Classes)
    assert Schema.inferred(table(np.arange(60)), target="falls").target == Number()
    made = Schema.inferred(table(), target="falls", site="ward", kinds={"falls": "count"})
    assert made.target == Count()
    again = Schema.from_document(made.document())
    assert again.target == Count()
    assert again.hash == made.hash


def test_from_a_frame() -> None:
    """Mean and deviation are those of the training rows; the federation's document says what it is."""
    data = from_frame(table(), site="ward", target="falls", kinds={"falls": "count"})
    labels = np.concatenate(data.labels("train"))
    assert isinstance(data.target, Count)
    assert data.target.mean == pytest.approx(labels.mean())
    assert from_document(data.target.document()) == data.target
    assert data.target.document()["kind"] == "count"


@pytest.mark.parametrize("wrong", [[1.5], [-1.0], [np.nan], [np.inf]])
def test_what_is_no_count_is_refused(wrong: list[float]) -> None:
    y = np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 8, *wrong])
    with pytest.raises(FedpriorError, match=r"^client 'a' has targets other than 0, 1, 2, …: [^\n]*$"):
        from_arrays({"a": (np.zeros((10, 2)), y)}, target="count")


def test_a_table_with_something_else_is_refused() -> None:
    """By row, where the schema is made; by the number of rows and no value, where a site's table is compared."""
    falls = np.random.default_rng(0).poisson(2.0, size=60).astype(float)
    falls[7] = 2.5
    with pytest.raises(
        FedpriorError, match="needs a whole number from 0 on in every row, but has something else, first in row 8"
    ):
        Schema.inferred(table(falls), target="falls", kinds={"falls": "count"})
    schema = Schema.inferred(table(), target="falls", site="ward", kinds={"falls": "count"})
    assert schema.problems(table(falls)) == ["column 'falls', the target: 1 rows without a whole number from 0 on"]
    assert schema.problems(table()) == []


def test_a_schema_by_hand(tmp_path: Path) -> None:
    """Classes become a count by one word in the file; a word that is no kind is refused, not taken for a number."""
    Schema.inferred(table(), target="falls", site="ward").write(tmp_path / "schema.toml")
    text = (tmp_path / "schema.toml").read_text()
    assert text.count('kind = "classes"') == 1
    (tmp_path / "schema.toml").write_text(text.replace('kind = "classes"', 'kind = "count"'))
    assert Schema.read(tmp_path / "schema.toml").target == Count()
    (tmp_path / "schema.toml").write_text(text.replace('kind = "classes"', 'kind = "cuont"'))
    with pytest.raises(
        FedpriorError, match="unknown kind 'cuont' in the description of the target: did you mean 'count'"
    ):
        Schema.read(tmp_path / "schema.toml")


def test_an_input_cannot_be_a_count() -> None:
    with pytest.raises(FedpriorError, match="unknown kind 'count'"):
        Schema.inferred(table(), target="falls", kinds={"age": "count"})


def test_an_unknown_kind_of_target_names_all() -> None:
    with pytest.raises(FedpriorError, match="count") as error:
        from_arrays({"a": (np.zeros((10, 2)), np.arange(10))}, target="counts")  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
