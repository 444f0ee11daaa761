"""One task of the operator: Arrow batches in, rows out, the handler called in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import pyarrow as pa

from weft.app import App, app_of
from weft.core.spec import ALL_STARTS_PER_S, HandlerSpec
from weft.core.work import Work
from weft.decoding import decoding_of, is_async
from weft.runtime.calls.loops import HandlerLoop
from weft.runtime.handling import HandlerPlan
from weft.runtime.histogram import Latency
from weft.runtime.run import gc_pace
from weft.spark.processing.intake import Intake, chunks, groups, sorted_chunks
from weft.spark.processing.lanes import Lanes
from weft.spark.processing.payload import unpacked
from weft.spark.processing.rows import carried, message_bytes, row_batches
from weft.spark.processing.settings import TaskSettings
from weft.spark.processing.took import BOUNDS, with_call_times
from weft.spark.processing.typed import fields_decoder
from weft.spark.source.errors import one_line_errors
from weft.spark.source.worker import settle_in

#: What a task holds of records that are no rows yet; a chunk of them is let in below that.
WAITING_RECORDS_MAX = 30_000
WAITING_BYTES_MAX = 32 * 2**20
#: Rows are handed to Spark when there are so many, or after so long.
ROWS_AT_ONCE = 10_000
ROWS_EVERY_S = 0.2
CLOSE_S = 20.0

Rows = Iterator[tuple[pa.RecordBatch, Sequence[Work]]]


def run_task(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Runs in a worker of Spark's."""
    settle_in()
    with one_line_errors():
        settings = unpacked(payload)
        with _opened(settings) as lanes:
            value, batches = _value_type(batches)
            found = _rows(settings, lanes, batches)
            carry = settings.carry
            rows = carried(found, carry, value) if carry else (batch for batch, _ in found)
            yield from with_call_times(rows, lanes.latency) if settings.timed else rows


def _value_type(batches: Iterator[pa.RecordBatch]) -> tuple[pa.DataType, Iterator[pa.RecordBatch]]:
    """What the records' values are in Arrow: bytes, or fields; and all batches."""
    for first in batches:
        found = first.schema.field("value").type
        kind = found if pa.types.is_struct(found) else pa.binary()
        return kind, chain([first], batches)
    return pa.binary(), batches


@contextmanager
def _opened(settings: TaskSettings) -> Iterator[Lanes]:
    """The lanes with whatever the handler needs, closed at the end."""
    function, prefetch = settings.options.function, settings.options.prefetch
    app = app_of(function) or settings.app
    loop = None
    gc_pace.slow_down()
    try:
        plan = plan_of(settings)
        awaits = plan.decoding is not None and plan.decoding.is_async
        if settings.lifespan is not None or awaits or is_async(function) or is_async(prefetch):
            loop = HandlerLoop()
            _enter(loop, settings, app)
        group = "" if app is None else app.options.group
        lanes = Lanes(plan, loop.loop if loop is not None else None, group)
        try:
            yield lanes
        finally:
            lanes.close()
    finally:
        gc_pace.restore()
        if loop is not None:
            loop.close(CLOSE_S)
        if app is not None:
            app.state = None


def _enter(loop: HandlerLoop, settings: TaskSettings, app: App | None) -> None:
    state = loop.enter_and_wait(settings.lifespan, app)
    if app is not None:
        app.state = state


def plan_of(settings: TaskSettings) -> HandlerPlan:
    """The handler as the executors call it."""
    options = settings.options
    rate = options.rate_limit_per_s
    spec = HandlerSpec(
        name=options.name,
        ordering=options.ordering,
        concurrency=options.concurrency,
        retry=options.retry,
        on_exhausted=options.on_exhausted,
        timeout_s=options.timeout_s,
        rate_limit_per_s=ALL_STARTS_PER_S if rate is None else rate,
    )
    value = fields_decoder(options.value) if settings.typed else options.value
    decoding = decoding_of(options.key, value)
    plan = HandlerPlan(spec, options.function, decoding, options.output, options.prefetch)
    if settings.timed:
        plan.latency = Latency(BOUNDS)
    return plan


def _rows(settings: TaskSettings, lanes: Lanes, batches: Iterator[pa.RecordBatch]) -> Rows:
    intake = Intake()
    for chunk in sorted_chunks(batches) if settings.sort else chunks(batches):
        while _is_full(lanes):
            yield from _finished(lanes)
        lanes.feed([intake.new_rows(group) for group in groups(chunk)])
        if lanes.finished_count >= ROWS_AT_ONCE:
            yield from _finished(lanes)
    while lanes.outstanding:
        yield from _finished(lanes)


def _is_full(lanes: Lanes) -> bool:
    return lanes.outstanding >= WAITING_RECORDS_MAX or lanes.waiting_bytes() >= WAITING_BYTES_MAX


def _finished(lanes: Lanes) -> Rows:
    """Wait a little for finished records, and make them rows."""
    lanes.wait(ROWS_AT_ONCE, ROWS_EVERY_S)
    works, outputs = lanes.take_finished()
    yield from row_batches(works, outputs)
    if outputs:
        lanes.rows_left(sum(map(message_bytes, outputs.values())))
