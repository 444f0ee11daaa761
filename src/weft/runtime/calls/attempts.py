"""Spans of failed attempts, kept for the next attempt of the same record to be linked to."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from weft.types import Record

#: of more the oldest are forgotten
FAILED_MAX = 10_000


class Attempts:
    """The span of the last failed attempt of each record, in whatever form it is given."""

    def __init__(self) -> None:
        self._spans: OrderedDict[tuple[str, int, int], Any] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._spans)

    def keep(self, record: Record, span: Any) -> None:
        """This attempt has failed."""
        self._spans[record.topic, record.partition, record.offset] = span
        while len(self._spans) > FAILED_MAX:
            self._spans.popitem(last=False)

    def of(self, record: Record) -> Any:
        """The last one's span; None where none is known."""
        return self._spans.get((record.topic, record.partition, record.offset))

    def take(self, record: Record) -> Any:
        """The same, which is then forgotten."""
        return self._spans.pop((record.topic, record.partition, record.offset), None)
