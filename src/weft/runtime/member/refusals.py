"""Outputs that the broker refuses, said once for each reason: a record's failure alone is quiet.

`output=` and dead letters are looked at before the start; the topic of a `Produce(topic=...)` is
known only when it is sent.
"""

from __future__ import annotations

import logging

from weft.runtime.logs import event
from weft.types import ErrorInfo

_log = logging.getLogger("weft")

TOLD_MAX = 100  # different reasons in one run; topics that come from records could be many more
CURES = {
    "UNKNOWN_TOPIC_OR_PART": "create the topic with `weft topics create`, or correct its name",
    "TOPIC_AUTHORIZATION_FAILED": "give the producer's user the right WRITE on the topic",
    "TOPIC_EXCEPTION": "correct the topic's name",
}
CURES["_UNKNOWN_TOPIC"] = CURES["UNKNOWN_TOPIC_OR_PART"]


class Refusals:
    """Says each reason once."""

    def __init__(self) -> None:
        #: where it was to go, and what would help
        self._told: set[tuple[str, str]] = set()

    def tell(self, error: ErrorInfo | None) -> None:
        """An answer of the broker; nothing for None, and for what will not help to know."""
        cure = "" if error is None else CURES.get(error.type, "")
        if error is None or not cure:
            return
        where = error.message.partition(": ")[0], cure
        if where not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(where)
            event(_log, "error", "output refused", reason=error.message, cure=cure)
