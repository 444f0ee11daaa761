"""Convert finished records to rows of the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perkey.core.work import Work
from perkey.kafka.ports import OutMessage
from perkey.spark.processing.columns import (
    ARROW_SCHEMA,
    CARRIED,
    HEADERS,
    MICROSECONDS,
    OUTPUT,
    RECORD_ROW,
    STORY,
)

ROWS_MAX = 10_000
OUTPUT_BYTES_MAX = 8 * 2**20

Outputs = Sequence[OutMessage]
_record: Callable[[Work], tuple[Any, ...]] = attrgetter("record")
_failure: Callable[[Work], object] = attrgetter("failure")
_topic, _partition, _offset, _key = map(itemgetter, (0, 1, 2, 4))


def message_bytes(outputs: Outputs) -> int:
    """The approximate size of outputs in memory."""
    return sum(64 + len(m.value or b"") + len(m.key or b"") for m in outputs)


def carried(
    batches: Iterable[tuple[pa.RecordBatch, Sequence[Work]]], carry: str, value: pa.DataType
) -> Iterator[tuple[pa.RecordBatch, Sequence[Work]]]:
    """The batches with the columns that `carry=` adds; `value`: the type of the records' values."""
    schema = pa.schema([*ARROW_SCHEMA, pa.field("value", value), *CARRIED])
    clocks_s = time.time() - time.monotonic()

    def story(work: Work) -> list[dict[str, Any]]:
        return [{"at": int((clocks_s + at) * 1e6), "what": what} for at, what in work.story()]

    for batch, works in batches:
        kept = [w if carry == "all" or (w.failure and w.failure.given_up) else None for w in works]
        records = [None if w is None else w.record for w in kept]
        times = [None if r is None or r.timestamp_ms < 0 else r.timestamp_ms for r in records]
        columns = [
            pa.array([r and r.value for r in records], value),
            pc.multiply(pa.array(times, pa.int64()), 1000).cast(MICROSECONDS),
            pa.array([r and r.headers for r in records], HEADERS),
            pa.array([w and story(w) for w in kept], STORY),
        ]
        yield pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema), works


def row_batches(
    works: Sequence[Work], outputs: dict[Work, Outputs]
) -> Iterator[tuple[pa.RecordBatch, Sequence[Work]]]:
    """Rows for these records, in batches of bounded size, each with its records."""
    if not outputs:
        for start in range(0, len(works), ROWS_MAX):
            some_works = works[start : start + ROWS_MAX]
            yield _batch(some_works, []), some_works
        return
    some: list[Work] = []
    sent: list[Outputs] = []
    size_bytes = 0
    for work in works:
        messages = outputs.get(work, ())
        some.append(work)
        sent.append(messages)
        size_bytes += message_bytes(messages)
        if len(some) >= ROWS_MAX or size_bytes >= OUTPUT_BYTES_MAX:
            yield _batch(some, sent), some
            some, sent, size_bytes = [], [], 0
    if some:
        yield _batch(some, sent), some


def _batch(works: Sequence[Work], sent: Sequence[Outputs]) -> pa.RecordBatch:
    records = list(map(_record, works))
    topics = list(map(_topic, records))
    same = topics.count(topics[0]) == len(topics)
    columns = [
        pa.repeat(pa.scalar(topics[0], pa.string()), len(topics))
        if same
        else pa.array(topics, pa.string()),
        # Through numpy: Arrow's check of each Python number takes longer than this.
        pa.array(np.fromiter(map(_partition, records), np.int32, len(records))),
        pa.array(np.fromiter(map(_offset, records), np.int64, len(records))),
        pa.array(list(map(_key, records)), pa.binary()),
        *_outcomes(works),
        _outputs(sent, len(works)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def done_rows(rows: pa.RecordBatch, outputs: Mapping[int, Outputs]) -> pa.RecordBatch:
    """The result's rows for input that is done at the first attempt; `outputs`: by row."""
    count = rows.num_rows
    sent = [outputs.get(row, ()) for row in range(count)] if outputs else []
    own = [
        rows.column(field.name).cast(field.type)
        for field in ARROW_SCHEMA
        if field.name in RECORD_ROW
    ]
    columns = [*own, *_all_done(count), _outputs(sent, count)]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _all_done(count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Status, attempts and error of records that are done at their first attempt."""
    done = pa.repeat(pa.scalar("done", pa.string()), count)
    return done, pa.repeat(pa.scalar(1, pa.int32()), count), pa.nulls(count, pa.string())


def _outcomes(works: Sequence[Work]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Status, attempts and error; most records are done at their first attempt."""
    if not any(map(_failure, works)):
        return _all_done(len(works))
    facts: list[tuple[str, int, str | None]] = []
    for work in works:
        failure = work.failure
        if failure is None:
            facts.append(("done", 1, None))
        elif failure.given_up is None:
            facts.append(("done", failure.attempts + 1, None))
        else:
            error = None if failure.error is None else failure.error.line
            facts.append(("failed", failure.attempts, error))
    status, attempts, errors = zip(*facts, strict=True)
    return (
        pa.array(status, pa.string()),
        pa.array(attempts, pa.int32()),
        pa.array(errors, pa.string()),
    )


def _outputs(sent: Sequence[Outputs], count: int) -> pa.Array:
    if not any(sent):
        empty = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
        return pa.ListArray.from_arrays(empty, pa.array([], OUTPUT))
    messages = [message for outputs in sent for message in outputs]
    structs = pa.StructArray.from_arrays(
        [
            pa.array([m.topic or None for m in messages], pa.string()),
            pa.array([m.key for m in messages], pa.binary()),
            pa.array([m.value for m in messages], pa.binary()),
            pa.array([m.headers for m in messages], HEADERS),
        ],
        fields=list(OUTPUT),
    )
    edges = pa.array(list(accumulate(map(len, sent), initial=0)), pa.int32())
    return pa.ListArray.from_arrays(edges, structs)
