"""Perkey's side of a benchmark: one app in a process of its own.

`python -m benchmarks.apps '<json of AppSpec>'` prints one line of JSON. Time runs from the first
handler call to the last completion, as in java/Bench.java.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import perkey
from benchmarks.sleeps import table_s
from benchmarks.threads import spent, switches, thread_seconds

Handler = Callable[[perkey.Record], Awaitable[None]] | Callable[[perkey.Record], None]

_SAMPLE_EVERY_S = 0.1
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class AppSpec:
    """What to run; `executor` is "async" or "threads", `handler` as in benchmarks/sleeps.py."""

    bootstrap: str
    topic: str
    group: str
    ordering: str
    executor: str
    handler: str
    concurrency: int
    records: int
    sample_memory: bool = False
    #: switched on: "" nothing, "all" both of "reports" and "http", "otel" spans of every call
    seen: str = ""
    #: where "all" is served
    http: str = ""


@dataclass
class Meter:
    """When the first call began and the last one ended; `next` on a count is atomic."""

    total: int
    started_s: float = 0.0
    finished_s: float = 0.0
    #: processor time of this process at these two moments
    started_cpu_s: float = 0.0
    finished_cpu_s: float = 0.0
    #: and how often its threads had given their processor away
    started_switches: int = 0
    finished_switches: int = 0
    #: and of each of its threads
    started_threads: dict[str, float] = field(default_factory=dict)
    finished_threads: dict[str, float] = field(default_factory=dict)
    calls: Any = field(default_factory=count)
    ends: Any = field(default_factory=lambda: count(1))
    handled: int = 0

    def begin(self) -> None:
        """Before the handler's work."""
        if next(self.calls) == 0:
            self.start()

    def end(self) -> None:
        """After the handler's work."""
        if next(self.ends) == self.total:
            self.finish()

    def start(self) -> None:
        """The first call begins."""
        self.started_threads, self.started_switches = thread_seconds(), switches()
        self.started_s, self.started_cpu_s = time.perf_counter(), time.process_time()

    def finish(self) -> None:
        """The last call has ended."""
        self.finished_s, self.finished_cpu_s = time.perf_counter(), time.process_time()
        self.finished_threads, self.finished_switches = thread_seconds(), switches()

    def row(self) -> dict[str, Any]:
        """What was measured between the two."""
        return {
            "complete": self.finished_s > 0,
            "seconds": self.finished_s - self.started_s,
            "records": self.total,
            "calls": max(next(self.calls), self.handled),
            "calls_cpu_s": self.finished_cpu_s - self.started_cpu_s,
            "switches": self.finished_switches - self.started_switches,
            "threads": spent(self.started_threads, self.finished_threads),
        }


def main() -> None:
    """Run the app until its topic is drained and print what was measured."""
    spec = AppSpec(**json.loads(sys.argv[1]))
    meter = Meter(spec.records)
    samples: list[tuple[int, int]] = []
    app = build(spec, meter)
    if spec.sample_memory:
        threading.Thread(target=_sample, args=(meter, samples), daemon=True).start()
    started_s = time.perf_counter()
    app.run(until="drained")
    result = meter.row() | {
        "run_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time(),
        "samples": samples,
    }
    print(json.dumps(result))


def build(spec: AppSpec, meter: Meter) -> perkey.App:
    """An app with Perkey's defaults and the one handler the spec names."""
    shown: dict[str, Any] = {}
    if spec.seen in ("all", "http"):
        shown["http"] = spec.http
    if spec.seen in ("all", "reports"):
        shown["reports"] = "bench.reports"
    if spec.seen == "otel":
        _trace()
    app = perkey.App(group=spec.group, kafka={"bootstrap.servers": spec.bootstrap}, **shown)
    handler = _counting(meter) if spec.sample_memory else _handler(spec, meter)
    consume: Callable[..., Any] = app.consume  # the options come as text
    consume(spec.topic, ordering=spec.ordering, concurrency=spec.concurrency)(handler)
    return app


def _trace() -> None:
    """Spans of every call, in batches to nowhere: an exporter's own cost is not ours."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        """Takes all and keeps nothing."""

        def export(self, spans: Any) -> SpanExportResult:
            """Forget them."""
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)


def _handler(spec: AppSpec, meter: Meter) -> Handler:
    if spec.handler == "noop":
        return noop(spec.executor, meter)
    sleep_s = table_s if spec.handler == "table" else _constant(float(spec.handler) / 1000)

    async def wait(record: perkey.Record) -> None:
        meter.begin()
        await asyncio.sleep(sleep_s(record.offset))
        meter.end()

    def block(record: perkey.Record) -> None:
        meter.begin()
        time.sleep(sleep_s(record.offset))
        meter.end()

    return wait if spec.executor == "async" else block


def _constant(seconds: float) -> Callable[[int], float]:
    return lambda _offset: seconds


def noop(executor: str, meter: Meter) -> Callable[[Any], Any]:
    """One count a call: begin and end are the same moment."""
    step, last = meter.calls, meter.total - 1

    def tick() -> None:
        n = next(step)
        if n == 0:
            meter.start()
        if n == last:
            meter.finish()

    async def coroutine(_record: Any) -> None:
        tick()

    def function(_record: Any) -> None:
        tick()

    return coroutine if executor == "async" else function


def _counting(meter: Meter) -> Handler:
    """A no-op whose progress another thread can read (async only: the loop is the one writer)."""

    async def counted(_record: perkey.Record) -> None:
        if meter.handled == 0:
            meter.start()
        meter.handled += 1
        if meter.handled == meter.total:
            meter.finish()

    return counted


def _sample(meter: Meter, samples: list[tuple[int, int]]) -> None:
    """Append (records handled, resident bytes) until the process ends."""
    while True:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        samples.append((meter.handled, pages * _PAGE_BYTES))
        time.sleep(_SAMPLE_EVERY_S)


if __name__ == "__main__":
    main()
