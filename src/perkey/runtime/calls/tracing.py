"""OpenTelemetry: a consumer span around each call of a handler. No cost when disabled.

It is enabled if the application has set up a tracer provider before the run starts. Only the API is
used: exporters and samplers belong to the application. Trace headers pass from a record to its
outputs with or without OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from perkey.account.shown import shown_key
from perkey.types import Headers, Record

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext, Tracer

from collections import OrderedDict
from contextvars import ContextVar

#: W3C's names; the application passes on any other headers itself
NAMES = frozenset({"traceparent", "tracestate", "baggage"})
#: in a call: makes the headers of its span lazily, as most calls have no outputs; None without
#: OpenTelemetry
CARRIED: ContextVar[Callable[[], Headers] | None] = ContextVar("perkey_carried", default=None)


def carried(headers: Headers, own: Headers) -> Headers:
    """The output's own headers, plus the record's trace headers unless it has its own."""
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


Function = Callable[..., Any]
#: a span in transferable form: trace, span, flags
SpanIds = tuple[int, int, int]
#: most links of a batch's span, as in exporters' limits
LINKS_MAX = 128


def tracing(group: str) -> Callable[[Function], Function]:
    """A wrapper for handlers: adds spans, or nothing if no tracer provider is set up."""
    found = tracing_of(group)
    return (lambda function: function) if found is None else found.around


def tracing_of(group: str) -> Tracing | None:
    """The tracing of this process; None if no tracer provider is set up in it."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracing(provider.get_tracer("perkey"), group)


def flush() -> None:
    """Export this process's spans, if its provider can; may wait for the network."""
    from opentelemetry import trace

    flushing = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flushing is not None:
        flushing()


class Tracing:
    """Makes the spans of one run."""

    def __init__(self, tracer: Tracer, group: str) -> None:
        self._tracer, self._group = tracer, group
        self._failed = Attempts()

    def around(self, function: Function) -> Function:
        """The handler with a span around each call."""
        if iscoroutinefunction(function):

            @wraps(function)
            async def traced(given: Any, *more: Any) -> Any:
                with self._span(given):
                    return await function(given, *more)

            return traced

        @wraps(function)
        def called(given: Any, *more: Any) -> Any:
            with self._span(given):
                return function(given, *more)

        return called

    @contextmanager
    def _span(self, given: Any) -> Iterator[None]:
        """A span for a record or a batch; outputs sent within it carry its context."""
        from opentelemetry import context, trace

        alone = isinstance(given, Record)
        records: Sequence[Record] = [given] if alone else list(given)
        produced = [_produced(record) for record in records[:LINKS_MAX]]
        # Links to the producers' spans of each record, and to the previous attempt.
        found = []
        for record, parent in zip(records, produced, strict=False):  # up to the limit of links
            before = self._failed.take(record)
            producer = trace.get_current_span(parent).get_span_context()
            if producer.is_valid:
                found.append(trace.Link(producer, {"perkey.link": "producer"}))
            if before is not None:
                found.append(trace.Link(before, {"perkey.link": "attempt before"}))
        span = self._tracer.start_span(
            f"process {records[0].topic}",
            context=produced[0] if alone else context.Context(),
            kind=trace.SpanKind.CONSUMER,
            attributes=self._of_record(given)
            if alone
            else {**self._common(records[0]), "messaging.batch.message_count": len(records)},
            links=found,
        )
        with trace.use_span(span, end_on_exit=True):
            CARRIED.set(partial(_injected, context.get_current()))
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                for record in records:
                    self._failed.keep(record, span.get_span_context())
                raise

    # -- between processes -------------------------------------------------------------------------

    def learn(self, record: Record, failed: SpanIds) -> None:
        """Keep the span of a previous attempt in another process."""
        from opentelemetry import trace

        trace_id, span_id, flags = failed
        span = trace.SpanContext(
            trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags)
        )
        self._failed.keep(record, span)

    def seen(self, record: Record) -> SpanIds | None:
        """The span of a failed attempt here: the next one may be in another process."""
        span: SpanContext | None = self._failed.take(record)
        return None if span is None else (span.trace_id, span.span_id, int(span.trace_flags))

    # -- attributes --------------------------------------------------------------------------------

    def _common(self, record: Record) -> dict[str, Any]:
        """By the semantic conventions for messaging."""
        return {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.consumer.group.name": self._group,
        }

    def _of_record(self, record: Record) -> dict[str, Any]:
        attributes = {
            **self._common(record),
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "perkey.attempt": record.attempt,
        }
        key: object = record.key  # as decoded by `key=`
        if key is not None:
            attributes["messaging.kafka.message.key"] = (
                shown_key(key) if isinstance(key, bytes) else str(key)[:200]
            )
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        return attributes


def _produced(record: Record) -> Context:
    """The context that its producer sent in the headers."""
    from opentelemetry import context, propagate

    begin = context.Context()
    # Headers in the form that propagators read; values that are not text are not theirs.
    carrier = {
        name.lower(): value.decode("ascii", "replace")
        for name, value in record.headers
        if value is not None and len(value) <= 8192
    }
    return propagate.extract(carrier, begin) if carrier else begin


def _injected(current: Context) -> Headers:
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier, current)
    return tuple((name, value.encode()) for name, value in carrier.items())


#: most entries; beyond it the oldest are dropped
FAILED_MAX = 10_000


class Attempts:
    """The span of the last failed attempt of each record, in any form."""

    def __init__(self) -> None:
        self._spans: OrderedDict[tuple[str, int, int], Any] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._spans)

    def keep(self, record: Record, span: Any) -> None:
        """Store the span of a failed attempt."""
        self._spans[record.topic, record.partition, record.offset] = span
        while len(self._spans) > FAILED_MAX:
            self._spans.popitem(last=False)

    def of(self, record: Record) -> Any:
        """The last attempt's span; None if unknown."""
        return self._spans.get((record.topic, record.partition, record.offset))

    def take(self, record: Record) -> Any:
        """The same, and forget it."""
        return self._spans.pop((record.topic, record.partition, record.offset), None)
