"""What a site's node does with a message: the one place where orders from a server reach a site's table and disk."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedprior import __version__
from fedprior.data.schema import Schema
from fedprior.data.site_table import Reading, SiteTable
from fedprior.data.target import Number
from fedprior.errors import FedpriorError
from fedprior.flower.agreement import Agreement, configured
from fedprior.flower.codec import RejectedError
from fedprior.flower.finish import finish
from fedprior.flower.orders import Reply, RoundOrder, parsed
from fedprior.flower.refusal import RefusedError, reason
from fedprior.flower.site import Site
from fedprior.flower.small_counts import FEW, small_classes
from fedprior.flower.store import ERRORS, SENT, Store
from fedprior.protocol import AnyMethod

Arrays = Mapping[str, NDArray[Any]]


class Node(NamedTuple):
    """A site's own settings: its name, its table, where it keeps its states, and what it does not take part in."""

    site: str
    table: Path
    state: Path
    min_class_rows: int = 0  # decline a method that sends means of a class with fewer training rows

    def answer(self, document: Mapping[str, Any], arrays: Arrays) -> Reply:
        """Do as ordered; whatever goes wrong becomes a code, and its details stay here."""
        store = Store(self.state, str(document.get("experiment", "unknown")), self.site)
        try:
            reply = self._do(document, arrays, store)
        except Exception as error:
            reply = Reply({"refused": _code(error)})
            store.note(ERRORS, f"{_now()} {traceback.format_exc()}")
            _say(f"refused: {error if isinstance(error, FedpriorError) else reason(_code(error))}")
        store.note(SENT, json.dumps(_sent(document, reply)))
        return reply

    def _do(self, document: Mapping[str, Any], arrays: Arrays, store: Store) -> Reply:
        kinds = {"check": self._check, "spread": self._spread, "round": self._round, "finish": self._finish}
        if document.get("kind") not in kinds:
            raise RefusedError("order", "the order is of a kind that this version does not know.")
        if document.get("site") != self.site:
            raise RefusedError(
                "name", f"this is '{self.site}', and the server knows its key as another site's: use your own folder."
            )
        return kinds[document["kind"]](document, arrays, store)

    def _table(self, document: Mapping[str, Any]) -> SiteTable:
        try:
            config, schema = configured(document["config"]), Schema.from_document(document["schema"])
        except FedpriorError as error:
            raise RefusedError("order", str(error)) from None
        return SiteTable.read(self.site, self.table, schema, Reading.of(config.data), config.seed)

    def _check(self, document: Mapping[str, Any], arrays: Arrays, store: Store) -> Reply:
        """Whether the table fits; if so, how many rows there are, and the sums that were asked for."""
        told: dict[str, Any] = {"version": __version__, "problems": []}
        table = self._table(document)
        if found := table.problems:
            _say("the table does not fit the schema: " + "; ".join(found))
            return Reply({**told, "problems": found})
        if warning := self._warning(configured(document["config"]).build_method(), table):
            _say(f"warning: {warning}")
        told |= {"sizes": table.sizes()}
        if isinstance(table.schema.target, Number):
            told["labels"] = list(table.label_sum())
        sums = table.sums()._asdict() if table.reading.scaling == "shared" else {}
        return Reply(told, sums)

    def _spread(self, document: Mapping[str, Any], arrays: Arrays, store: Store) -> Reply:
        """The spread of a numeric target around the mean of all sites."""
        return Reply({"square": self._table(document).label_square(float(document["mean"]))})

    def _site(self, document: Mapping[str, Any], store: Store) -> tuple[Site, Agreement]:
        agreement = Agreement.from_document(document["agreement"])
        if self.site not in agreement.sites:
            raise RefusedError("another", "this site is not one of the experiment.")
        table = agreement.table(self.site, self.table)
        context = agreement.context(table)
        own = {"hash": agreement.hash, "data": context.federation.fingerprint()}
        store.agree({**own, "warning": self._warning(context.method, table), **agreement.document()})
        return Site(context, len(agreement.sites), store), agreement

    def _warning(self, method: AnyMethod, table: SiteTable) -> str | None:
        """What the people here should know of this method and this table, or a refusal in their name."""
        if self.min_class_rows and (warning := small_classes(method, table, self.min_class_rows)):
            raise RefusedError("declined", warning)
        return small_classes(method, table, FEW)

    def _round(self, document: Mapping[str, Any], arrays: Arrays, store: Store) -> Reply:
        given = {k: v for k, v in document.items() if k not in ("experiment", "agreement")}
        order = parsed(RoundOrder, given)
        site, _ = self._site(document, store)
        return site.work(order, arrays)

    def _finish(self, document: Mapping[str, Any], arrays: Arrays, store: Store) -> Reply:
        site, agreement = self._site(document, store)
        finish(site, agreement, int(document["selected"]))
        return Reply({"finished": True})


def _say(line: str) -> None:
    """To the people at the site: the node's terminal or its log."""
    print(f"fedprior: {line}", file=sys.stderr, flush=True)


def _code(error: Exception) -> str:
    if isinstance(error, RefusedError):
        return error.code
    if isinstance(error, RejectedError | KeyError):
        return "order"
    if isinstance(error, FedpriorError):
        return "table"
    return "disk" if isinstance(error, OSError) else "internal"


def _sent(document: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """What left the site, for its own audit: names, types, shapes and bytes of fields, and names of numbers."""
    fields = [
        {"name": name, "dtype": values.dtype.name, "shape": list(values.shape), "bytes": int(values.nbytes)}
        for name, values in reply.arrays.items()
    ]
    told = {k: sorted(v) if isinstance(v, dict) else v for k, v in reply.document.items() if v not in (None, {}, [])}
    return {
        "time": _now(),
        "kind": document.get("kind"),
        "round": document.get("round"),
        "fields": fields,
        "told": told,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
