"""A folder is bound to its configuration, its data and its network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import fedprior
from hostile.runs import everything, go, named, refusal, stop_at


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("seed = 0", "seed = 1", "seed is 0, not 1"),
        ("sigma2 = 15.0", "sigma2 = 3.0", "method.sigma2 is 15.0, not 3.0"),
        ("rounds = 4", "rounds = 3", "rounds is 4, not 3"),
        ('chunk = "auto"', "chunk = 2", "chunk is 'auto', not 2"),
        (r"\nlr = [\d.]+", "\nlr = 0.33", "train.lr is"),
        (r"\[method\]\n(.+\n)*", '[method]\nname = "fedavg"\n', "method.name is 'fedmap', not 'fedavg'"),
    ],
)
def test_an_edited_config_is_another_run(old: str, new: str, told: str, finished: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if finished:
        named(out)
    else:
        with pytest.raises(KeyboardInterrupt):
            named(out, observers=stop_at(4))
    config = out / "config.toml"
    text, changes = re.subn(old, new, config.read_text(), count=1)
    assert changes == 1
    config.write_text(text)
    before = everything(tmp_path)
    said = refusal(lambda: fedprior.resume(out))
    assert told in said or "data differ" in said
    assert everything(tmp_path) == before


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """Copied from the folder of another seed, on the same data."""
    for seed in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / f"{seed}", seed=seed, observers=stop_at(4))
    for path in (tmp_path / "1" / "checkpoint").iterdir():
        (tmp_path / "0" / "checkpoint" / path.name).write_bytes(path.read_bytes())
    assert "seed is 1, not 0" in refusal(lambda: go(tmp_path / "0"))


def test_a_network_of_another_shape_is_told(tmp_path: Path) -> None:
    """As many weights (3·4+4+4·2 = 24 = 3·6+6), but others."""
    nets = [nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)), nn.Sequential(nn.Linear(3, 2), Extra())]
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "out", model=nets[0], observers=stop_at(4))
    assert sum(p.numel() for p in nets[1].parameters()) == 24
    assert "does not fit this run" in refusal(lambda: go(tmp_path / "out", model=nets[1]))


class Extra(nn.Module):
    """Two outputs as they are, and weights that make up the number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Linear(4, 2, bias=False))

    def forward(self, x: Any) -> Any:
        return self.layers(x)
