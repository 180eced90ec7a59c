"""A run as a document: where values come from, what they become, and what is said when they are wrong."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError
from fedprior.experiment.config import Config, Settings, Setup, parse, read
from fedprior.experiment.participation import Participation
from fedprior.models import MODELS
from fedprior.options import names
from fedprior.training import Train
from support import rounds

SMALL = ("data.clients=3", "data.samples=40")  # of `synthetic`


def config(*overrides: str, method: str = "fedmap", data: str = "synthetic", **sections: Any) -> Config:
    small = SMALL if data == "synthetic" else ()
    return parse({"method": {"name": method}, "data": {"name": data}, **sections}, overrides=[*small, *overrides])


def build(config: Config) -> AnyMethod:
    """All that a run does before its first round."""
    return setup(config).method


def setup(config: Config) -> Setup:
    return config.setup(config.load_data())


def written(document: dict[str, Any], file: Path) -> Config:
    """What a config file with these sections is read as."""
    file.write_text(tomli_w.dumps(document))
    return parse({}, file=file)


def sentence(error: pytest.ExceptionInfo[FedpriorError]) -> str:
    """The message, which must be one line that ends like a sentence."""
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


# Where values come from


def test_flags_beat_overrides_beat_the_file(tmp_path: Path) -> None:
    """`rounds` and `seed` stand in all three, `workers` in two, and a section is merged key by key."""
    file = tmp_path / "run.toml"
    file.write_text(
        'rounds = 1\nseed = 1\nworkers = 1\n[method]\nname = "fedavg"\nsigma2 = 1.0\nomega = "sum"\n'
        '[data]\nname = "digits"\nclients = 4\n'
    )
    found = parse(
        {"method": {"name": "fedmap"}, "data": None, "rounds": 3, "seed": None, "workers": None},
        file=file,
        overrides=["rounds=2", "seed=2", "method.sigma2=2.5"],
    )
    assert (found.rounds, found.seed, found.workers) == (3, 2, 1)
    assert found.method == {"name": "fedmap", "sigma2": 2.5, "omega": "sum"}
    assert found.data == {"name": "digits", "clients": 4}


def test_what_nobody_says_is_the_default() -> None:
    found = config()
    assert found.settings() == Settings()
    assert found.model == {}
    assert found.train == {}


def test_the_last_override_wins() -> None:
    assert config("rounds=3", "rounds=4").rounds == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-4", 1e-4),
        ("true", True),
        ("False", False),
        ("True", True),
        ("inf", float("inf")),
        ("[3, 4]", [3, 4]),
        ("[]", []),
        ('"3"', "3"),
        ("label", "label"),
        ("two words", "two words"),
        ("a/b-c.csv", "a/b-c.csv"),
        ("x=y", "x=y"),
        ("", ""),
    ],
)
def test_types_of_override_values(text: str, value: object) -> None:
    """As in TOML; what is not TOML is a string."""
    found = config(f"data.anything={text}").data["anything"]
    assert found == value
    assert type(found) is type(value)


def test_a_name_alone_chooses_the_section() -> None:
    """`method=fedmap` is short for `method.name=fedmap`, by itself, and before or after the section's options."""
    expected = {"name": "fedmap", "sigma2": 2.0}
    assert parse({}, overrides=["method=fedmap", "data=digits"]).method == {"name": "fedmap"}
    assert parse({}, overrides=["method.sigma2=2.0", "method=fedmap", "data=digits"]).method == expected
    assert parse({}, overrides=["method=fedmap", "method.sigma2=2.0", "data=digits"]).method == expected


def test_a_name_alone_chooses_the_model() -> None:
    assert config("model=mlp").model == {"name": "mlp"}


def test_a_name_alone_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('method = "fedmap"\ndata = "digits"\n')
    assert parse({}, file=file).method == {"name": "fedmap"}
    assert parse({"method": {"name": "fedavg"}, "data": {"name": "csv"}}, file=file).method == {"name": "fedavg"}


# What is wrong


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("round=3", "rounds"),
        ("sed=3", "seed"),
        ("participation.rat=0.5", "rate"),
        ("trian.lr=0.1", "train"),
    ],
)
def test_a_misspelt_key_names_the_nearest(override: str, near: str) -> None:
    with pytest.raises(FedpriorError) as error:
        config(override)
    assert f"did you mean '{near}'?" in sentence(error)


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("method.sigm2=3", "sigma2"),
        ("data.sample=3", "samples"),
        ("model.hiden=[3]", "hidden"),
        ("train.epoch=3", "epochs"),
        ("model.name=ml", "mlp"),
        ("method.name=fedmapp", "fedmap"),
        ("data.name=digts", "digits"),
    ],
)
def test_a_misspelt_option_names_the_nearest(override: str, near: str) -> None:
    with pytest.raises(FedpriorError) as error:
        build(parse({}, overrides=["method.name=fedmap", "data.name=synthetic", *SMALL, override]))
    assert f"did you mean '{near}'?" in sentence(error)


