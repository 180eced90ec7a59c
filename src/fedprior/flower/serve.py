"""The server's side of an experiment, on any link: agree, train, finish."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedprior import __version__
from fedprior.data.scaling import Scaler
from fedprior.data.schema import Schema
from fedprior.data.site_table import Reading
from fedprior.data.sums import Sums
from fedprior.data.target import Number, Target
from fedprior.errors import FedpriorError
from fedprior.experiment import folder as folders
from fedprior.experiment.journal import Observer
from fedprior.experiment.placing import at_work
from fedprior.experiment.result import Result
from fedprior.flower.agreement import Agreement, adds_noise, configured
from fedprior.flower.certificates import secret
from fedprior.flower.codec import Layout, RejectedError
from fedprior.flower.orders import Link, Order, Reply, check_answers
from fedprior.flower.refusal import reason
from fedprior.flower.remote import remote
from fedprior.guards import SECRET
from fedprior.names import visible

AGREEMENT = "agreement.json"
LONGEST = 400
"""Characters of what a site says is wrong with its table."""


class Plan(NamedTuple):
    """What the server proposes."""

    experiment: str
    sites: tuple[str, ...]
    schema: Schema
    config: Mapping[str, Any]


def serve(link: Link, plan: Plan, folder: Path, observe: Observer | None = None) -> Result:
    """Run an experiment with its folder at the server; called again, it goes on where it was."""
    kept = folder.with_name(f"{folder.name}.{AGREEMENT}")
    if kept.exists():
        agreement = Agreement.read(kept)
        _same(plan, agreement)
    else:
        agreement = agree(link, plan)
        agreement.write(kept)
    setup, document = agreement.setup(), {"experiment": agreement.experiment, "agreement": agreement.document()}
    runner = remote(link, lambda order: {**order, **document})
    _hide_noise(plan, folder)
    with at_work(folder, lambda: folders.begin(setup, folder)):
        result = folders.carry_out(setup, folder, observe=observe, runner=runner)
    finish = {"kind": "finish", "selected": result.selected, **document}
    replies = link.exchange(_orders(sorted(agreement.sites), finish))
    _tell_unfinished(replies, agreement, observe)
    return result


def _hide_noise(plan: Plan, folder: Path) -> None:
    """Sites know the run's seed: the noise of `+dp` must depend on something that they do not know."""
    if adds_noise(plan.config):
        path = folder.with_name(f"{folder.name}.dp-secret")
        if not path.exists():
            secret(path, secrets.token_hex(32).encode())
        os.environ[SECRET] = path.read_text(encoding="utf-8")


def _same(plan: Plan, agreement: Agreement) -> None:
    if (plan.experiment, sorted(plan.sites), plan.schema.hash) != (
        agreement.experiment,
        sorted(agreement.sites),
        agreement.schema.hash,
    ):
        raise FedpriorError(
            "the sites or the schema are not those that the experiment began with: begin one by another name."
        )


def _tell_unfinished(replies: Mapping[str, Reply | str], agreement: Agreement, observe: Observer | None) -> None:
    fine = {s for s, reply in replies.items() if isinstance(reply, Reply) and reply.document.get("finished") is True}
    if observe is not None:
        observe({"kind": "finished", "sites": sorted(fine), "unfinished": sorted(set(agreement.sites) - fine)})


def agree(link: Link, plan: Plan) -> Agreement:
    """Ask every site whether its table fits; from sums, what all share: scaling, and the spread of a numeric target."""
    asked = {"kind": "check", "experiment": plan.experiment, "config": dict(plan.config)}
    asked["schema"] = plan.schema.document()
    configured(plan.config)  # what is wrong with it is told before anyone is asked
    replies = check_answers(link.exchange(_orders(sorted(plan.sites), asked)), plan.sites, "the agreement")
    _refuse_misfits(replies)
    sizes = {site: _sizes(site, reply) for site, reply in sorted(replies.items())}
    target = _target(link, asked, plan.schema.target, {site: replies[site] for site in sorted(replies)})
    return Agreement(plan.experiment, plan.config, plan.schema, sizes, target, _scaler(plan, replies))


def _orders(sites: Sequence[str], document: Mapping[str, Any]) -> list[Order]:
    """The same to all, each with the name that the server knows the site by."""
    return [Order(site, {**document, "site": site}) for site in sites]


def _refuse_misfits(replies: Mapping[str, Reply]) -> None:
    told = []
    for site, reply in sorted(replies.items()):
        found = reply.document
        if isinstance(found.get("refused"), str):
            told.append(f"'{site}': {reason(found['refused'])}")
        elif found.get("version") != __version__:
            told.append(f"'{site}': it runs another version of fedprior than the server, {__version__}")
        elif found.get("problems"):
            told.append(f"'{site}': {visible('; '.join(map(str, found['problems'])), LONGEST)}")
    if told:
        raise FedpriorError(f"{len(told)} of {len(replies)} sites cannot take part: {' | '.join(told)}")


def _sizes(site: str, reply: Reply) -> dict[str, int]:
    found = reply.document.get("sizes")
    if not isinstance(found, dict) or any(type(found.get(s)) is not int or found[s] < 0 for s in _SPLITS):
        raise FedpriorError(f"'{site}' did not say how many rows it has: run the same version at both ends.")
    return {split: found[split] for split in _SPLITS}


_SPLITS = ("train", "validation", "test")


def _scaler(plan: Plan, replies: Mapping[str, Reply]) -> Scaler | None:
    reading = Reading.of(plan.config.get("data") or {})
    if reading.scaling != "shared":
        return None
    sample = torch.zeros(len(plan.schema.inputs), dtype=torch.float64)
    layout = Layout.of(dict, dict.fromkeys(Sums._fields, sample))
    sums = {}
    for site, reply in replies.items():
        try:
            found = layout.decode(reply.arrays, finite=True)
        except RejectedError as error:
            raise FedpriorError(f"'{site}': its sums were rejected: {error}.") from None
        sums[site] = Sums(*(found[name].numpy() for name in Sums._fields))
    return Scaler.from_sums(Sums.of_all(sums), standardise=True, impute=reading.impute, truths=plan.schema.truths)


def _target(link: Link, asked: Mapping[str, Any], target: Target, replies: Mapping[str, Reply]) -> Target:
    """Mean and deviation of a numeric target over all sites' training rows, from n, Σy and then Σ(y - mean)²."""
    if not isinstance(target, Number):
        return target
    sums = [_numbers(site, reply.document.get("labels"), 2) for site, reply in replies.items()]
    n = int(sum(count for count, _ in sums))
    mean = sum(total for _, total in sums) / n
    orders = _orders(list(replies), {**asked, "kind": "spread", "mean": mean})
    found = check_answers(link.exchange(orders), list(replies), "the agreement")
    square = sum(_numbers(site, [found[site].document.get("square")], 1)[0] for site in replies) / n
    return replace(target, mean=mean, deviation=square**0.5 or 1.0)


def _numbers(site: str, found: Any, count: int) -> list[float]:
    if not isinstance(found, list) or len(found) != count or not all(isinstance(v, int | float) for v in found):
        raise FedpriorError(f"'{site}': its sums cannot be read: run the same version at both ends.")
    if not np.isfinite(found).all():
        raise FedpriorError(f"'{site}': its sums are not finite: check its table.")
    return [float(value) for value in found]
