"""An app whose parent and worker processes have an OpenTelemetry SDK: `traced.py SPANS KIND`.

Set up at the top level of the module, which each worker imports. Spans go into the file SPANS, a
line each; the headers of what was made go to stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import perkey
from perkey.testing import MemoryKafka, run

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACED = (("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()),)


class Lines(SpanExporter):
    """A line for each span, with the process that made it."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append them in one write: other processes do so, too."""
        told = [json.dumps({**json.loads(span.to_json()), "pid": os.getpid()}) for span in spans]
        with Path(sys.argv[1]).open("a") as file:
            file.write("".join(f"{line}\n" for line in told))
        return SpanExportResult.SUCCESS


provider = TracerProvider()
# Minutes: what is exported at all is flushed when its process ends.
provider.add_span_processor(BatchSpanProcessor(Lines(), schedule_delay_millis=600_000))
trace.set_tracer_provider(provider)


def called(record: perkey.Record) -> perkey.Produce:
    """Fails twice, in a span of the user's own."""
    with trace.get_tracer("shop").start_as_current_span("inner"):
        if record.attempt < 3:
            raise ValueError("not yet")
    return perkey.Produce(b"made")


async def awaited(record: perkey.Record) -> perkey.Produce:
    """The same, after having waited."""
    await asyncio.sleep(0)
    return called(record)


def together(batch: perkey.RecordBatch) -> None:
    """A batch that fails once: its records come back one by one."""
    if len(batch) > 1:
        raise ValueError("not together")


def main(kind: str) -> None:
    """Run one kind of handler and tell what it made."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})
    retry = perkey.Retry(attempts=3, delay_s=0.01, jitter=0)
    if kind == "together":
        batch = perkey.Batch(max_records=2, linger_s=5.0)
        app.consume("t", executor="processes", concurrency=2, retry=retry, batch=batch)(together)
    else:
        handler = called if kind == "called" else awaited
        app.consume("t", executor="processes", concurrency=2, retry=retry, output="out")(handler)
    keys = (b"a", b"b") if kind == "together" else (b"a",)
    records = [perkey.Record("t", 0, at, 0, key, b"v", TRACED) for at, key in enumerate(keys)]
    with MemoryKafka(auto_create=True) as kafka:
        run(app, records, broker=kafka)
        made = [] if kind == "together" else kafka.records("out")
        print(json.dumps([{name: value.decode() for name, value in one.headers} for one in made]))


if __name__ == "__main__":
    main(sys.argv[2])
