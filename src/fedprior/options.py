"""Named things with options (models, partitioners, datasets, methods), checked at the door.

The signature is the schema: pydantic checks types and ranges, and whatever is wrong becomes one sentence that names
the option and, for a misspelt one, the nearest that exists.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call

from fedprior.errors import FedpriorError, unknown

T = TypeVar("T")

_CHECKED = validate_call(config=ConfigDict(arbitrary_types_allowed=True))


def pick(kind: str, named: Mapping[str, T], name: str) -> T:
    """The thing called `name`, or an error with the nearest name."""
    if name not in named:
        raise unknown(kind, name, named)
    return named[name]


def names(function: Callable[..., Any]) -> list[str]:
    """The options that a function or class takes."""
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The options that have a default, with it; those whose default is None are left out."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.default is not None}


def check_names(where: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Refuse an option that does not exist."""
    allowed = list(valid)
    for key in given:
        if key not in allowed:
            raise unknown("option", key, allowed, where)


def call(kind: str, named: Mapping[str, Callable[..., T]], name: str, options: Mapping[str, Any], **fixed: Any) -> T:
    """Call `named[name](**fixed, **options)`; options are checked, `fixed` come from us."""
    function = pick(kind, named, name)
    check_names(f"{kind} '{name}'", options, [k for k in names(function) if k not in fixed])
    checked = function if isinstance(function, type) else _CHECKED(function)
    with plain_errors(f"{kind} '{name}'"):
        return checked(**fixed, **options)


class plain_errors:  # noqa: N801 - reads as a verb where it is used
    """Turn pydantic's report into one sentence about the first thing that is wrong."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            if first["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
                raise FedpriorError(f"{self.where} needs the option '{first['loc'][-1]}'.") from error
            path = ".".join(str(part) for part in first["loc"])
            if not path:
                raise FedpriorError(f"{self.where}: {first['msg'].removeprefix('Value error, ')}.") from error
            given, why = repr(first.get("input")), first["msg"].removeprefix("Value error, ").lower()
            raise FedpriorError(f"{self.where}: {path} = {given} is not valid: {why}.") from error
