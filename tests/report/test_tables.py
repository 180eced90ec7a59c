"""Tables for the terminal: everything that they promise is in the text, and nothing is cut off."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import norm

import fedprior
from fedprior.data.federation import Federation, from_arrays
from fedprior.data.target import Number
from fedprior.experiment import Comparison, Result
from fedprior.experiment.catalogue import catalogue
from fedprior.experiment.journal import Journal
from fedprior.methods.fedavg import FedAvg
from fedprior.methods.fedmap import FedMAP
from fedprior.metrics import cohort_metrics, metrics_of
from fedprior.protocol import METHODS
from fedprior.report import tables
from fedprior.training import Train
from support import CLASSES, federation

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
def results(data: Federation) -> Comparison:
    return fedprior.compare([FedAvg(train=TRAIN), FedMAP(train=TRAIN)], data, rounds=3)


def with_test_rows(result: Result, accuracy: list[float]) -> Result:
    """The result as if client i had got the first `accuracy[i]` of its test examples right."""
    made = []
    for c, share in enumerate(accuracy):
        _, y = result.federation.test.client(c)
        right = torch.arange(len(y)) < round(share * len(y))
        said = torch.where(right, y, (y + 1) % CLASSES)
        made.append(torch.nn.functional.one_hot(said, CLASSES).float().mul(2).log_softmax(1).numpy())
    return replace(result, predictions={"test": made})


# Clients


@pytest.mark.parametrize("width", [80, 120])
def test_every_client_and_the_mean_are_in_the_table(width: int, data: Federation, results: Comparison) -> None:
    """Sizes, both accuracies in percent, and the mean that the summary has, below all the clients."""
    result = results["fedmap"]
    text = render(tables.clients(result), width)
    found = rows(text)
    for c, client in enumerate(data.clients):
        frame = result.clients.loc[client]
        expected = [str(data.train.size[c]), str(data.test.size[c])]
        expected += [f"{100 * frame['local_accuracy']:.1f}", f"{100 * frame['accuracy']:.1f}"]
        assert found[client][:4] == expected
    last = result.scores
    assert found["mean"][0] == str(sum(data.train.size))
    assert found["mean"][3] == f"{100 * last['accuracy']['mean']:.1f}"
    assert found["mean"][5] == f"{last['nll']['mean']:.3f}"
    assert text.index("mean") > text.index(data.clients[-1])
    assert "…" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_gains_have_signs(width: int, results: Comparison) -> None:
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


def test_without_a_reference_there_is_no_gain(results: Comparison, data: Federation) -> None:
    text = render(tables.clients(results["local"]), 80)
    assert "gain" not in text
    assert all(client in text for client in data.clients)


@pytest.mark.parametrize("width", [80, 120])
def test_the_widest_client_table_is_not_cut(width: int, results: Comparison) -> None:
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
def test_a_comparison_has_every_method(width: int, wide: bool, results: Comparison) -> None:
    text = render(tables.comparison(results, wide=wide), width)
    found = rows(text)
    assert "…" not in text
    for result in results.values():
        last = result.scores
        words = found[result.method.about.title]
        assert words[0] == f"{100 * last['accuracy']['mean']:.1f}"
        assert words[2] == f"{100 * last['accuracy']['std']:.1f}"
        assert words[4] == f"{last['nll']['mean']:.3f}"
        if result.reference is not None:
            assert words[6] == f"{100 * result.gain().mean:+.1f}"
    assert ("sent" in text) is wide
    assert "6 clients, 3 rounds" in " ".join(text.split())


@pytest.mark.parametrize(("width", "wide"), [(80, False), (120, True)])
def test_the_widest_comparison_is_not_cut(width: int, wide: bool, results: Comparison) -> None:
    """Gains of two digits, a loss above ten, megabytes and half an hour: all at once, and all quite usual."""

    def stretched(result: Result) -> Result:
        usual = {"mean": 0.987, "std": 0.123, "worst_decile": 0.876}
        personal: dict[str, Any] = dict.fromkeys(metrics_of(result.federation.target), usual)
        personal |= {"nll": {**usual, "mean": 12.345}}
        summary = {
            **result.summary,
            "selected": {"round": 3, "personal": {"test": personal}, "global": {"test": {"accuracy": usual}}},
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
    expected += ["87.6", "98.7", "800.0", "MB", "3", "1834.5", "s"] if wide else []
    text = render(tables.comparison(compared, wide=wide), width)
    assert "…" not in text
    assert rows(text)["FedAvg-FT"] == expected


def test_local_has_no_gain_over_itself(results: Comparison) -> None:
    text = render(tables.comparison(results, wide=False), 80)
    assert "[" not in " ".join(rows(text)["Local"])
    assert "[" in " ".join(rows(text)["FedMAP"])


# What cannot be, and what diverged


def with_predictions(result: Result, made: list[NDArray[Any]]) -> Result:
    """The result as if its models had predicted this on test: metrics and summary follow from it."""
    metrics = metrics_of(result.federation.target)
    found = cohort_metrics(metrics, list(zip(made, result.federation.labels("test"), strict=True)))
    journal = Journal(None)
    journal.evaluation(result.selected, "personal", "test", result.federation.clients, found)
    told: dict[str, Any] = {**found.summary, "evaluated": found.evaluated, "diverged": found.diverged}
    summary = {**result.summary, "selected": {**result.summary["selected"], "personal": {"test": told}}}
    return replace(result, predictions={"test": made}, journal=journal, summary=summary)


@pytest.fixture(scope="module")
def small() -> Comparison:
    """Three clients of two classes: one with both on test, one with a single class, one without test examples."""
    rng = np.random.default_rng(0)
    labels = {"both": [0, 1, 0, 1], "single": [1, 1], "none": [0]}
    clients = {name: (rng.normal(size=(20, 3)), np.arange(20) % 2) for name in labels}
    tests = {name: (rng.normal(size=(len(y), 3)), np.array(y, dtype=np.int64)) for name, y in labels.items()}
    data = from_arrays(clients, tests=tests, classes=2).to(torch.float32)
    data = replace(data, test=replace(data.test, size=(4, 2, 0)))
    return fedprior.compare([FedAvg(train=TRAIN)], data, rounds=2, baselines=True)


def test_undefined_is_a_dash(small: Comparison) -> None:
    """AUROC needs both classes, and everything needs examples; the gain of a client without them is none either."""
    found = rows(render(tables.clients(small["fedavg"]), 100))
    assert found["single"][4] == "–"
    assert "–" not in found["both"]
    assert found["none"] == ["18", "0", "–", "–", "–", "–", "–"]
    assert "–" not in found["mean"], "the mean is of those who have it"
    by_client = rows(render(tables.by_client(small), 100))
    assert by_client["none"] == ["18", "–", "–", "–"]


def test_diverged_is_said_and_not_averaged_away(small: Comparison) -> None:
    """One client's model is nan: it, and every mean of it, is called so; others keep their numbers."""
    fine = small["fedavg"]
    made = [values.copy() for values in fine.predictions["test"]]
    made[1][:] = np.nan
    broken = with_predictions(fine, made)
    found = rows(render(tables.clients(broken), 120))
    assert found["single"][3:] == ["diverged"] * 4
    assert found["both"] == rows(render(tables.clients(fine), 120))["both"]
    assert found["none"][2:] == ["–"] * 5
    assert found["mean"][2] != "diverged", "Local is fine"
    assert found["mean"][3:] == ["diverged"] * 4
    compared = rows(render(tables.comparison({"local": small["local"], "fedavg": broken}), 140))
    assert compared["FedAvg"][:5] == ["diverged"] * 5
    assert "diverged" not in compared["Local"]
    by_client = rows(render(tables.by_client({"local": small["local"], "fedavg": broken}), 120))
    assert by_client["single"][2] == "diverged"


