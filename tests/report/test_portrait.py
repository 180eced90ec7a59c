"""Pictures of federations: what they show, in the terminal, as SVG and as PNG."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from fedprior.data.federation import Federation, from_arrays
from fedprior.data.target import Number
from fedprior.errors import FedpriorError
from fedprior.report.png import png
from fedprior.report.portrait import portrait, terminal
from fedprior.report.svg import page, svg

SVG = "{http://www.w3.org/2000/svg}"


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
    ET.fromstring(svg(single))


def test_svg_has_a_dot_for_every_count() -> None:
    """Areas go with counts: radii of 8 and 8 are equal; of 4 and 16, as 1 to 2. Names are escaped."""
    root = ET.fromstring(svg(portrait(THREE)))
    dots = root.findall(f"{SVG}circle")
    assert len(dots) == 4
    assert {title.text for dot in dots if (title := dot.find(f"{SVG}title")) is not None} == {
        "site<0>, 0: 8",
        "site<1>, 1: 8",
        "site<2>, 0: 8",
        "site<2>, 1: 8",
    }
    other = ET.fromstring(svg(portrait(federation([(4, 16), (0, 16)]))))
    radii = [float(dot.attrib["r"]) for dot in other.findall(f"{SVG}circle")]
    assert radii[0] / radii[1] == pytest.approx(0.5, abs=0.01)


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


def test_pictures_of_a_number() -> None:
    """A line and a row of dots for every range, within the width; the same in SVG."""
    found = portrait(numbers())
    lines = terminal(found, 80).plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].strip() == "1 – 10.9 █"
    assert lines[11].strip() == "90.1 – 100   █"
    root = ET.fromstring(svg(found))
    tips = [title.text for dot in root.findall(f"{SVG}circle") if (title := dot.find(f"{SVG}title")) is not None]
    assert len(tips) == 10
    assert tips[0] == "low, 1 – 10.9: 10"
    text = "".join(root.itertext())
    assert "90.1 – 100" in text
    assert "between" in text


def test_equal_numbers_have_one_range() -> None:
    """Nothing to divide by zero."""
    given = {name: (np.zeros((6, 1)), np.full(6, 2.5)) for name in "ab"}
    found = portrait(from_arrays(given, validation=0, target="number"))
    assert found.counts.sum(1).tolist() == [5, 5]
    assert found.divergence.tolist() == [0, 0]
    ET.fromstring(svg(found))
    assert "2.5 – 2.5" in terminal(found).plain


def test_the_page_is_complete() -> None:
    text = page(portrait(THREE))
    assert text.startswith("<!doctype html>")
    assert "<svg" in text
    assert "src=" not in text
    assert "<script" not in text


def test_png() -> None:
    pytest.importorskip("matplotlib")
    content = png(portrait(THREE))
    assert content.startswith(b"\x89PNG")


def test_png_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FedpriorError, match=r"need matplotlib: install it with `pip install 'fedprior\[plot\]'`"):
        png(portrait(THREE))
