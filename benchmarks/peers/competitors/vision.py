"""Importing torchvision where its compiled half cannot load: two competitors import it and use nothing of it here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch


def import_torchvision() -> None:
    """Import torchvision, if need be without its operators.

    The package index has torchvision for CUDA only. Beside a CPU build of torch its operators are missing, and the
    import fails when it describes them to torch; leaving that description out is enough.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        with mock.patch.object(torch.library, "register_fake", _leave_out):
            importlib.import_module("torchvision")


def _leave_out(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda function: function
