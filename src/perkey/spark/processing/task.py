"""One task of `process`: Arrow batches in, rows out, the handler called in between.

    batches -> Leftovers.with_earlier (deadline_s= of a stream) or Stretches.fresh (progress=)
            -> chunks: `sorted_chunks` in a stream; a batch's rows come sorted
            -> `_done_ahead`: calls that neither wait nor fail (ahead.py)
            -> `Lanes.feed`: the core (lanes.py) -> finished records -> `row_batches` (rows.py)
            -> `carried` and `Held.added`: carried columns -> Stretches.kept -> `with_call_times`

All of it is generators on the task's thread: nothing runs while Spark takes its rows but calls that
have started, and retries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic as clock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext

from perkey.app import app_of
from perkey.core.work import Work
from perkey.decoding import is_async
from perkey.errors import FatalError
from perkey.runtime.calls.loops import HandlerLoop
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.histogram import Latency
from perkey.runtime.run import gc_pace
from perkey.spark.processing.columns import BOUNDS, with_call_times
from perkey.spark.processing.intake import Intake, RowGroup, chunks, groups, sorted_chunks, whole
from perkey.spark.processing.lanes import TaskLanes
from perkey.spark.processing.leftovers import Leftovers, TaskOfBatch
from perkey.spark.processing.payload import unpacked
from perkey.spark.processing.rows import (
    OUTPUT_BYTES_MAX,
    Outputs,
    carried,
    done_rows,
    message_bytes,
    row_batches,
)
from perkey.spark.processing.settings import TaskSettings
from perkey.spark.processing.stretches import Stretches
from perkey.spark.processing.typed import is_model
from perkey.spark.source.worker import BATCH_ID, QUERY_ID, one_line_errors, settle_in
from perkey.types import TopicPartition

#: most unfinished records of a task; the next chunk is read below that
WAITING_RECORDS_MAX = 30_000
WAITING_BYTES_MAX = 32 * 2**20
#: Rows are passed to Spark at this number, or after so long.
ROWS_EACH = 10_000
ROWS_EVERY_S = 0.2
CLOSE_S = 20.0

Rows = Iterator[tuple[pa.RecordBatch, Sequence[Work]]]


def run_task(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Runs in a Spark worker."""
    settle_in()
    with one_line_errors():
        settings = unpacked(payload)
        with _opened(settings) as lanes:
            kept, left = None, None
            if settings.deadline_s is not None:
                assert settings.progress is not None, "they are given together"
                left = Leftovers(settings.progress, task_of_batch())
                batches = left.with_earlier(batches)
            value, first = pa.binary(), next(batches, None)
            if first is not None:
                kind = first.schema.field("value").type
                value = kind if pa.types.is_struct(kind) else value
                batches = chain([first], batches)
            held = Held(settings.others)
            if left is not None:
                found = _rows_in_time(settings, lanes, held, batches, left)
            else:
                if settings.progress is not None:
                    context = TaskContext.get()
                    # The number of this part of the data: the same lanes for equally many slots.
                    kept = Stretches(settings.progress, context.partitionId() if context else 0)
                    batches = kept.fresh(batches)
                found = _rows(settings, lanes, held, batches)
            if settings.carry:
                found = carried(found, settings.carry, value)
            if settings.others:
                found = held.added(found)
            rows: Iterator[pa.RecordBatch] = (batch for batch, _ in found)
            if kept is not None:
                rows = chain(kept.kept(rows), kept.load())
            yield from with_call_times(rows, lanes.latency) if settings.timed else rows