@pytest.mark.parametrize(
    "override",
    [
        "rounds=0",
        "rounds=many",
        "rounds=1.5",
        "seed=-1",
        "workers=0",
        "chunk=0",
        "chunk=some",
        "precision=float16",
        "eval_every=-1",
        "participation.rate=0",
        "participation.rate=1.1",
        "participation.min_reporters=0",
        "participation.rule=some",
        "participation=all",
        "train=5",
    ],
)
def test_settings_out_of_range(override: str) -> None:
    with pytest.raises(FedpriorError) as error:
        config(override)
    assert override.split("=", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1] in sentence(error)


@pytest.mark.parametrize(
    "override",
    [
        "method.sigma2=0",
        "method.sigma2=nan",
        "method.sigma2=wide",
        "method.omega=some",
        "train.lr=0",
        "train.momentum=1",
        "train.epochs=-1",
        "train.batch_size=0",
        "train.optimizer=newton",
        "model.hidden=[many]",
        "data.samples=1",
        "data.skew=some",
        "data.test=0",
        "data.test=0.95",
        "data.test=some",
        "data.validation=-0.1",
        "data.validation=some",
        "data.seed=some",
        "data.seed=1.5",
    ],
)
def test_options_out_of_range(override: str) -> None:
    with pytest.raises(FedpriorError) as error:
        build(config(override))
    assert override.split("=", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1] in sentence(error)


@pytest.mark.parametrize("section", ["method", "data", "model"])
def test_a_name_that_is_no_text(section: str) -> None:
    with pytest.raises(FedpriorError) as error:
        build(parse({}, overrides=["method.name=fedmap", "data.name=synthetic", *SMALL, f"{section}.name=5"]))
    assert "5" in sentence(error)


def test_momentum_with_adam_is_refused_in_words() -> None:
    """Asked for both: the sentence names the two, not the insides of the checker."""
    with pytest.raises(FedpriorError) as error:
        config("train.optimizer=adam", "train.momentum=0.5", data="breast_cancer").build_train(
            config(data="breast_cancer").load_data()
        )
    text = sentence(error)
    assert "momentum applies to sgd only" in text
    assert "ArgsKwargs" not in text


@pytest.mark.parametrize("override", ["rounds", "=3", ".=3", "method.=3", "", "rounds.x=3"])
def test_what_is_no_override(override: str) -> None:
    with pytest.raises(FedpriorError) as error:
        config("rounds=2", override)
    assert f"'{override}'" in sentence(error)


def test_a_missing_file() -> None:
    with pytest.raises(FedpriorError, match=r"nowhere\.toml"):
        read(Path("nowhere.toml"))


