"""Why a site does not do what it was asked: a code that travels, while the details stay at the site."""

from __future__ import annotations

from fedprior.errors import FedpriorError

CODES = {
    "order": "it cannot do what was ordered: install the same fedprior, with the same extras, at both ends",
    "name": "its key is that of another site: give every site its own folder",
    "table": "its table cannot be read or does not fit the schema",
    "changed": "its table has changed since the experiment began",
    "another": "it knows another experiment by this name: choose a new name",
    "state": "its state for this round is missing or damaged",
    "disk": "it cannot write to its disk",
    "declined": "it declines to take part with this method: ask the site, or choose another method",
    "not finite": "its update is not finite",
    "internal": "it failed; its own log says why",
}
"""All that a server learns of a failure at a site."""


class RefusedError(FedpriorError):
    """A failure with its code; the message is for the site's own log."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def reason(code: object) -> str:
    """What a code means; one that does not exist means nothing."""
    return CODES.get(code, CODES["internal"]) if isinstance(code, str) else CODES["internal"]
