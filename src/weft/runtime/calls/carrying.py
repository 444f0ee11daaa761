"""Trace headers go from a record to what is made of it, with OpenTelemetry or without."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from weft.types import Headers

#: W3C's names; others are the application's own to pass on
NAMES = frozenset({"traceparent", "tracestate", "baggage"})
#: in a call: makes the headers of its own span, for most calls have no outputs; None without
#: OpenTelemetry
CARRIED: ContextVar[Callable[[], Headers] | None] = ContextVar("weft_carried", default=None)


def carried(headers: Headers, own: Headers) -> Headers:
    """The output's own headers, and the trace's of its record unless it names one itself."""
    of_span = CARRIED.get()
    if of_span is not None:
        trace = of_span()
    elif not headers:
        return own
    else:
        trace = tuple(pair for pair in headers if pair[0] in NAMES)
    if not trace or any(name in NAMES for name, _ in own):
        return own
    return (*own, *trace)