@pytest.mark.parametrize("content", [b"rounds = \n", b"rounds 3", b"\xff\xfe\x00", b"[data\nname = 1"])
def test_bad_toml(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(FedpriorError, match="not valid TOML") as error:
        parse({}, file=file)
    assert str(file) in sentence(error)


@pytest.mark.parametrize("given", ["method", "data"])
def test_a_run_needs_a_method_and_data(given: str) -> None:
    missing = {"method": "data", "data": "method"}[given]
    with pytest.raises(FedpriorError, match=f"names no {missing}"):
        parse({given: {"name": "x"}})


def test_a_comparison_takes_methods_and_a_run_takes_one() -> None:
    """Options in the section of the other command would be ignored, so they are refused."""
    found = parse({"data": {"name": "digits"}}, overrides=["methods.fedmap.sigma2=3"], several=True)
    assert found.methods == {"fedmap": {"sigma2": 3}}
    with pytest.raises(FedpriorError, match="methods"):
        parse({"data": {"name": "digits"}}, overrides=["method.sigma2=3"], several=True)
    with pytest.raises(FedpriorError, match="method"):
        config("methods.fedmap.sigma2=3")


# Files


def test_a_written_config_reads_back_equal(tmp_path: Path) -> None:
    original = config(
        *("rounds=7", "seed=9", "chunk=5", "precision=float64", "eval_every=2", "checkpoint_every=3", "workers=2"),
        *("participation.rule=bernoulli", "participation.rate=0.25", "participation.last_round_all=true"),
        *("method.sigma2=inf", "model.hidden=[8, 4]", "model.name=mlp", "train.lr=0.1", "data.seed=4"),
    )
    again = written(original.document(), tmp_path / "config.toml")
    assert again == original
    assert again.participation == Participation("bernoulli", 0.25, 1, True)


def test_a_complete_document_reads_back_the_same_run(tmp_path: Path) -> None:
    """TOML has no null, so options that are None are left out; what is built is equal."""
    complete = setup(config("method.sigma2=3"))
    again = setup(written(complete.document(), tmp_path / "config.toml"))
    assert again.settings == complete.settings
    assert again.model == complete.model
    assert again.method.train == complete.method.train
    assert again.method.hyperparameters() == complete.method.hyperparameters()
    assert again.federation.fingerprint() == complete.federation.fingerprint()
    assert again.document() == complete.document()


def test_a_document_spells_out_the_method_and_the_training() -> None:
    complete = setup(config("method.sigma2=3", "train.lr=0.5"))
    found = complete.document()
    given = {k: v for k, v in complete.method.hyperparameters().items() if v is not None}
    assert found["method"] == {"name": "fedmap", **given}
    assert found["method"]["sigma2"] == 3
    assert set(found["train"]) == set(names(Train)) - {"clip", "steps"}, "those two are None"
    assert (found["train"]["lr"], found["train"]["optimizer"]) == (0.5, "adam")


def test_a_document_spells_out_the_model_and_the_data() -> None:
    """The run must stay the same when a default changes."""
    found = setup(config(data="digits")).document()
    model = set(inspect.signature(MODELS["mlp"]).parameters) - {"shape", "outputs"}
    assert model <= set(found["model"])
    assert {"partition", "clients", "alpha"} <= set(found["data"])


def test_a_document_says_the_partitions_seed_where_it_is_another() -> None:
    """Data drawn with seed 4, a run with seed 9: read back, the data are those of seed 4."""
    assert setup(config("data.seed=4", "seed=9")).document()["data"]["seed"] == 4
    assert "seed" not in setup(config("data.seed=9", "seed=9")).document()["data"]


def test_a_document_is_the_same_run(tmp_path: Path) -> None:
    first = setup(config("method.sigma2=3", "train.epochs=1"))
    second = setup(written(first.document(), tmp_path / "config.toml"))
    ours, theirs = (rounds(s.method, s.federation, 2).vector() for s in (first, second))
    assert (ours == theirs).all()


def test_former_names_of_options_are_understood(tmp_path: Path) -> None:
    """`participation.least` became `min_reporters`: in overrides, in files and from Python."""
    expected = Participation(min_reporters=3)
    assert config("participation.least=3").participation == expected
    (tmp_path / "old.toml").write_text("[participation]\nleast = 3\n")
    assert parse({"method": {"name": "local"}, "data": {"name": "digits"}}, file=tmp_path / "old.toml") == (
        parse({"method": {"name": "local"}, "data": {"name": "digits"}}, overrides=["participation.min_reporters=3"])
    )
    assert Participation(least=3) == expected  # type: ignore[call-arg]
    with pytest.raises(FedpriorError, match="'least' is the former name of the option 'min_reporters'"):
        Participation(least=3, min_reporters=2)  # type: ignore[call-arg]


# Recipes


def test_the_recipe_is_used_unless_overridden() -> None:
    """FedMAP's synthetic data recommend Adam at 1e-4 in batches of 64 and the perceptron 30-32-16-1."""
    data = config().load_data()
    train = config().build_train(data)
    assert (train.optimizer, train.lr, train.batch_size, train.epochs) == ("adam", 1e-4, 64, 10)
    assert config().build_model(data) == {"name": "mlp", "hidden": [32, 16], "single_logit": True}
    assert setup(config()).method.task.size == 1537
    changed = config("train.lr=0.1", "model.hidden=[5]")
    assert changed.build_train(data) == Train("adam", lr=0.1, batch_size=64, epochs=10)
    assert changed.build_model(data) == {"name": "mlp", "hidden": [5], "single_logit": True}


def test_another_model_drops_the_recipe_of_the_first() -> None:
    data = config().load_data()
    assert config("model.name=softmax").build_model(data) == {"name": "softmax"}
    assert config("model.name=mlp").build_model(data)["hidden"] == [32, 16]
    assert setup(config("model.name=softmax")).method.task.size == 62  # 30 · 2 + 2


def test_momentum_of_the_recipe_goes_with_its_optimizer() -> None:
    """Breast cancer recommends SGD with momentum 0.5; Adam has none; SGD keeps it."""
    data = config(data="breast_cancer").load_data()
    assert data.recipe["train"]["momentum"] == 0.5
    adam = config("train.optimizer=adam", data="breast_cancer").build_train(data)
    assert (adam.optimizer, adam.momentum, adam.lr) == ("adam", 0.0, 0.05)
    assert config("train.optimizer=sgd", data="breast_cancer").build_train(data).momentum == 0.5
    assert config("train.momentum=0.9", data="breast_cancer").build_train(data).momentum == 0.9


@pytest.mark.parametrize("data", ["synthetic", "breast_cancer"])
def test_the_data_seed_fixes_the_partition(data: str) -> None:
    """With `data.seed`, runs of any seed have the same data; without, each seed has its own."""
    fixed = {config(f"seed={s}", "data.seed=7", data=data).load_data().fingerprint() for s in (0, 1)}
    free = {config(f"seed={s}", data=data).load_data().fingerprint() for s in (0, 1, 7)}
    assert len(fixed) == 1
    assert len(free) == 3
    assert fixed < free, "seed 7 without data.seed is the same partition"


def test_precision_reaches_data_and_weights() -> None:
    import torch

    double = config("precision=float64")
    data = double.load_data()
    assert data.train.x.dtype is torch.float64
    assert double.setup(data).method.task.dtype is torch.float64


def test_periods() -> None:
    """0 means ten in a run, and every round when a run is short."""
    assert Settings(rounds=50).every(0) == 5
    assert Settings(rounds=7).every(0) == 1
    assert Settings(rounds=50).every(8) == 8
