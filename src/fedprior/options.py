"""Named things with options (models, partitioners, datasets, methods), checked at the door.

The signature is the schema: pydantic checks types and ranges, and whatever is wrong becomes one sentence that names
the option and, for a misspelt one, the nearest that exists.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, ValidationError, validate_call

from fedprior.errors import FedpriorError, cut, shown, unknown

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[..., Any])

RENAMED = "renamed"
"""The attribute of a function or class that maps the former names of its options to those they have now."""

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""How every class of options is checked: no option that does not exist, no number that is none."""
WIDEST = 2**63
"""Whole numbers from here on fit into no array."""
DEEPEST = 8
"""Sections and lists within one another; no option needs half as many."""

_CHECKED = validate_call(config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))


def pick(kind: str, named: Mapping[str, T], name: str) -> T:
    """The thing called `name`, or an error with the nearest name."""
    if not isinstance(name, str) or name not in named:
        raise unknown(kind, name, named)
    return named[name]


def check_values(where: str, options: Any) -> None:
    """Refuse what no option can be, wherever it stands: numbers beyond 64 bits, NUL characters, bytes, endless depth.

    The rest is for each option's own type to say.
    """
    level: list[tuple[str, Any]] = [(where, options)]
    for _ in range(DEEPEST):
        below: list[tuple[str, Any]] = []
        for path, value in level:
            if type(value) is int and not -WIDEST <= value < WIDEST:
                raise FedpriorError(f"{path} = {shown(value)} is not valid: give a number of fewer than 19 digits.")
            if isinstance(value, str) and "\0" in value:
                raise FedpriorError(f"{path} = {shown(value)} is not valid: text must not have NUL characters.")
            if isinstance(value, bytes | bytearray):  # which would pass for the number that they spell
                raise FedpriorError(f"{path} = {shown(value)} is not valid: give text or a number, not bytes.")
            if isinstance(value, Mapping):
                below += [(f"{path}.{cut(str(k), 40)}", v) for k, v in value.items()]
            elif isinstance(value, list | tuple):
                below += [(path, v) for v in value]
        level = below
    if level:
        raise FedpriorError(f"{cut(level[0][0])} is nested more than {DEEPEST} deep: no option is.")


def names(function: Callable[..., Any]) -> list[str]:
    """The options that a function or class takes."""
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The options that have a default, with it; those whose default is None are left out."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.default is not None}


def renamed(**former: str) -> Callable[[F], F]:
    """Let options of a function or class go on working under a former name: `@renamed(at_most="max_clients")`."""

    def mark(function: F) -> F:
        setattr(function, RENAMED, former)
        return function

    return mark


def current(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options under the names that they have now; one that is given under both is refused."""
    former: Mapping[str, str] = getattr(function, RENAMED, {})
    for old, new in former.items():
        if old in options and new in options:
            raise FedpriorError(f"'{old}' is the former name of the option '{new}': give only '{new}'.")
    return {former.get(name, name): value for name, value in options.items()}


def check_names(where: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Refuse an option that does not exist."""
    allowed = list(valid)
    for key in given:
        if key not in allowed:
            raise unknown("option", key, allowed, where)


def check_truths(where: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse true and false where a number is asked for: pydantic would take them for 1 and 0."""
    fields = getattr(function, "__pydantic_fields__", None)
    for name, value in options.items():
        if isinstance(value, bool):
            hints = get_type_hints(function) if fields is None else {k: f.annotation for k, f in fields.items()}
            if name in hints and not _has_truths(hints[name]):
                raise FedpriorError(f"{where}: {name} = {value} is not valid: it is not a matter of yes or no.")


def _has_truths(hint: Any) -> bool:
    return hint in (bool, Any) or any(_has_truths(part) for part in get_args(hint))


def call(kind: str, named: Mapping[str, Callable[..., T]], name: str, options: Mapping[str, Any], **fixed: Any) -> T:
    """Call `named[name](**fixed, **options)`; options are checked, `fixed` come from us."""
    function = pick(kind, named, name)
    if not isinstance(options, Mapping):
        raise FedpriorError(f"the options of {kind} '{name}' are {shown(options)}: give them by name.")
    options = current(function, options)
    check_values(f"{kind} '{name}'", options)
    check_names(f"{kind} '{name}'", options, [k for k in names(function) if k not in fixed])
    check_truths(f"{kind} '{name}'", function, options)
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
            if first["type"] == "unexpected_positional_argument":
                raise FedpriorError(
                    f"{self.where} takes its options by name: write NAME={shown(first['input'])}."
                ) from error
            path, why = ".".join(cut(str(part)) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
            if not path:
                raise FedpriorError(f"{self.where}: {why}.") from error
            given = shown(first.get("input"))
            raise FedpriorError(f"{self.where}: {path} = {given} is not valid: {why.lower()}.") from error


def one_sentence(where: str) -> Callable[[C], C]:
    """Let a pydantic dataclass refuse wrong options in one sentence, whoever calls it."""

    def decorate(cls: C) -> C:
        plain, valid = cls.__init__, names(cls)

        @functools.wraps(plain)
        def init(self: Any, *args: Any, **options: Any) -> None:
            options = current(cls, options)
            check_names(where, options, valid)
            check_values(where, options)
            check_truths(where, cls, options)
            with plain_errors(where):
                plain(self, *args, **options)

        cls.__init__ = init
        return cls

    return decorate
