"""One file a method. Importing this package registers them all."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from fedprior.local import AUTO, Train
from fedprior.options import call
from fedprior.protocol import METHODS as METHODS
from fedprior.protocol import UNBOUND, Method
from fedprior.wrappers import WRAPPERS

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def build(name: str, options: Mapping[str, Any] | None = None, train: Train = AUTO) -> Method[Any, Any, Any, Any, Any]:
    """The method called `name` with its own options and the local training it shares with all others.

    `name` may end in wrappers, as in `pfedbred+ft+am`; the options of each stand under its name.
    """
    inner, *outer = str(name).split("+")
    own = {k: v for k, v in (options or {}).items() if k not in outer}
    method: Method[Any, Any, Any, Any, Any] = call("method", METHODS, inner, own, task=UNBOUND, train=train)
    for wrapper in outer:
        given = (options or {}).get(wrapper, {})
        method = call("wrapper", WRAPPERS, wrapper, given, inner=method, task=UNBOUND, train=train)
    return method
