"""Options checked at the door: every error is one sentence that names the option and what would do."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from fedprior.errors import FedpriorError, unknown
from fedprior.options import call, check_names, current, names, one_sentence, pick, plain_errors, renamed


def bake(shape: str, *, hours: Annotated[int, Field(ge=1)] = 2, kind: Literal["bread", "cake"] = "bread") -> str:
    return f"{shape} {kind} {hours}"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Oven:
    heat: Annotated[float, Field(gt=0)]
    doors: int = 1

    @model_validator(mode="after")
    def _few_doors(self) -> Self:
        if self.doors > 2:
            raise ValueError("an oven has one door or two")
        return self


def freeze(*, hours: int) -> int:
    return hours


RECIPES: dict[str, Callable[..., Any]] = {"bake": bake, "freeze": freeze}
OVENS = {"oven": Oven}


def message(*args: Any, **fixed: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        call(*args, **fixed)
    text = str(error.value)
    assert "\n" not in text
    assert text[-1] in ".?"
    return text


def test_call_merges_our_arguments_with_the_options() -> None:
    assert call("recipe", RECIPES, "bake", {"hours": 3, "kind": "cake"}, shape="round") == "round cake 3"
    assert call("oven", OVENS, "oven", {"heat": 200}) == Oven(200.0)


def test_an_unknown_name_gets_the_nearest() -> None:
    assert message("recipe", RECIPES, "bale", {}) == "unknown recipe 'bale': did you mean 'bake'?"
    assert message("recipe", RECIPES, "zzz", {}) == "unknown recipe 'zzz': choose one of: bake, freeze."


def test_an_unknown_option_gets_the_nearest_and_says_where() -> None:
    got = message("recipe", RECIPES, "bake", {"hour": 3}, shape="round")
    assert got == "unknown option 'hour' in recipe 'bake': did you mean 'hours'?"
    got = message("recipe", RECIPES, "bake", {"zzz": 3}, shape="round")
    assert got == "unknown option 'zzz' in recipe 'bake': choose one of: hours, kind."


def test_what_we_fill_in_is_not_an_option() -> None:
    assert message("recipe", RECIPES, "bake", {"shape": "square"}, shape="round").startswith("unknown option 'shape'")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"hours": 0}, ["hours = 0", "greater than or equal to 1"]),
        ({"hours": "long"}, ["hours = 'long'", "valid integer"]),
        ({"hours": 1.5}, ["hours = 1.5"]),
        ({"kind": "soup"}, ["kind = 'soup'", "'bread' or 'cake'"]),
    ],
)
def test_a_bad_value_of_a_function(options: dict[str, Any], parts: list[str]) -> None:
    got = message("recipe", RECIPES, "bake", options, shape="round")
    assert got.startswith("recipe 'bake': ")
    assert all(part in got for part in parts)


def test_a_bad_value_of_a_class() -> None:
    got = message("oven", OVENS, "oven", {"heat": -1})
    assert got.startswith("oven 'oven': heat = -1 is not valid: ")
    assert "greater than 0" in got


@pytest.mark.parametrize(
    ("named", "name", "missing"),
    [(RECIPES, "bake", "shape"), (OVENS, "oven", "heat"), (RECIPES, "freeze", "hours")],
)
def test_a_missing_option_is_named(named: dict[str, Any], name: str, missing: str) -> None:
    """Without pydantic's own words for a call."""
    assert message("thing", named, name, {}) == f"thing '{name}' needs the option '{missing}'."


def test_options_that_do_not_go_together() -> None:
    got = message("oven", OVENS, "oven", {"heat": 200, "doors": 3})
    assert "an oven has one door or two" in got
    assert "ArgsKwargs" not in got


def test_a_name_that_is_no_text_is_still_a_plain_error() -> None:
    """`partition = 3` in a file must not end in a traceback."""
    with pytest.raises(FedpriorError, match="unknown recipe '3'"):
        pick("recipe", RECIPES, 3)  # type: ignore[arg-type]


def test_pick_and_unknown_without_any_choice() -> None:
    assert pick("recipe", RECIPES, "bake") is bake
    assert str(unknown("recipe", "soup", [])) == "unknown recipe 'soup': there is none to choose."


def test_names_are_those_of_the_signature() -> None:
    def free(a: int, *, b: int = 1, **rest: int) -> None: ...

    assert names(free) == ["a", "b"]
    assert names(Oven) == ["heat", "doors"]


def test_check_names_finds_the_first_that_does_not_exist() -> None:
    check_names("here", ["a", "b"], iter(["a", "b"]))
    with pytest.raises(FedpriorError, match="unknown option 'bta' in here: did you mean 'beta'"):
        check_names("here", ["alpha", "bta", "gama"], ["alpha", "beta", "gamma"])


@renamed(minutes="hours")
def thaw(*, hours: Annotated[int, Field(ge=1)] = 1) -> int:
    return hours


class Fridge:
    renamed = {"cold": "heat"}  # noqa: RUF012 - as a class would have it

    def __init__(self, heat: float = 4.0) -> None:
        self.heat = heat


def test_a_former_name_of_an_option_goes_on_working() -> None:
    """Checked as the new one is, and told of under the new name; both at once are refused."""
    assert call("recipe", {"thaw": thaw}, "thaw", {"minutes": 3}) == call(
        "recipe", {"thaw": thaw}, "thaw", {"hours": 3}
    )
    assert call("fridge", {"fridge": Fridge}, "fridge", {"cold": 2.0}).heat == 2
    assert names(thaw) == ["hours"]
    assert current(bake, {"minutes": 3}) == {"minutes": 3}
    assert "hours = 0 is not valid" in message("recipe", {"thaw": thaw}, "thaw", {"minutes": 0})
    both = message("recipe", {"thaw": thaw}, "thaw", {"minutes": 1, "hours": 1})
    assert both == "'minutes' is the former name of the option 'hours': give only 'hours'."


def test_plain_errors_lets_others_through() -> None:
    with pytest.raises(KeyError), plain_errors("here"):
        raise KeyError("x")
    with plain_errors("here"):
        pass


@renamed(old="new")
@one_sentence("thing")
@dataclass(frozen=True)
class Thing:
    new: Annotated[int, Field(ge=1)] = 1
    other: str = ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"nwe": 3}, "unknown option 'nwe' in thing: did you mean 'new'?"),
        ({"new": 0}, "thing: new = 0 is not valid: input should be greater than or equal to 1."),
        ({"old": 0}, "thing: new = 0 is not valid: input should be greater than or equal to 1."),
        ({"old": 2, "new": 2}, "'old' is the former name of the option 'new': give only 'new'."),
    ],
    ids=str,
)
def test_a_class_refuses_in_one_sentence_whoever_calls_it(options: dict[str, Any], told: str) -> None:
    with pytest.raises(FedpriorError) as error:
        Thing(**options)
    assert str(error.value) == told


def test_a_class_takes_former_names_and_stays_what_it_is() -> None:
    assert Thing(old=3) == Thing(new=3) == Thing(3)  # type: ignore[call-arg]
    assert names(Thing) == ["new", "other"]
    assert replace(Thing(3), other="x") == Thing(3, "x")
    assert pickle.loads(pickle.dumps(Thing(3))) == Thing(3)
