"""The options of methods, data sets, partitions and models, from their signatures and descriptions."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedprior.methods import METHODS
from fedprior.options import pick
from fedprior.wrappers import ALIASES, WRAPPERS

RANGES = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
GIVEN = ("task", "train", "inner", "shape", "outputs", "view", "next_view")
"""What the library passes, not the user."""


class Option(NamedTuple):
    """One option; values in its default and range are in backticks, as in Markdown."""

    name: str
    default: str
    range: str
    meaning: str


def options(thing: Any) -> list[Option]:
    """The options of a function, a dataclass or a pydantic model."""
    if isinstance(thing, type) and issubclass(thing, BaseModel):
        return [
            Option(name, _default(field.default), _range(field.annotation, field), field.description or "")
            for name, field in thing.model_fields.items()
        ]
    return [_option(*found) for found in _signature(thing) if found[0] not in GIVEN]


def _signature(thing: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, default and annotation of each."""
    hints = typing.get_type_hints(thing, include_extras=True)
    if dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            yield field.name, field.default, hints[field.name]
        return
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield parameter.name, parameter.default, hints.get(parameter.name, parameter.annotation)


def _option(name: str, default: Any, hint: Any) -> Option:
    kind, *notes = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    info = next((note for note in notes if isinstance(note, FieldInfo)), None)
    if isinstance(default, FieldInfo):
        default = default.get_default(call_default_factory=True)
    return Option(name, _default(default), _range(kind, info), (info.description if info else None) or "")


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty or value is dataclasses.MISSING or repr(value) == "PydanticUndefined":
        return "required"
    if dataclasses.is_dataclass(value) or isinstance(value, BaseModel):
        return "see below"
    return f"`{value}`"


def _range(kind: Any, info: FieldInfo | None) -> str:
    if get_origin(kind) in (Union, UnionType):
        kind = next((part for part in get_args(kind) if part is not NoneType), kind)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if kind is bool:
        return "`true`, `false`"
    notes = info.metadata if info else []
    return " and ".join(f"{RANGES[key]} {_number(getattr(m, key))}" for m in notes for key in RANGES if hasattr(m, key))


def _number(value: Any) -> str:
    return "2⁶³" if value == 2**63 else f"{value}"


def options_of_method(name: str) -> list[Option]:
    """The options of a method and of the wrappers that follow its name, these as `ft.steps`; values are plain text."""
    inner, *outer = name.split("+")
    found = options(pick("method", METHODS, inner))
    for wrapper in (ALIASES.get(given, given) for given in outer):
        theirs = options(pick("wrapper", WRAPPERS, wrapper))
        found += [option._replace(name=f"{wrapper}.{option.name}") for option in theirs]
    return [o._replace(default=o.default.replace("`", ""), range=o.range.replace("`", "")) for o in found]


def equations(name: str) -> str:
    """What a method does: the first sentence and the equations at the top of its file."""
    paragraphs = (inspect.getdoc(inspect.getmodule(METHODS[name.partition("+")[0]])) or "").split("\n\n")
    return "\n\n".join([paragraphs[0], *(text for text in paragraphs[1:] if text.startswith(" "))][:2])
