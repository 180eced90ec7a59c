"""The library as a person calls it."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import fedprior
from fedprior import FedpriorError, Participation, Train, tree
from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorWarning
from fedprior.experiment.journal import Event
from fedprior.experiment.result import Result
from fedprior.methods.fedavg import FedAvg
from fedprior.methods.fedavg_ft import FedAvgFT
from fedprior.methods.fedmap import FedMAP
from fedprior.methods.local import Local
from fedprior.methods.pfedme import PFedMe
from support import CLASSES, FEATURES, federation, same

QUICK = Train(lr=0.1, epochs=1, batch_size=8)


@pytest.fixture(scope="module")
def data() -> Federation:
    return federation(dtype=torch.float32)


@pytest.fixture(scope="module")
def synthetic() -> Federation:
    """It carries a recipe: Adam at 1e-4, batches of 64, ten epochs, the perceptron 30-32-16-1."""
    loaded: Federation = fedprior.data.load("synthetic", clients=3, samples=40)
    return loaded


def test_the_example_of_the_package_works() -> None:
    """The code under the first line of the docstring, with fewer rounds, prints the table of the ten clients."""
    assert fedprior.__doc__ is not None
    code = fedprior.__doc__.partition("\n")[2]
    assert "rounds=50" in code
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code.replace("rounds=50", "rounds=2"), {})
    assert "accuracy" in output.getvalue()
    assert all(f"client-{k:02d}" in output.getvalue() for k in range(1, 11))


def test_every_public_name_exists() -> None:
    assert all(hasattr(fedprior, name) for name in fedprior.__all__)


def test_divergence_is_said_once(data: Federation) -> None:
    """A step of 1e30 overflows; the run ends all the same, and says what to do."""
    wild, words = (
        FedAvg(train=Train(lr=1e30, epochs=3, batch_size=8)),
        r"^FedAvg is diverging in round 1: \d of \d clients",
    )
    with pytest.warns(FedpriorWarning, match=words) as found:
        fedprior.run(wild, data, model={"name": "mlp", "hidden": [7]}, rounds=4)
    assert len([w for w in found if issubclass(w.category, FedpriorWarning)]) == 1
    assert str(found[0].message).endswith("lower train.lr, or the method's own steps.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        participation = Participation(rule="fraction", rate=0.4)
        fedprior.run(FedAvg(train=QUICK), data, rounds=3, participation=participation)  # the others have no loss at all


def test_compare_puts_local_and_fine_tuning_beside(data: Federation) -> None:
    found = fedprior.compare([FedMAP(train=QUICK)], data, rounds=2)
    assert next(iter(found)) == "local"
    assert set(found) == {"local", "fedavg_ft", "fedmap"}
    assert found["local"].reference is None
    for name in ("fedavg_ft", "fedmap"):
        assert found[name].reference is found["local"]
        assert math.isfinite(found[name].gain().mean)
    assert {r.method.train for r in found.values()} == {QUICK}, "the same budget for all"


def test_compare_without_baselines(data: Federation) -> None:
    assert list(fedprior.compare([FedAvg(train=QUICK)], data, rounds=1, baselines=False)) == ["fedavg"]


def test_baselines_that_are_given_are_kept(data: Federation) -> None:
    """With their own options; Local still runs first."""
    methods: list[AnyMethod] = [FedAvg(train=QUICK), FedAvgFT(ft_epochs=1, train=QUICK), Local(train=QUICK)]
    found = fedprior.compare(methods, data, rounds=1)
    assert list(found) == ["local", "fedavg_ft", "fedavg"]
    assert found["fedavg_ft"].method.hyperparameters() == {"ft_epochs": 1}


def test_two_variants_of_a_method_do_not_become_one(data: Federation) -> None:
    """Both are run, or they are refused; none is dropped in silence."""
    try:
        found = fedprior.compare(
            [FedMAP(sigma2=0.1, train=QUICK), FedMAP(sigma2=10, train=QUICK)], data, rounds=1, baselines=False
        )
    except FedpriorError:
        return
    assert {r.method.hyperparameters()["sigma2"] for r in found.values()} == {0.1, 10}


class Net(nn.Module):
    """A network of the user's own, with a layer that has no stacked form."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(OrderedDict(a=nn.Linear(FEATURES, 5), norm=nn.LayerNorm(5), act=nn.Tanh()))
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.body(x))
        return out