def test_a_reference_that_diverged_leaves_no_gain(small: Comparison) -> None:
    """The method's own numbers stand; its gain over a Local that is nan is not a number."""
    made = [np.full_like(values, np.nan) for values in small["local"].predictions["test"]]
    result = replace(small["fedavg"], reference=with_predictions(small["local"], made))
    found = rows(render(tables.clients(result), 120))
    assert (found["both"][2], found["both"][-1]) == ("diverged", "diverged")
    assert found["both"][3] == rows(render(tables.clients(small["fedavg"]), 120))["both"][3]
    assert (found["mean"][2], found["mean"][-1]) == ("diverged", "diverged")


def test_a_shared_model_that_diverged(small: Comparison) -> None:
    """Its mean is nan in memory and null in a file; either way it is said."""
    result = small["fedavg"]
    for mean in (float("nan"), None):
        test = {"accuracy": {"mean": mean}, "diverged": 2}
        summary = {**result.summary, "selected": {**result.summary["selected"], "global": {"test": test}}}
        text = render(tables.comparison({"fedavg": replace(result, summary=summary)}), 140)
        assert "diverged" in rows(text)["FedAvg"]


def test_the_selected_round_is_shown(results: Comparison) -> None:
    """Where it is not the last; the comparison has a column of it."""
    result = results["fedmap"]
    chosen = replace(result, summary={**result.summary, "selected": {**result.summary["selected"], "round": 2}})
    title = str(tables.clients(replace(chosen, journal=relabelled(result, 2))).title)
    assert title.endswith(", of round 2 of 3")
    last = replace(result, summary={**result.summary, "selected": {**result.summary["selected"], "round": 3}})
    assert "of round" not in str(tables.clients(replace(last, journal=relabelled(result, 3))).title)
    found = rows(render(tables.comparison({"fedmap": chosen}), 140))
    assert found["FedMAP"][-3] == "2"


