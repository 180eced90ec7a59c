"""A user's own method: a Python file that registers it, as docs/examples/my_method.py does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from fedprior.errors import FedpriorError
from fedprior.methods import METHODS

_LOADED: dict[Path, list[str]] = {}


def load_own(path: Path) -> list[str]:
    """Import a file, once, and return the names of the methods that it registers."""
    path = path.resolve()
    if path in _LOADED and set(_LOADED[path]) <= METHODS.keys():
        return _LOADED[path]
    before = dict(METHODS)
    _import(path)
    found = [name for name, method in METHODS.items() if before.get(name) is not method]
    if not found:
        raise FedpriorError(f"'{path}' registers no method: put @register on its class, docs/add-a-method.md.")
    taken = [name for name in found if name in before]
    if taken:
        METHODS.update(before)
        raise FedpriorError(f"'{path}' registers '{taken[0]}', a name that is already taken: choose another.")
    for name in found:
        lacking = sorted(getattr(METHODS[name], "__abstractmethods__", ()))
        if lacking:
            for other in found:
                del METHODS[other]
            raise FedpriorError(f"the method '{name}' of '{path}' does not define {lacking[0]}: docs/add-a-method.md.")
    _LOADED[path] = found
    return found


def _import(path: Path) -> None:
    name = f"fedprior_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path) if path.suffix == ".py" and path.is_file() else None
    if spec is None or spec.loader is None:
        raise FedpriorError(f"'{path}' is not a Python file: give one that registers a method, docs/add-a-method.md.")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FedpriorError:
        raise
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise FedpriorError(f"'{path}' cannot be imported: {told}.") from None
