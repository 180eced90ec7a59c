"""Model cards: what a site must know, in Markdown that no name can break."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import fedprior
from fedprior.errors import FedpriorError
from fedprior.experiment.verdict import Interval, SiteVerdict, Verdict
from fedprior.methods import build
from fedprior.report.card import card, plain, write_cards

HOSTILE = "<script>alert(1)</script> | [x](http://e.org) `a` *b*\x1b[31m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, rng = tmp_path_factory.mktemp("card"), np.random.default_rng(0)
    n = 120
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 10, n),
            "st|age": rng.choice(["secret level", "II"], n),
            "site": np.array([HOSTILE, "basel"])[np.arange(n) % 2],
            "score": rng.normal(size=n),
            "ill": rng.choice(["yes", "no"], n),
        }
    )
    frame.to_csv(place / "t.csv", index=False)
    data = fedprior.data.load("csv", path=place / "t.csv", target="ill", client="site", scaling="shared")
    fedprior.compare([build("fedmap")], data, model="softmax", rounds=2, workers=1, out=place / "run")
    return place / "run"


def test_a_card_says_what_the_model_is_and_how_good(folder: Path) -> None:
    text = card(folder, "basel", "fedmap")
    clients = pd.read_csv(folder / "fedmap" / "clients.csv")
    mine = clients[(clients["client"] == "basel") & (clients["model"] == "personal") & (clients["split"] == "test")]
    kept = mine[mine["round"] == int(text.split("after round ")[1].split()[0])]
    assert f"| accuracy (%) | {100 * kept['accuracy'].item():.1f} |" in text
    assert f"| NLL (nats) | {kept['nll'].item():.3f} |" in text
    for words in ("# Model of basel", "FedMAP", "a federation of 2 sites", "| age | number | no |", "Predicted: ill"):
        assert words in text
    assert "Gain over training alone" in text
    assert 'fedprior.load_model("basel.safetensors")' in text
    assert "ece: the mean distance" in text


def test_the_interval_is_wilsons(folder: Path) -> None:
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), z = 1.96, from the accuracy and the rows in the same table."""
    text = card(folder, "basel", "fedmap")
    n = int(text.split(" test rows of this site")[0].split()[-1])
    line = next(line for line in text.splitlines() if line.startswith("| accuracy (%)"))
    _, _, value, interval, _ = (part.strip() for part in line.split("|"))
    p, z = round(float(value) / 100 * n) / n, float(norm.ppf(0.975))
    half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    low, high = ((p + z**2 / (2 * n) + sign * half) / (1 + z**2 / n) for sign in (-1, 1))
    assert interval == f"{100 * low:.1f} to {100 * high:.1f}"


def test_no_value_of_a_patient_is_on_it(folder: Path) -> None:
    text = card(folder, "basel", "fedmap")
    assert "secret level" not in text
    assert "category, 2 levels" in text or "yes/no" in text
    assert str(folder.parent) not in text


def test_a_hostile_name_is_inert(folder: Path) -> None:
    text = card(folder, HOSTILE, "fedmap")
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "](http" not in text.replace("\\]\\(", "")
    assert "st\\|age" in text
    heading = text.splitlines()[0]
    assert heading.startswith("# Model of \\<script\\>")


@pytest.mark.parametrize("name", ["# a", "a\nb", "&lt;", "a|b", "```", "![x](y)", "<b>", "$x$"])
def test_names_are_escaped(name: str) -> None:
    found = plain(name)
    assert "\n" not in found
    for mark in "#&|`!<$[":
        assert mark not in found.replace(f"\\{mark}", "")


def test_the_verdict_of_a_comparison_is_on_it(folder: Path) -> None:
    site = SiteVerdict("helps", 31, Interval(0.12, 0.03, 0.2))
    Verdict("fedmap", "use it", {}, {"basel": site}).write(folder)
    try:
        assert "Federation helps this site: gain in NLL over Local +0.120 [+0.030, +0.200], 31 test rows" in card(
            folder, "basel"
        )
        assert "Gain over training alone" in card(folder, HOSTILE)
        assert "Federation helps" not in card(folder, "basel", "fedavg_ft")
        Verdict("local", "use it", {}, {"basel": site}).write(folder)
        alone = card(folder, "basel", "local")
        assert "Nothing: the model was trained on the site's own rows alone." in alone
        assert "The best federated method: gain in NLL over Local +0.120" in alone
    finally:
        (folder / "verdict.json").unlink()


def test_cards_lie_beside_the_models(folder: Path) -> None:
    written = write_cards(folder, method="fedmap")
    assert len(written) == 2
    for path in written:
        assert path.with_suffix(".safetensors").is_file()
        assert path.read_text().startswith("# Model of")
    with pytest.raises(FedpriorError, match="unknown site"):
        write_cards(folder, "zurich")


def test_a_site_that_joined_has_a_card(folder: Path) -> None:
    prior = fedprior.load_prior(folder / "fedmap" / "prior.safetensors")
    rng = np.random.default_rng(3)
    new = pd.DataFrame(
        {
            "age": rng.normal(60, 9, 30),
            "st|age": "II",
            "score": rng.normal(size=30),
            "ill": rng.choice(["yes", "no"], 30),
        }
    )
    fedprior.join(prior, new, "zurich", draws=2).save(folder / "fedmap" / "joined")
    text = card(folder, "zurich", "fedmap")
    assert "joined after training, with 30 rows" in text
    assert "the shared model" in text