def relabelled(result: Result, round: int) -> Journal:
    """The journal as if the selected round had another number."""
    journal = Journal(None)
    journal.rows[:] = [{**row, "round": round} for row in result.journal.rows if row["round"] == result.selected]
    return journal


# Numbers


@pytest.fixture(scope="module")
def regression() -> Comparison:
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(4):
        x = rng.normal(size=(60, 3))
        clients[f"site-{k}"] = (x, 120 + 15 * x @ [1, 0.5, -0.3] + 10 * k + 3 * rng.normal(size=60))
    data = from_arrays(clients, target=Number("mmHg"))
    return fedprior.compare([FedAvg(train=TRAIN)], data, rounds=3)


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_of_numbers(width: int, regression: Comparison) -> None:
    """RMSE beside Local's, NLL and MAE, from the predictions; gains are in nats of the NLL."""
    result = regression["fedavg"]
    text = render(tables.clients(result), width)
    found, data = rows(text), result.federation
    assert "test RMSE of each personal model" in text
    assert [word for word in ("Local", "NLL", "MAE") if word in text] == ["Local", "NLL", "MAE"]
    for c, client in enumerate(data.clients):
        mean, log_variance = result.predictions["test"][c].T.astype(np.float64)
        y = data.labels("test")[c]
        theirs = regression["local"].predictions["test"][c][:, 0]
        surprise = -norm(mean, np.exp(log_variance / 2)).logpdf(y).mean()
        rmses = [np.sqrt(np.mean((m - y) ** 2)) for m in (theirs, mean)]
        numbers = [*rmses, surprise, np.abs(mean - y).mean()]
        assert [float(word) for word in found[client][2:6]] == pytest.approx(numbers, abs=2e-3)
        assert found[client][6] == f"{result.clients['gain'][client]:+.3f}"
    assert "Gains in NLL, in nats" in " ".join(text.split())
    assert "…" not in text


@pytest.mark.parametrize(("width", "wide"), [(80, False), (120, True)])
def test_a_comparison_of_numbers(width: int, wide: bool, regression: Comparison) -> None:
    """The first column, the worst tenth and the shared model are all of the RMSE."""
    text = render(tables.comparison(regression, wide=wide), width)
    assert "…" not in text
    assert "RMSE: mean ± std over clients; gain over Local in NLL, in nats" in " ".join(text.split())
    for result in regression.values():
        words, rmse = rows(text)[tables.title_of(result)], result.clients["rmse"]
        assert words[:3] == [f"{rmse.mean():.3f}", "±", f"{rmse.std():.3f}"]
        assert words[3:6] == [f"{result.clients[name].mean():.3f}" for name in ("nll", "mae", "r2")]
        if wide:
            assert f"{rmse.max():.3f}" in words, "the worst of four"


def test_the_federation_of_a_number(regression: Comparison) -> None:
    """A mean and a deviation per client, not counts of ten ranges."""
    data = regression["local"].federation
    text, y = render(tables.federation(data), 160), data.labels("train")[2]
    assert "4 clients, a number to predict" in text
    assert rows(text)["site-2"][-3:] == [f"{y.mean():.4g}", "±", f"{y.std():.3g}"]


def test_numbers_that_diverged(regression: Comparison) -> None:
    fine = regression["fedavg"]
    made = [values.copy() for values in fine.predictions["test"]]
    made[2][0, 1] = np.nan  # one log-variance
    found = rows(render(tables.clients(with_predictions(fine, made)), 120))
    assert found["site-2"][3:] == ["diverged"] * 4
    assert found["mean"][3:] == ["diverged"] * 4


# The rest


@pytest.mark.parametrize(
    ("gain", "text", "style"),
    [
        ((0.05, 0.01, 0.09), "+5.0 [+1.0, +9.0]", "green"),
        ((-0.05, -0.09, -0.01), "-5.0 [-9.0, -1.0]", "red"),
        ((0.05, -0.01, 0.09), "+5.0 [-1.0, +9.0]", ""),
        ((float("nan"), float("nan"), float("nan")), "diverged", ""),
        ((float("inf"), float("nan"), float("nan")), "+inf", ""),
    ],
)
def test_signed(gain: tuple[float, float, float], text: str, style: str) -> None:
    """Green and red only where the whole interval is on one side of zero."""
    found = tables.signed(*gain)
    assert (found.plain, found.style) == (text, style)


def test_signed_without_test_examples_or_in_nats() -> None:
    nan = float("nan")
    assert tables.signed(nan, nan, nan, tested=False).plain == "–"
    assert tables.signed(0.05, -0.01234, 0.09, 1).plain == "+0.050 [-0.012, +0.090]"


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
        _, y = data.train.client(c)
        assert found[client][3:] == [f"{k}:{int((y == k).sum())}" for k in range(CLASSES)]
    assert "6 clients, 3 labels" in text


def test_by_client_shows_every_method_and_marks_sure_differences(results: Comparison) -> None:
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
