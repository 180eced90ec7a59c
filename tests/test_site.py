"""What the documentation site is assembled from; `make docs-site` builds it, strictly, in CI."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import Any

import pytest

from fedprior.data.assignment import Limits, Shares
from fedprior.data.featureskew import Corruptions
from fedprior.data.partition import PARTITIONS
from fedprior.data.registry import DATASETS
from fedprior.experiment.participation import Participation
from fedprior.models import MODELS
from fedprior.protocol import METHODS
from fedprior.report.options import options
from fedprior.training import Train
from website import hooks, reference
from website.pages import ROOT, places, relinked

THINGS: dict[str, Any] = {
    **{f"data {name}": dataset.read for name, dataset in DATASETS.items()},
    **{f"partition {name}": thing for name, thing in PARTITIONS.items()},
    **{f"model {name}": thing for name, thing in MODELS.items()},
    **{f"method {name}": thing for name, thing in METHODS.items()},
    **{thing.__name__: thing for thing in (Shares, Limits, Corruptions, Train, Participation)},
}


@pytest.mark.parametrize("name", THINGS)
def test_every_option_has_a_meaning(name: str) -> None:
    assert [option.name for option in options(THINGS[name]) if not option.meaning] == []


def test_links_lead_to_pages_of_the_site() -> None:
    """From docs/methods/fedmap.md to docs/results.md, and from docs/results.md to a result that lies elsewhere."""
    assert relinked("[r](../results.md#a)", "docs/methods/fedmap.md", "methods/fedmap.md") == "[r](../results.md#a)"
    told = "[t](../papers/fedmap/results/table1.md)"
    assert relinked(told, "docs/results.md", "results.md") == "[t](reproduced/fedmap/table1.md)"


def test_links_to_sources_become_the_reference_or_words() -> None:
    told = "[a](../src/fedprior/protocol.py), [b](../src/fedprior/rng.py), [c](https://example.org)"
    found = relinked(told, "docs/design.md", "design.md")
    assert found == "[a](reference/method.md), b, [c](https://example.org)"


def test_links_in_code_stay() -> None:
    code = "```python\nx[0](nothing.md)\n```"
    assert relinked(code, "docs/design.md", "design.md") == code


def test_a_link_to_nowhere_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"docs/design.md: the link to nowhere.md"):
        relinked("[a](nowhere.md)", "docs/design.md", "design.md")


def test_every_link_of_every_page_leads_somewhere() -> None:
    for path, place in places().items():
        if path.endswith(".md"):
            relinked((ROOT / path).read_text(encoding="utf-8"), path, place)


def test_the_reference_has_every_command_data_set_and_partition() -> None:
    pages = reference.pages()
    for command in ("run", "compare", "data fetch", "federation init", "reproduce"):
        assert f"## `fedprior {command}`" in pages["reference/commands.md"]
    assert all(f"## `{name}`" in pages["reference/data.md"] for name in DATASETS)
    assert all(f"## `partition={name}`" in pages["reference/partitions.md"] for name in PARTITIONS)


def test_the_navigation_names_pages_that_exist() -> None:
    """mkdocs checks this too; here without building the site."""
    known = {*places().values(), *reference.pages(), "reproduced/index.md"}
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    assert [page for page in re.findall(r"\S+\.md", nav) if page not in known and "*" not in page] == []


def test_help_keeps_what_looks_like_a_tag_and_shows_examples_as_code() -> None:
    page = reference.pages()["reference/commands.md"]
    assert "models/&lt;client&gt;.safetensors" in page
    assert "```sh\nfedprior doctor\n```" in page
    assert "&amp;" not in page
    assert [line for line in page.splitlines() if line.startswith(("Example", "    "))] == []


def test_the_estimators_are_shown_with_fit() -> None:
    assert reference.pages()["reference/estimators.md"].count("inherited_members: [fit]") == 2


def test_formulas_have_letters_and_relations_that_browsers_know() -> None:
    """θ ~ N, as the converter writes it: the tilde as a variable, the letter in a variant that is not drawn."""
    made = '<mi>&#x003B8;</mi><mi>&#x0007E;</mi><mi mathvariant="script">N</mi>'
    assert hooks.refined(made) == "<mi>&#x003B8;</mi><mo>&#x0223C;</mo><mi>&#x1D4A9;</mi>"


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    named = re.findall(r"[\w/*-]+\.md", nav)
    assert [page for page in places().values() if not any(fnmatch(page, name) for name in named)] == []
