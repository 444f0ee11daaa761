"""Kafka messages as Arrow record batches, in exactly the types of Spark's own connector."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from numpy.typing import NDArray
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from perkey.spark.source.ranges import OffsetRange

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
#: Every column with the type of Spark's connector; all of them are nullable. Spark compares the
#: first batch with its own schema field by field.
ARROW_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
}

#: The largest value whose microseconds fit into 64 bits.
MILLISECONDS_MAX = (2**63 - 1) // 1000

log = logging.getLogger("perkey.spark.source")

Messages = Sequence[Message]
#: kind and milliseconds, from librdkafka
Times = Sequence[tuple[int, int]]
_kind, _milliseconds = itemgetter(0), itemgetter(1)


def spark_schema(columns: Sequence[str]) -> StructType:
    """The schema of a DataFrame with these columns."""
    return StructType([StructField(name, from_arrow_type(ARROW_TYPES[name])) for name in columns])


def batch_builder(
    columns: Sequence[str], span: OffsetRange
) -> Callable[[Messages], pa.RecordBatch]:
    """A function that turns messages of one range into a record batch with these columns.

    By whole columns: `map` over a C method costs a tenth of a Python loop per record.
    """
    schema = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])
    wants_times = "timestamp" in columns or "timestampType" in columns

    def build(messages: Messages) -> pa.RecordBatch:
        times = list(map(Message.timestamp, messages)) if wants_times else []
        arrays = [column(name, messages, times, span) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return build


def column(name: str, messages: Messages, times: Times, span: OffsetRange) -> pa.Array:
    """One column of a batch."""
    match name:
        case "key":
            return pa.array(list(map(Message.key, messages)), pa.binary())
        case "value":
            return pa.array(list(map(Message.value, messages)), pa.binary())
        case "topic":
            return pa.repeat(pa.scalar(span.topic, pa.string()), len(messages))
        case "partition":
            return pa.repeat(pa.scalar(span.partition, pa.int32()), len(messages))
        case "offset":
            return pa.array(offsets(messages))
        case "timestamp":
            return timestamps(times)
        case "timestampType":
            return timestamp_types(times)
    return headers(messages)


def offsets(messages: Messages) -> NDArray[np.int64]:
    """Offsets only grow: if there are as many as the span is wide, they are consecutive.

    Through numpy, here and below: Arrow's check of each Python number takes longer.
    """
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    if last - first + 1 == len(messages):
        return np.arange(first, last + 1, dtype=np.int64)
    return np.fromiter(map(Message.offset, messages), np.int64, len(messages))


def timestamps(times: Times) -> pa.Array:
    """Kafka's milliseconds as Spark's microseconds in UTC; null where a microsecond overflows."""
    milliseconds = pa.array(np.fromiter(map(_milliseconds, times), np.int64, len(times)))
    microseconds = pa.timestamp("us", tz="UTC")
    try:
        return milliseconds.cast(pa.timestamp("ms")).cast(microseconds)
    except pa.ArrowInvalid:
        # A producer may have written nanoseconds, or anything else.
        inside = pc.less_equal(pc.abs(milliseconds), MILLISECONDS_MAX)
        log.warning("%d records have a timestamp that Spark cannot hold: it is null there",
                    len(times) - (pc.sum(inside).as_py() or 0))  # fmt: skip
        kept = pc.if_else(inside, milliseconds, pa.scalar(None, pa.int64()))
        return kept.cast(pa.timestamp("ms")).cast(microseconds)


def timestamp_types(times: Times) -> pa.Array:
    """0 for the producer's time, 1 for the broker's, -1 for none: one less than librdkafka's."""
    kinds = list(map(_kind, times))
    if kinds.count(kinds[0]) == len(kinds):
        return pa.repeat(pa.scalar(kinds[0] - 1, pa.int32()), len(kinds))
    return pa.array([kind - 1 for kind in kinds], pa.int32())


def headers(messages: Messages) -> pa.Array:
    """The headers in order; null, not empty, where a record has none, as Spark's connector does."""
    return pa.array([m.headers() or None for m in messages], ARROW_TYPES["headers"])
