"""The template of docs/add-a-method.md is a method: the battery runs on it as it would on a new file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedprior.protocol import METHODS

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


battery = load(Path(__file__).with_name("test_contract.py"))
CHECKS = {
    name: check
    for name, check in vars(battery).items()
    if name.startswith("test_") and {"name", "on"} <= inspect.signature(check).parameters.keys()
}


@pytest.fixture(scope="module")
def template() -> Iterator[str]:
    """Its name; it is registered for the tests of this file alone."""
    module = load(ROOT / "docs" / "examples" / "my_method.py")
    yield module.MyMethod.about.name
    del METHODS[module.MyMethod.about.name]


@pytest.mark.parametrize("setting", battery.SETTINGS)
@pytest.mark.parametrize("check", CHECKS)
def test_the_battery_on_the_template(check: str, setting: str, template: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"name": template, "on": battery.SETTINGS[setting]}
    wanted = inspect.signature(CHECKS[check]).parameters
    given |= {"tmp_path": tmp_path} if "tmp_path" in wanted else {}
    if "dtype" in wanted:
        given |= {"dtype": battery.torch.float64, "tolerance": 1e-9}
    CHECKS[check](**given)


def test_every_hyperparameter_of_the_template_is_alive(template: str) -> None:
    battery.test_every_hyperparameter_is_alive(template)


def test_the_battery_has_many_checks() -> None:
    assert len(CHECKS) >= 12


def test_the_guide_names_the_template_and_every_skeleton() -> None:
    guide = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    assert "examples/my_method.py" in guide
    for skeleton in ROOT.glob("src/fedprior/methods/_*.py"):
        if skeleton.stem != "__init__":
            assert f"methods/{skeleton.name}" in guide
