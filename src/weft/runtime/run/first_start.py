"""Where a group begins that has committed nothing yet is said, not left to be found out.

Kafka's old default began at the end, Weft's at the start; whoever guesses wrong skips all that is
there, or handles years of it. Where a record handled too often or never costs money, the place
should be a choice, so its default is a warning there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.epochs import Found
from weft.kafka.properties import canonical
from weft.options import HandlerOptions
from weft.runtime.logs import event
from weft.types import TopicPartition

_log = logging.getLogger("weft")

RESET = "auto.offset.reset"
DEFAULT = "earliest"


class FirstStart:
    """Says it for one group."""

    def __init__(
        self, group: str, kafka: Mapping[str, Any], handlers: Sequence[HandlerOptions]
    ) -> None:
        given = {canonical(name): value for name, value in kafka.items()}
        self._group = group
        self._reset = given.get(canonical(RESET))
        self._stakes = sorted({s for handler in handlers if (s := _at_stake(handler))})

    def tell(self, found: Mapping[TopicPartition, Found]) -> None:
        """Of the partitions that were assigned, those without a commit."""
        fresh = sorted(where for where, one in found.items() if one.committed is None)
        if not fresh:
            return
        topics = ",".join(dict.fromkeys(topic for topic, _ in fresh))
        told = {"group": self._group, "topics": topics, "partitions": len(fresh)}
        level, told["starts_at"] = "info", f"{self._reset or DEFAULT} ({RESET})"
        if self._reset is None and self._stakes:
            level = "warning"
            told["cure"] = f"with {' and '.join(self._stakes)} set {RESET}, to say where to begin"
        event(_log, level, "no commits yet", **told)


def _at_stake(handler: HandlerOptions) -> str:
    """The option by which the handler says that repeats or losses cost money; empty without."""
    if handler.ledger is not None:
        return "a ledger"
    return "" if handler.delivery == "at_least_once" else handler.delivery