def test_a_network_of_ones_own(data: Federation) -> None:
    """It is trained per client, saved under its own names, and the user's object is not touched."""
    net = Net()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    result = fedprior.run(FedMAP(train=QUICK), data, model=net, rounds=2)
    arrays = result.arrays("site-3")
    assert set(arrays) == {f"w/{name}" for name in before}
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    net.load_state_dict({k.removeprefix("w/"): torch.from_numpy(v) for k, v in arrays.items()})
    x, _ = data.test.client(3)
    with torch.no_grad():
        expected = net(x).softmax(1).numpy()
    np.testing.assert_allclose(result.predict("site-3", x), expected, rtol=1e-5, atol=1e-6)


def test_a_network_with_dropout_is_refused(data: Federation) -> None:
    with pytest.raises(FedpriorError, match="dropout"):
        fedprior.run(FedAvg(), data, model=nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)), rounds=1)


def test_a_model_section(data: Federation) -> None:
    """4-7-3 has 7·4 + 7 + 3·7 + 3 = 59 weights; without a section and without a recipe it is softmax: 4·3 + 3."""
    found = fedprior.run(FedAvg(train=QUICK), data, model={"name": "mlp", "hidden": [7]}, rounds=1)
    assert found.summary["parameters"] == 59
    assert fedprior.run(FedAvg(train=QUICK), data, rounds=1).summary["parameters"] == 15


@pytest.mark.parametrize("model", [{"name": "mpl"}, {"name": "mlp", "hiden": [3]}, {"hidden": [3]}])
def test_a_wrong_model_section(model: dict[str, Any], data: Federation) -> None:
    with pytest.raises(FedpriorError) as error:
        fedprior.run(FedAvg(), data, model=model, rounds=1)
    assert "\n" not in str(error.value)


def test_the_recipe_serves_a_method_without_training_of_its_own(synthetic: Federation) -> None:
    result = fedprior.run(FedMAP(), synthetic, rounds=1)
    assert result.method.train == Train("adam", lr=1e-4, batch_size=64, epochs=10)
    assert result.summary["parameters"] == 1537


@pytest.mark.parametrize("train", [QUICK, Train()])
def test_training_that_a_method_was_given_beats_the_recipe(train: Train, synthetic: Federation) -> None:
    """Even when it happens to equal the defaults."""
    result = fedprior.run(FedMAP(train=train), synthetic, rounds=1)
    assert result.method.train == train
    assert result.summary["train"]["lr"] == train.lr


def test_a_run_leaves_the_federation_as_it_was(data: Federation) -> None:
    before = data.fingerprint()
    fedprior.run(FedMAP(train=QUICK), data, rounds=1, precision="float64")
    assert data.fingerprint() == before
    assert data.train.x.dtype is torch.float32


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 0},
        {"rounds": "many"},
        {"seed": -1},
        {"workers": 0},
        {"chunk": 0},
        {"precision": "float16"},
        {"participation": {"rate": 2}},
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], data: Federation) -> None:
    with pytest.raises(FedpriorError) as error:
        fedprior.run(FedAvg(), data, **settings)
    assert next(iter(settings)) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_misspelt_setting_names_the_nearest(data: Federation) -> None:
    with pytest.raises(FedpriorError, match="did you mean 'rounds'"):
        fedprior.run(FedAvg(), data, round=3)


def test_participation_and_observers(data: Federation) -> None:
    """Half of seven clients report (3.5 rounds to 4), and the observer hears of both rounds."""
    seen: list[Event] = []
    fedprior.run(
        FedAvg(train=QUICK),
        data,
        rounds=2,
        participation=Participation(rule="fraction", rate=0.5),
        observe=seen.append,
    )
    assert [e["reporters"] for e in seen if e["kind"] == "round"] == [4, 4]
    assert seen[-1]["kind"] == "evaluation"


def test_the_same_seed_is_the_same_run(data: Federation) -> None:
    one, again, other = (fedprior.run(FedMAP(train=QUICK), data, rounds=2, seed=s).models for s in (1, 1, 2))
    assert same(one, again)
    assert not same(one, other)


def test_a_method_without_a_task_says_what_to_do() -> None:
    from fedprior.rng import Key

    with pytest.raises(FedpriorError, match=r"fedprior\.run"):
        FedAvg().init_server(Key.from_seed(0))


