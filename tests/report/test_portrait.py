"""Pictures of federations: what they show, in the terminal, as SVG, as PNG and as a page."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedprior.data.federation import Federation, from_arrays
from fedprior.data.target import Number
from fedprior.report.charts import federation as charts
from fedprior.report.charts import png, spec, svg
from fedprior.report.page.federation import page
from fedprior.report.portrait import Portrait, portrait, terminal


def federation(sizes: list[tuple[int, ...]]) -> Federation:
    """Clients with so many training examples of each class; half as many more to test on."""
    clients = {}
    for i, counts in enumerate(sizes):
        y = np.repeat(np.arange(len(counts)), counts)
        clients[f"site<{i}>"] = (np.zeros((len(y), 1)), y)
    tests = {name: (x[:1], y[:1]) for name, (x, y) in clients.items()}
    return from_arrays(clients, tests=tests, validation=0, classes=len(sizes[0]), name="mine")


THREE = federation([(8, 0), (0, 8), (8, 8)])


def test_what_it_shows() -> None:
    """One label of two that are equally frequent: JS = H(3/4, 1/4) - (0 + 1) / 2 = 0.8113 - 0.5 = 0.3113 bits."""
    found = portrait(THREE)
    assert found.counts.tolist() == [[8, 0], [0, 8], [8, 8]]
    assert found.sizes.tolist() == [8, 8, 16]
    assert found.divergence == pytest.approx([0.3113, 0.3113, 0.0], abs=1e-4)
    counts, edges = found.histogram()
    assert counts.sum() == 3
    assert (counts[0], counts[-1]) == (2, 1)
    assert (edges[0], edges[-1]) == (8, 17)


def test_terminal() -> None:
    """One line a class: full blocks where there are as many as anywhere, nothing where there are none."""
    lines = terminal(portrait(THREE), 60).plain.splitlines()
    assert lines[0] == "mine: 3 clients, 2 classes"
    assert lines[2].strip() == "0 █   █"
    assert lines[3].strip() == "1   █ █"
    assert lines[4].strip() == "size ▄ ▄ █"
    assert lines[5].strip() == "skew ▂ ▂"
    assert "site<0> … site<2>" in lines[6]
    assert lines[-1].endswith(" 1")


@pytest.mark.parametrize(
    ("clients", "classes", "width"), [(100, 10, 100), (207, 62, 100), (3, 100, 80), (1000, 2, 100)]
)
def test_it_fits_the_terminal(clients: int, classes: int, width: int) -> None:
    rng = np.random.default_rng(0)
    many = federation([tuple(rng.integers(0, 5, classes) + (np.arange(classes) == 0) * 2) for _ in range(clients)])
    lines = terminal(portrait(many), width).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < 110
    assert ("more" in "\n".join(lines)) == (clients == 1000)


def test_one_client_of_one_class() -> None:
    """Nothing to divide by zero."""
    single = portrait(federation([(4,)]))
    assert "1 clients" in terminal(single).plain
    ET.fromstring(svg(charts.picture(single)))


def values(chart: Any) -> list[dict[str, Any]]:
    """The data of a chart."""
    [rows] = spec(chart)["datasets"].values()
    return list(rows)


def texts(found: Portrait) -> list[str]:
    return [text for text in ET.fromstring(svg(charts.picture(found))).itertext() if text.strip()]


def test_a_dot_for_every_count() -> None:
    """Areas go with counts, from zero on: the largest dot fills its row of 18 pixels but for 5 %."""
    chart = charts.labels(portrait(THREE))
    assert [(row["site"], row["label"], row["examples"]) for row in values(chart) if row["examples"]] == [
        ("site<0>", "0", 8),
        ("site<1>", "1", 8),
        ("site<2>", "0", 8),
        ("site<2>", "1", 8),
    ]
    scale = spec(chart)["encoding"]["size"]["scale"]
    assert scale["domain"] == [0, 8]
    assert scale["range"] == [0, pytest.approx(math.pi * (0.95 * 18 / 2) ** 2)]


def test_large_numbers_are_written_out() -> None:
    found = replace(portrait(THREE), numbers={"most_examples": 6514.0, "skew": 0.12345})
    assert "most examples 6,514, skew 0.123" in texts(found)


def test_names_stand_on_the_axis() -> None:
    found = texts(portrait(THREE))
    for name in ("site<0>", "site<1>", "site<2>", "training examples", "skew of labels, bits"):
        assert name in found


def test_names_that_look_alike_keep_their_rows() -> None:
    """Both are cut to the same 60 characters; a chart that took them for one would add them up."""
    long = ["x" * 70 + "middle" + "y" * 70, "x" * 70 + "centre" + "y" * 70]
    data = from_arrays({name: (np.zeros((9, 1)), np.arange(9) % 2) for name in long}, validation=0)
    found = portrait(data)
    assert found.clients[1] == f"{found.clients[0]} (2)"
    assert len(values(charts.sizes(found))) == 2


def test_the_first_of_many_sites_are_drawn_and_all_are_listed() -> None:
    many = federation([(2, 2)] * 70)
    found = portrait(many)
    assert len(values(charts.sizes(found))) == charts.DRAWN
    assert charts.cut(found) == "The first 60 of 70 sites are drawn."
    assert charts.cut(portrait(THREE)) == ""
    assert sum(row["sites"] for row in values(charts.histogram(found))) == 70
    assert '["site\\u003c69\\u003e",4,0,1,0.0]' in page(many, found)


# A number to predict


def numbers() -> Federation:
    """100 training labels 1 … 100: the lower half at one client, the upper half at the other."""
    clients = {"low": np.arange(1.0, 51.0), "high": np.arange(51.0, 101.0)}
    given = {name: (np.zeros((50, 1)), y) for name, y in clients.items()}
    tests = {name: (x[:1], y[:1]) for name, (x, y) in given.items()}
    return from_arrays(given, tests=tests, validation=0, target=Number("years"), name="ages")


def test_a_number_is_counted_in_tenths() -> None:
    """Ten ranges of ten labels each, of which each client has five.

    A client has 1/5 in each of five ranges, all have 1/10 in each of ten, and their mixture has 3/20 or 1/20: JS =
    ½ Σ own log(own/mix) + ½ Σ all log(all/mix) = ½ log(4/3) + ½ [½ log(2/3) + ½ log 2] = 0.3113 bits.
    """
    found = portrait(numbers())
    assert found.title == "ages: 2 clients, 10 ranges of the target"
    assert found.counts.tolist() == [[10] * 5 + [0] * 5, [0] * 5 + [10] * 5]
    assert (found.labels[0], found.labels[-1]) == ("1 – 10.9", "90.1 – 100")
    assert found.divergence == pytest.approx([0.3113, 0.3113], abs=1e-4)
    assert set(found.numbers) >= {"between", "shift", "scale"}


def test_a_count_is_counted_in_ranges_too() -> None:
    """Mostly zeros: as many ranges as there are different tenths, and every label is in one."""
    y = np.repeat([0.0, 1.0, 5.0], [30, 15, 5])
    given = {name: (np.zeros((50, 1)), y) for name in "ab"}
    found = portrait(from_arrays(given, tests=given, validation=0, target="count", name="falls"))
    assert found.title == f"falls: 2 clients, {len(found.labels)} ranges of the target"
    assert found.counts.sum() == 100


def test_pictures_of_a_number() -> None:
    """A line and a row of dots for every range, within the width; the same in SVG."""
    found = portrait(numbers())
    lines = terminal(found, 80).plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].strip() == "1 – 10.9 █"
    assert lines[11].strip() == "90.1 – 100   █"
    dots = [row for row in values(charts.labels(found)) if row["examples"]]
    assert len(dots) == 10
    assert dots[0] == {"site": "low", "label": "1 – 10.9", "examples": 10}
    shown = texts(found)
    assert "90.1 – 100" in shown
    assert any("between" in text for text in shown)


def test_equal_numbers_have_one_range() -> None:
    """Nothing to divide by zero."""
    given = {name: (np.zeros((6, 1)), np.full(6, 2.5)) for name in "ab"}
    found = portrait(from_arrays(given, validation=0, target="number"))
    assert found.counts.sum(1).tolist() == [5, 5]
    assert found.divergence.tolist() == [0, 0]
    ET.fromstring(svg(charts.picture(found)))
    assert "2.5 – 2.5" in terminal(found).plain


def test_the_page_is_complete() -> None:
    """It loads nothing: no address is fetched, and its policy would not let it."""
    text = page(THREE, portrait(THREE))
    assert text.startswith("<!doctype html>")
    assert "src=" not in text.partition("<script>")[0]
    assert "default-src 'none'" in text
    assert "connect-src 'none'" in text


def test_png() -> None:
    assert png(charts.picture(portrait(THREE))).startswith(b"\x89PNG")
