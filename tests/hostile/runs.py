"""Small runs with folders, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprior
from fedprior.data.federation import Federation, from_arrays
from fedprior.errors import FedpriorError
from fedprior.experiment.journal import Event, Observer
from fedprior.methods import build
from fedprior.training import Train

SETTINGS: dict[str, Any] = {"rounds": 4, "checkpoint_every": 1, "eval_every": 1, "workers": 1}


def data() -> Federation:
    rng = np.random.default_rng(0)
    return from_arrays({k: (rng.normal(size=(20, 3)), np.arange(20) % 2) for k in "abc"})


def go(out: Path, name: str = "fedmap", **more: Any) -> fedprior.Result:
    return fedprior.run(build(name, {}, Train(epochs=1)), data(), out=out, **(SETTINGS | more))


def named(out: Path, **more: Any) -> fedprior.Result:
    """A run that `resume` can take up by its folder alone."""
    csv = out.parent / "data.csv"
    rows = [f"{'abc'[i % 3]},{(7 * i) % 11},{(5 * i) % 7},{'yn'[(i * i) % 5 > 1]}\n" for i in range(60)]
    csv.write_text("site,age,dose,class\n" + "".join(rows))
    loaded = fedprior.data.load("csv", path=str(csv), target="class", client="site")
    return fedprior.run(build("fedmap", {}, Train(epochs=1)), loaded, out=out, **(SETTINGS | more))


def compared(out: Path, **more: Any) -> fedprior.Comparison:
    methods = [build(name, {}, Train(epochs=1)) for name in ("fedmap", "fedavg")]
    return fedprior.compare(methods, data(), out=out, **(SETTINGS | more))


def stop_at(round: int, method: str = "fedmap") -> Callable[[str, int], Observer]:
    def observer(name: str, rounds: int) -> Observer:
        def observe(event: Event) -> None:
            if name == method and (event["kind"], event["round"]) == ("round", round):
                raise KeyboardInterrupt

        return observe

    return observer


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(FedpriorError) as error:
        call()
    said = str(error.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said
