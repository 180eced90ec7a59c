"""One file per method. Importing this package registers them all."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.options import call
from fedprior.protocol import METHODS as METHODS
from fedprior.protocol import UNBOUND, Method
from fedprior.training import AUTO, Train
from fedprior.wrappers import ALIASES, WRAPPERS

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def build(name: str, options: Mapping[str, Any] | None = None, train: Train = AUTO) -> Method[Any, Any, Any, Any, Any]:
    """The method called `name` with its own options and the local training it shares with all others.

    `name` may end in wrappers, as in `pfedbred+ft+server_step`; the options of each are under its name. Former names
    of options and wrappers are accepted.
    """
    inner, *outer = str(name).split("+")
    outer = [ALIASES.get(wrapper, wrapper) for wrapper in outer]
    given = options or {}
    theirs = {k: v for k, v in given.items() if isinstance(v, Mapping) and ALIASES.get(k, k) in outer}
    own = {k: v for k, v in given.items() if k not in theirs}
    for old, new in ALIASES.items():
        if old in theirs and new in theirs:
            raise FedpriorError(f"'{old}' is the former name of the wrapper '{new}': use only '{new}'.")
    sections = {ALIASES.get(k, k): v for k, v in theirs.items()}
    method: Method[Any, Any, Any, Any, Any] = call("method", METHODS, inner, own, task=UNBOUND, train=train)
    for wrapper in outer:
        section = sections.get(wrapper, {})
        method = call("wrapper", WRAPPERS, wrapper, section, inner=method, task=UNBOUND, train=train)
    return method
