"""Tables for the terminal: everything that they promise is in the text, and nothing is cut off."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table

import fedprior
from fedprior.data.federation import Federation
from fedprior.experiment import Result
from fedprior.experiment.catalogue import catalogue
from fedprior.local import Train
from fedprior.methods.fedavg import FedAvg
from fedprior.methods.fedmap import FedMAP
from fedprior.metrics import METRICS
from fedprior.protocol import METHODS
from fedprior.report import tables
from support import federation

TRAIN = Train(lr=0.1, epochs=1, batch_size=8)


def render(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table)
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines())
    return text


def rows(text: str) -> dict[str, list[str]]:
    """The words of each line by the first of them."""
    return {words[0]: words[1:] for line in text.splitlines() if (words := line.split())}


@pytest.fixture(scope="module")
def data() -> Federation:
    return federation(sizes=(90, 80, 70, 60, 50, 40), dtype=torch.float32)


@pytest.fixture(scope="module")
def results(data: Federation) -> dict[str, Result]:
    return fedprior.compare([FedAvg(train=TRAIN), FedMAP(train=TRAIN)], data, rounds=3)


def with_test_rows(result: Result, accuracy: list[float]) -> Result:
    """The result as if client i had got the first `accuracy[i]` of its test examples right."""
    made = []
    for c, share in enumerate(accuracy):
        _, y = result.federation.test.client(c)
        right = torch.arange(len(y)) < round(share * len(y))
        said = torch.where(right, y, (y + 1) % result.federation.classes)
        made.append(torch.nn.functional.one_hot(said, result.federation.classes).float().mul(2).log_softmax(1).numpy())
    return replace(result, predictions={"test": made})


# Clients


@pytest.mark.parametrize("width", [80, 120])
def test_every_client_and_the_mean_are_in_the_table(width: int, data: Federation, results: dict[str, Result]) -> None:
    """Sizes, both accuracies in percent, and the mean that the summary has, below all the clients."""
    result = results["fedmap"]
    text = render(tables.clients(result), width)
    found = rows(text)
    for c, client in enumerate(data.clients):
        frame = result.clients.loc[client]
        expected = [str(data.train.size[c]), str(data.test.size[c])]
        expected += [f"{100 * frame['local_accuracy']:.1f}", f"{100 * frame['accuracy']:.1f}"]
        assert found[client][:4] == expected
    last = result.summary["last"]["personal"]["test"]
    assert found["mean"][0] == str(sum(data.train.size))
    assert found["mean"][3] == f"{100 * last['accuracy']['mean']:.1f}"
    assert found["mean"][5] == f"{last['nll']['mean']:.3f}"
    assert text.index("mean") > text.index(data.clients[-1])
    assert "…" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_gains_have_signs(width: int, results: dict[str, Result]) -> None:
    """Local gets half of every test split right; the method all, half, or none: +50, 0 and -50 points.

    The first three tests have 18, 16 and 14 examples. Where method and reference always agree, or differ on the same
    half, the bootstrap's sign is certain: the interval of +50 lies above zero, that of -50 below.
    """
    local = with_test_rows(results["local"], [0.5] * 6)
    result = replace(with_test_rows(results["fedmap"], [1, 0.5, 0, 1, 1, 1]), reference=local)
    text = render(tables.clients(result), width)
    found = {name: words[6:] for name, words in rows(text).items() if name.startswith("site")}
    assert found["site-0"][0] == "+50.0"
    assert found["site-0"][1].startswith("[+")
    assert found["site-1"] == ["+0.0", "[+0.0,", "+0.0]"]
    assert found["site-2"][0] == "-50.0"
    assert found["site-2"][2].startswith("-")
    assert "beats Local at 67% of the clients and loses at 17%" in " ".join(text.split())


def test_without_a_reference_there_is_no_gain(results: dict[str, Result], data: Federation) -> None:
    text = render(tables.clients(results["local"]), 80)
    assert "gain" not in text
    assert all(client in text for client in data.clients)


@pytest.mark.parametrize("width", [80, 120])
def test_the_widest_client_table_is_not_cut(width: int, results: dict[str, Result]) -> None:
    """All right beside all wrong: three digits in every column, and a longer title than FedMAP's."""
    local = with_test_rows(results["local"], [1] * 6)
    result = replace(with_test_rows(results["fedavg_ft"], [0.2] * 6), reference=local)
    assert "…" not in render(tables.clients(result), width)


def test_many_clients_are_cut_and_said_to_be() -> None:
    """35 clients: thirty rows and a line about the five others; the mean is of all."""
    many = federation(sizes=(12,) * 35, dtype=torch.float32)
    text = render(tables.clients(fedprior.run(FedAvg(train=TRAIN), many, rounds=1)), 80)
    assert "site-29" in text
    assert "site-30" not in text
    assert "… 5 more" in text
    assert rows(text)["mean"][0] == str(sum(many.train.size))


# Comparisons


@pytest.mark.parametrize(("width", "wide"), [(80, False), (120, True)])
def test_a_comparison_has_every_method(width: int, wide: bool, results: dict[str, Result]) -> None:
    text = render(tables.comparison(results, wide=wide), width)
    found = rows(text)
    assert "…" not in text
    for result in results.values():
        last = result.summary["last"]["personal"]["test"]
        words = found[result.method.about.title]
        assert words[0] == f"{100 * last['accuracy']['mean']:.1f}"
        assert words[2] == f"{100 * last['accuracy']['std']:.1f}"
        assert words[4] == f"{last['nll']['mean']:.3f}"
        if result.reference is not None:
            assert words[6] == f"{100 * result.gain().mean:+.1f}"
    assert ("sent" in text) is wide
    assert "6 clients, 3 rounds" in " ".join(text.split())