def test_who_forgets_trains_to_report_or_to_be_evaluated(data: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """pFedMe starts every round from w: training the others in between changes nothing but rounding (other stacks).

    Seven clients of whom three report, six rounds, evaluations after 3 and 6: 3, 3, 7, 3, 3, 7 train.
    """

    def run() -> Result:
        rule = Participation(rule="fraction", rate=0.4)
        return fedprior.run(PFedMe(train=QUICK), data, rounds=6, eval_every=3, participation=rule)

    lazy = run()
    monkeypatch.setattr(PFedMe, "memoryless", False)
    eager = run()
    assert [e["trainers"] for e in lazy.journal.events if e["kind"] == "round"] == [3, 3, 7, 3, 3, 7]
    assert [e["trainers"] for e in eager.journal.events if e["kind"] == "round"] == [7] * 6
    judged = [[e for e in r.journal.events if e["kind"] == "evaluation"] for r in (lazy, eager)]
    assert [len(events) for events in judged] == [2, 2]
    for ours, theirs in zip(tree.leaves(lazy.models), tree.leaves(eager.models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


# What is wrong is one sentence


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: FedMAP(sigma=3), "unknown option 'sigma' in method 'fedmap': did you mean 'sigma2'?"),  # type: ignore[call-arg]
        (lambda: FedMAP(sigma2=-1), "method 'fedmap': sigma2 = -1 is not valid: input should be greater than 0."),
        (lambda: FedMAP(3), "method 'fedmap' takes its options by name: write NAME=3."),  # type: ignore[call-arg, arg-type]
        (lambda: Train(lr=-1), "train: lr = -1 is not valid: input should be greater than 0."),
        (lambda: Train(lrr=1), "unknown option 'lrr' in train: did you mean 'lr'?"),  # type: ignore[call-arg]
        (lambda: Participation(rule="x"), "participation: rule = 'x' is not valid: "),  # type: ignore[arg-type]
        (lambda: Participation(rte=1), "unknown option 'rte' in participation: did you mean 'rate'?"),  # type: ignore[call-arg]
    ],
)
def test_wrong_options_are_one_sentence(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(FedpriorError) as error:
        wrong()
    assert str(error.value).startswith(told)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda d: fedprior.run(FedAvg(), d, roundz=3),
            "'roundz' in the settings: did you mean 'rounds'?",
        ),
        (lambda d: fedprior.run(FedAvg(), d, rounds=0), "settings: rounds = 0 is not valid"),
        (
            lambda d: fedprior.run(cast("Any", "fedavg"), d),
            "'fedavg' is not a method: give an object such as FedMAP(sigma2=15).",
        ),
        (lambda d: fedprior.run(cast("Any", FedAvg), d), "is not a method"),
        (lambda d: fedprior.run(FedAvg(), cast("Any", {"a": 1})), "the data are of type dict, not a federation"),
        (lambda d: fedprior.run(FedAvg(), d, model=cast("Any", 5)), "model = 5 is not a network"),
        (lambda d: fedprior.run(FedAvg(), d, model="mpl"), "did you mean 'mlp'?"),
        (lambda d: fedprior.compare([], d, baselines=False), "there is nothing to compare"),
        (lambda d: fedprior.compare(cast("Any", ["fedavg"]), d), "'fedavg' is not a method"),
        (lambda d: fedprior.compare([FedAvg()], d, roundz=3), "did you mean 'rounds'?"),
        (lambda d: fedprior.resume("nowhere"), "'nowhere' holds no run to resume"),
    ],
)
def test_wrong_calls_are_one_sentence(call: Callable[[Any], object], told: str, data: Federation) -> None:
    with pytest.raises(FedpriorError) as error:
        call(data)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_by_its_name(data: Federation) -> None:
    """4-100-3 has 4·100 + 100 + 100·3 + 3 = 803 weights."""
    assert fedprior.run(FedAvg(train=QUICK), data, model="mlp", rounds=1).summary["parameters"] == 803


# What is shown


def test_a_result_in_a_line_and_in_a_page(data: Federation) -> None:
    """Short whatever the names are, and with names that are no markup."""
    named = replace(data, clients=("<b>x</b>", *data.clients[1:]), name="<i>our & " + 100 * "long " + "data</i>")
    result = fedprior.run(FedAvg(train=QUICK), named, rounds=1)
    assert len(repr(result)) < 400
    assert "FedAvg" in repr(result)
    assert "round 1 of 1" in repr(result)
    page = result._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<i>" not in page


def test_a_page_shows_the_first_clients_of_many() -> None:
    many = federation((12,) * 35, dtype=torch.float32)
    page = fedprior.run(FedAvg(train=QUICK), many, rounds=1)._repr_html_()
    assert page.count("<tr>") == 30 + 1  # and the name of the index, which has a row of its own
    assert "5 more" in page
