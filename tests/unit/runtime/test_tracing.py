"""OpenTelemetry: spans, their links, and what outputs carry on; and nothing when it is off."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import perkey
from perkey.runtime.calls import tracing as module
from perkey.runtime.calls.tracing import Tracing, carried, tracing
from perkey.testing import MemoryKafka, run

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01".encode()
TRACED = (("traceparent", PARENT), ("other", b"x"))


@pytest.fixture
def spans(monkeypatch):
    """What was exported while an SDK is set up."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield kept.get_finished_spans
    provider.shutdown()


@pytest.fixture
def app():
    return perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})


def record(offset=0, headers=TRACED, key=b"k", value=b"v"):
    return perkey.Record("t", 0, offset, 0, key, value, headers)


def links(span):
    return {link.attributes["perkey.link"]: link.context for link in span.links}


@pytest.mark.parametrize("kind", ["def", "async"])
def test_a_span_for_each_call(spans, app, kind):
    """A consumer span by the messaging conventions, within and linked to the producer's."""
    inside = []
    if kind == "def":

        @app.consume("t")
        def handler(record):
            inside.append(trace.get_current_span().get_span_context().span_id)
    else:

        @app.consume("t")
        async def handler(record):
            inside.append(trace.get_current_span().get_span_context().span_id)

    run(app, [record()])
    (span,) = spans()
    assert (span.name, span.kind) == ("process t", trace.SpanKind.CONSUMER)
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "g",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "k",
        "perkey.attempt": 1,
    }
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{links(span)['producer'].trace_id:032x}" == TRACE
    assert inside == [span.context.span_id]


def test_retries_are_linked_to_each_other(spans, app):
    """Each attempt is a span with its error, linked to the one before."""

    @app.consume("t", retry=perkey.Retry(attempts=3, delay_s=0), on_exhausted=perkey.Skip())
    def handler(record):
        raise KeyError("no")

    run(app, [record()])
    first, second, third = spans()
    assert links(second)["attempt before"].span_id == first.context.span_id
    assert links(third)["attempt before"].span_id == second.context.span_id
    assert "attempt before" not in links(first)
    assert third.attributes["error.type"] == "KeyError"
    assert third.status.status_code is trace.StatusCode.ERROR
    assert third.attributes["perkey.attempt"] == 3


def test_a_batch_is_linked_to_each_producer(spans, app):
    """One span with the number of its records, in a trace of its own, linked to all of theirs."""

    @app.consume("t", batch=perkey.Batch(max_records=2, linger_s=5))
    def handler(batch):
        pass

    run(app, [record(0), record(1, headers=())])
    (span,) = spans()
    assert span.attributes["messaging.batch.message_count"] == 2
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE]
    assert f"{span.context.trace_id:032x}" != TRACE


def test_outputs_carry_the_span_on(spans, app):
    """What a handler returns has its span's traceparent; one that names its own keeps it."""
    mine = ("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")

    @app.consume("t", output="out")
    def handler(record):
        return [perkey.Produce(b"1"), perkey.Produce(b"2", headers=[mine])]

    with MemoryKafka(auto_create=True) as kafka:
        run(app, [record()], broker=kafka)
        first, second = (dict(one.headers) for one in kafka.records("out"))
    (span,) = spans()
    assert first["traceparent"].decode() == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert second == dict([mine])


def test_outputs_and_dead_letters_carry_the_trace_on_without_opentelemetry(app):
    """Only the W3C's headers go to outputs; a dead letter has all headers of its record."""

    @app.consume(
        "t", output="out", retry=perkey.Retry(attempts=1), on_exhausted=perkey.DeadLetter("dead")
    )
    def handler(record):
        if record.offset:
            raise ValueError("no")
        return b"1"

    with MemoryKafka(auto_create=True) as kafka:
        run(app, [record(0), record(1, key=b"l")], broker=kafka)
        (output,), (letter,) = kafka.records("out"), kafka.records("dead")
    assert dict(output.headers) == {"traceparent": PARENT}
    assert dict(letter.headers)["traceparent"] == PARENT
    assert dict(letter.headers)["other"] == b"x"


def test_headers_without_a_trace_cost_nothing():
    """The very same headers come back."""
    own = (("a", b"1"),)
    assert carried((), own) is own
    assert carried((("b", b"2"),), own) is own


def test_it_is_off_without_a_provider_and_without_the_library():
    """The handler is called as it is, and the library is not even imported by the app."""

    def handler(record):
        pass

    assert tracing("g")(handler) is handler
    script = "import sys; sys.modules['opentelemetry'] = None\nfrom perkey.runtime.calls.tracing import tracing\nassert tracing('g')(len) is len"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_failed_attempts_that_are_remembered_are_bounded(spans, monkeypatch):
    """Of more than the limit the oldest are forgotten."""
    monkeypatch.setattr(module, "FAILED_MAX", 2)
    one = Tracing(trace.get_tracer_provider().get_tracer("t"), "g")

    def fails(record):
        raise ValueError("no")

    for offset in range(3):
        with pytest.raises(ValueError, match="no"):
            one.around(fails)(record(offset))
    assert [one.seen(record(offset)) is not None for offset in range(3)] == [False, True, True]


def test_headers_that_are_no_trace_are_none(spans, app):
    """Bytes that are no text, no value at all and too much text change nothing."""
    bad = (("traceparent", b"\xff\x00"), ("tracestate", None), ("baggage", b"x" * 100_000))
    app.consume("t")(print)
    run(app, [record(headers=bad)])
    (span,) = spans()
    assert span.parent is None
    assert span.links == ()