@pytest.mark.parametrize(("width", "wide"), [(80, False), (120, True)])
def test_the_widest_comparison_is_not_cut(width: int, wide: bool, results: dict[str, Result]) -> None:
    """Gains of two digits, a loss above ten, megabytes and half an hour: all at once, and all quite usual."""

    def stretched(result: Result) -> Result:
        usual = {"mean": 0.987, "std": 0.123, "worst_decile": 0.876}
        personal: dict[str, Any] = dict.fromkeys(METRICS, usual) | {"nll": {**usual, "mean": 12.345}}
        summary = {
            **result.summary,
            "last": {"personal": {"test": personal}, "global": {"test": {"accuracy": usual}}},
            "bytes": {"up": 3 * 400e6, "down": 3 * 400e6},
            "timing": {"seconds": 1834.5},
        }
        return replace(result, summary=summary)

    local = with_test_rows(stretched(results["local"]), [0.8] * 6)
    compared = {"local": local}
    for name in ("fedavg_ft", "fedavg", "fedmap"):
        compared[name] = replace(with_test_rows(stretched(results[name]), [0.3] * 6), reference=local)
    gain = compared["fedmap"].gain()
    expected = ["98.7", "±", "12.3", "98.7", "12.345", "98.7"]
    expected += f"{100 * gain.mean:+.1f} [{100 * gain.mean_low:+.1f}, {100 * gain.mean_high:+.1f}] 0%".split()
    expected += ["87.6", "98.7", "800.0", "MB", "1834.5", "s"] if wide else []
    text = render(tables.comparison(compared, wide=wide), width)
    assert "…" not in text
    assert rows(text)["FedAvg-FT"] == expected


def test_local_has_no_gain_over_itself(results: dict[str, Result]) -> None:
    text = render(tables.comparison(results, wide=False), 80)
    assert "[" not in " ".join(rows(text)["Local"])
    assert "[" in " ".join(rows(text)["FedMAP"])


# The rest


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.8123, "81.2"), (1.0, "100.0"), (0.0, "0.0"), (float("nan"), "–"), (None, "–"), (float("inf"), "–")],
)
def test_percent(value: float | None, expected: str) -> None:
    assert tables.percent(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.12345, "0.123"), (float("inf"), "–"), (None, "–")])
def test_number(value: float | None, expected: str) -> None:
    assert tables.number(value) == expected


@pytest.mark.parametrize(
    ("gain", "text", "style"),
    [
        ((0.05, 0.01, 0.09), "+5.0 [+1.0, +9.0]", "green"),
        ((-0.05, -0.09, -0.01), "-5.0 [-9.0, -1.0]", "red"),
        ((0.05, -0.01, 0.09), "+5.0 [-1.0, +9.0]", ""),
        ((float("nan"), float("nan"), float("nan")), "–", ""),
    ],
)
def test_signed(gain: tuple[float, float, float], text: str, style: str) -> None:
    """Green and red only where the whole interval is on one side of zero."""
    found = tables.signed(*gain)
    assert (found.plain, found.style) == (text, style)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (1e9, "1.0 GB"), (5e12, "5000.0 GB")],
)
def test_size(count: float, expected: str) -> None:
    assert tables.size(count) == expected


def test_methods() -> None:
    text = render(tables.methods(), 160)
    assert all(name in text for name in METHODS)


def test_federation(data: Federation) -> None:
    """Every client with its sizes and how often each label occurs in training."""
    text = render(tables.federation(data), 80)
    found = rows(text)
    for c, client in enumerate(data.clients):
        assert found[client][:3] == [str(data.split(s).size[c]) for s in ("train", "validation", "test")]
        assert found[client][3:] == [f"{k}:{n}" for k, n in enumerate(data.label_counts()[c])]


def test_by_client_shows_every_method_and_marks_sure_differences(results: dict[str, Result]) -> None:
    """A column a method; a mark exactly where the interval of the gain leaves zero out."""
    text = render(tables.by_client(results), 120)
    found = rows(text)
    for client in results["local"].federation.clients:
        cells = found[client][1:]
        assert len(cells) == len(results)
        for cell, result in zip(cells, results.values(), strict=True):
            row = result.clients.loc[client]
            assert cell.rstrip("▲▼") == f"{100 * row['accuracy']:.1f}"
            low, high = row.get("gain_low", 0.0), row.get("gain_high", 0.0)
            assert cell.endswith("▲") == (low > 0)
            assert cell.endswith("▼") == (high < 0)


def test_catalogue_has_the_sizes_of_the_messages() -> None:
    """FedAvg with 79,510 float32 weights: 318,040 bytes down, and a float64 count more up."""
    entries = {e["name"]: e for e in catalogue()}
    assert set(entries) == set(METHODS)
    assert (entries["fedavg"]["bytes_down"], entries["fedavg"]["bytes_up"]) == (318_040, 318_048)
    assert (entries["local"]["bytes_down"], entries["local"]["bytes_up"]) == (0, 0)
