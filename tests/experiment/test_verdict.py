"""The verdict as an object and as a file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedprior.errors import FedpriorError
from fedprior.experiment.verdict import FILE, Interval, SiteVerdict, Verdict

GIVEN = Verdict(
    "fedmap",
    "Federation helps va.",
    {"local": {"nll": 0.5, "auroc": math.nan}, "reference_pooled": {"nll": 0.25}},
    {
        "va": SiteVerdict("helps", 40, Interval(0.1, 0.05, 0.15), {"accuracy": Interval(0.02, -0.1, 0.1)}),
        "[bold]": SiteVerdict("cannot tell", 4, Interval(math.nan, math.nan, math.nan)),
    },
)


def test_the_file_has_what_scripts_rely_on(tmp_path: Path) -> None:
    GIVEN.write(tmp_path)
    document = json.loads((tmp_path / FILE).read_text())
    assert list(document) == ["recommended", "text", "methods", "sites", "mean_gain_nll"]
    assert document["methods"] == {"local": {"nll": 0.5, "auroc": None}, "reference_pooled": {"nll": 0.25}}
    assert document["sites"]["va"]["gain_nll"] == {"mean": 0.1, "low": 0.05, "high": 0.15}
    assert document["sites"]["[bold]"] == {
        "verdict": "cannot tell",
        "n_test": 4,
        "gain_nll": {"mean": None, "low": None, "high": None},
        "gains": {},
    }


def test_it_can_be_read_back(tmp_path: Path) -> None:
    GIVEN.write(tmp_path)
    found = Verdict.read(tmp_path)
    assert found.document() == GIVEN.document()
    assert math.isnan(found.sites["[bold]"].gain_nll.low)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"methods": {}, "sites": {"a": {"verdict": "wins"}}}'])
def test_what_is_no_verdict_is_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match=r"has no verdict\.json"):
        Verdict.read(tmp_path)
    (tmp_path / FILE).write_text(content)
    with pytest.raises(FedpriorError, match="is damaged"):
        Verdict.read(tmp_path)
