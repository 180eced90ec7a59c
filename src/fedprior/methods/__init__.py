"""One file a method. Importing this package registers them all."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from fedprior.local import AUTO, Train
from fedprior.options import call
from fedprior.protocol import METHODS, UNBOUND, Method

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def build(name: str, options: Mapping[str, Any] | None = None, train: Train = AUTO) -> Method[Any, Any, Any, Any, Any]:
    """The method called `name` with its own options and the local training it shares with all others."""
    return call("method", METHODS, name, options or {}, task=UNBOUND, train=train)
