"""What a member knows of the spans that its worker processes make."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from weft.runtime.calls.attempts import Attempts
from weft.runtime.calls.processes.protocol import Opened, Reply
from weft.runtime.calls.tracing import SpanIds, tracing_of
from weft.runtime.logs import event
from weft.types import Record

_log = logging.getLogger("weft")


class WorkerSpans:
    """Of the workers of one handler."""

    def __init__(self, handler: str, group: str) -> None:
        self._handler = handler
        self._failed = Attempts()
        self._expected = tracing_of(group) is not None

    def opened(self, message: Opened) -> None:
        """Here is a tracer provider: where a worker has none its calls make no spans, once told."""
        if message.traced or not self._expected:
            return
        self._expected = False
        event(
            _log,
            "warning",
            "no spans of worker processes",
            handler=self._handler,
            fix="set up the tracer provider where each worker does it, too: at the top level of "
            "the handler's module, or in the lifespan",
        )

    def note(self, record: Record, reply: Reply) -> None:
        """A failed attempt's span, for the next one, which may be in another worker."""
        if reply.span is not None:
            self._failed.keep(record, reply.span)

    def before(self, records: Iterable[tuple[int, Record]]) -> dict[int, SpanIds] | None:
        """Spans of the attempts before, by number; None where there are none, as nearly always."""
        if not self._failed:
            return None
        known = {
            number: span
            for number, record in records
            if record.attempt > 1 and (span := self._failed.of(record)) is not None
        }
        return known or None