def task_of_batch() -> TaskOfBatch:
    """The place of this task; FatalError if Spark does not name it."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    if context is None or query is None or batch is None:
        raise FatalError(
            "process: deadline_s: Spark does not name this micro-batch (it does not to a"
            " foreachBatch over Spark Connect): leave deadline_s out"
        )
    return TaskOfBatch(query, int(batch), context.partitionId())


@contextmanager
def _opened(settings: TaskSettings) -> Iterator[TaskLanes]:
    """The lanes with everything that the handler needs, closed at the end."""
    function, prefetch = settings.options.function, settings.options.prefetch
    app = app_of(function) or settings.app
    loop = None
    gc_pace.slow_down()
    try:
        plan = task_plan(settings)
        awaits = plan.decoding is not None and plan.decoding.is_async
        if settings.lifespan is not None or awaits or is_async(function) or is_async(prefetch):
            loop = HandlerLoop()
            state = loop.enter_and_wait(settings.lifespan, app)
            if app is not None:
                app.state = state
        group = "" if app is None else app.options.group
        lanes = TaskLanes(settings.options, plan, loop.loop if loop is not None else None, group)
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


def task_plan(settings: TaskSettings) -> HandlerPlan:
    """The handler as the executors call it."""
    options = settings.options
    if settings.typed:  # from a row's fields; `dict` copies: the handler may change it
        value = options.value
        options = replace(options, value=value.model_validate if is_model(value) else dict)
    plan = HandlerPlan.of(options, options.name)
    if settings.timed:
        plan.latency = Latency(BOUNDS)
    return plan


def _rows(
    settings: TaskSettings, lanes: TaskLanes, held: Held, batches: Iterator[pa.RecordBatch]
) -> Rows:
    intake = Intake()
    for chunk in sorted_chunks(batches) if settings.sort else chunks(batches):
        while _is_full(lanes):
            yield from _finished(lanes)
        pieces = [chunk]
        if not settings.carry and not settings.others:
            pieces = yield from _done_ahead(chunk, lanes, intake)
        for piece in pieces:
            lanes.feed(_taken_in(piece, settings, intake, held))
        if lanes.finished_count >= ROWS_EACH:
            yield from _finished(lanes)
    while lanes.outstanding:
        yield from _finished(lanes)


def _done_ahead(
    chunk: pa.RecordBatch, lanes: TaskLanes, intake: Intake
) -> Generator[tuple[pa.RecordBatch, Sequence[Work]], None, list[pa.RecordBatch]]:
    """The rows that need nothing of the core; returns what it must be fed, piece by piece."""
    ahead = lanes.ahead()
    taken = None if ahead is None else intake.in_order(chunk)
    if ahead is None or taken is None:
        return [chunk]
    records, left, over = taken.records(), chunk, False
    while left.num_rows and not over:
        ready, size_bytes, since = 0, 0, clock()
        outputs: dict[int, Outputs] = {}
        while not over and ready < left.num_rows and size_bytes < OUTPUT_BYTES_MAX:
            run = ahead.run(records)
            outputs.update({ready + row: sent for row, sent in run.outputs.items()})
            ready, size_bytes, over = ready + run.count, size_bytes + run.output_bytes, run.over
            if clock() - since >= ROWS_EVERY_S:
                break
        if ready:
            yield done_rows(left.slice(0, ready), outputs), ()
            left = left.slice(ready)
    intake.passed(taken, chunk.num_rows - left.num_rows)
    # A call that has begun is the core's first one: no other may take its slot.
    return [left.slice(0, 1), left.slice(1)] if left.num_rows else []


def _rows_in_time(
    settings: TaskSettings,
    lanes: TaskLanes,
    held: Held,
    batches: Iterator[pa.RecordBatch],
    left: Leftovers,
) -> Rows:
    """The rows that are finished at the deadline; the same ones if the batch is repeated."""
    assert settings.deadline_s is not None, "otherwise `_rows` runs"
    intake, ends = Intake(), clock() + settings.deadline_s
    table = whole(batches)
    if left.decided is not None:
        ends = float("inf")
    waiting = deque(() if table is None else sorted_chunks(table.to_batches()))
    while (waiting or lanes.outstanding) and clock() < ends:
        if waiting and not _is_full(lanes):
            lanes.feed(_taken_in(waiting.popleft(), settings, intake, held), left.attempts)
        if not waiting or _is_full(lanes) or lanes.finished_count >= ROWS_EACH:
            yield from _finished(lanes)
    lanes.stop_starting()
    while running := lanes.running():
        yield from _finished(lanes, running)
    yield from _finished(lanes, 0)
    if left.decided is None:
        unfinished = lanes.unfinished()
        for chunk in waiting:
            unfinished.update(left.not_fed(chunk))
        left.decide(table, unfinished)


def _taken_in(
    chunk: pa.RecordBatch, settings: TaskSettings, intake: Intake, held: Held
) -> list[RowGroup]:
    together = [intake.new_rows(group) for group in groups(chunk)]
    if settings.others:
        for group in together:
            held.keep((group.topic, group.partition), group.rows)
    return together


def _is_full(lanes: TaskLanes) -> bool:
    return lanes.outstanding >= WAITING_RECORDS_MAX or lanes.waiting_bytes() >= WAITING_BYTES_MAX


def _finished(lanes: TaskLanes, count: int = ROWS_EACH) -> Rows:
    """Wait a little for this many finished records, and convert the available ones to rows."""
    if count:
        lanes.wait(count, ROWS_EVERY_S)
    works, outputs = lanes.take_finished()
    yield from row_batches(works, outputs)
    if outputs:
        lanes.rows_left(sum(map(message_bytes, outputs.values())))


# -- held ------------------------------------------------------------------------------------------

#: A piece with a smaller unfinished part than this is copied: one slow record must not keep
#: thousands of others in memory.
KEPT_PART_MIN = 0.25


@dataclass(slots=True)
class _Piece:
    """Rows of one partition in offset order, and which of them are unfinished."""

    offsets: NDArray[np.int64]
    rows: pa.RecordBatch
    waiting: NDArray[np.bool_]

    def taken(self, places: NDArray[np.int64]) -> pa.RecordBatch:
        """These rows, which leave the piece."""
        self.waiting[places] = False
        return self.rows.take(pa.array(places))

    def shrink(self) -> bool:
        """Drop finished rows if they are most of it; False if none remain."""
        left = int(np.count_nonzero(self.waiting))
        if left < KEPT_PART_MIN * len(self.offsets):
            kept = np.flatnonzero(self.waiting)
            # A copy: a slice would keep all of its source.
            self.rows = self.rows.take(pa.array(kept))
            self.offsets, self.waiting = self.offsets[kept], self.waiting[kept]
        return left > 0


class Held:
    """The DataFrame's other columns, from a task's input to its rows: `carry="*"`.

    They stay Arrow: no Python objects are created. A task's input is kept by partition in offset
    order, so the rows of finished records are found by binary search.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: the columns' names in the task's input -> in its rows."""
        self._names = names
        self._pieces: dict[TopicPartition, list[_Piece]] = {}
        #: the first offset of each piece
        self._first: dict[TopicPartition, list[int]] = {}

    def keep(self, place: TopicPartition, rows: pa.RecordBatch) -> None:
        """Add rows of one partition, after the earlier ones."""
        offsets = rows.column("offset").to_numpy()
        piece = _Piece(offsets, rows.select(list(self._names)), np.ones(len(offsets), np.bool_))
        self._pieces.setdefault(place, []).append(piece)
        self._first.setdefault(place, []).append(int(offsets[0]))

    def added(self, finished: Rows) -> Rows:
        """The rows of finished records, with these columns after their own."""
        for batch, works in finished:
            more = self._columns_of(works)
            names = zip(self._names.values(), more, strict=True)
            schema = pa.schema([*batch.schema, *(pa.field(name, c.type) for name, c in names)])
            yield pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema), works

    def _columns_of(self, works: Sequence[Work]) -> list[pa.Array]:
        by_piece: dict[tuple[TopicPartition, int], tuple[list[int], list[int]]] = {}
        for row, work in enumerate(works):
            record = work.record
            place = (record.topic, record.partition)
            number = bisect_right(self._first[place], record.offset) - 1
            rows, offsets = by_piece.setdefault((place, number), ([], []))
            rows.append(row)
            offsets.append(record.offset)
        parts, order = [], np.empty(len(works), np.int64)
        at = 0
        for (place, number), (rows, wanted) in by_piece.items():
            piece = self._pieces[place][number]
            parts.append(piece.taken(np.searchsorted(piece.offsets, wanted)))
            order[rows] = np.arange(at, at + len(rows))
            at += len(rows)
        for place in {place for place, _ in by_piece}:
            pieces = self._pieces[place]
            kept = self._pieces[place] = [piece for piece in pieces if piece.shrink()]
            self._first[place] = [int(piece.offsets[0]) for piece in kept]
        table = pa.Table.from_batches(parts).combine_chunks().take(pa.array(order))
        return [column.combine_chunks() for column in table.columns]
