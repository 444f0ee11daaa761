"""Many rows into a producer with one call, and its delivery reports as events.

`Producer.produce` takes twice the time that librdkafka itself needs for a row. But confluent-kafka
reports only rows that went through it: `Producer.poll` and `flush` would lose the failure of
others. While such rows are queued, call `serve` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from perkey.kafka import clib

#: RD_KAFKA_PARTITION_UA: the partitioner decides.
_ANY_PARTITION = -1
#: RD_KAFKA_MSG_F_COPY: the buffers are free after the call.
_COPY = 2
#: types of events
_DELIVERY, _LOG, _ERROR = 1, 4, 8
#: codes of errors
_INVALID_ARG, _FATAL = -186, -150
QUEUE_FULL = -184
#: levels of syslog as those of logging
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)


class Row(Structure):
    """rd_kafka_message_t, with addresses as numbers."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_size_t),
        ("partition", c_int32),
        ("value", c_size_t),
        ("value_size", c_size_t),
        ("key", c_size_t),
        ("key_size", c_size_t),
        ("offset", c_int64),
        ("private", c_size_t),
    )


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "rd_kafka_queue_get_main": (c_void_p, (c_void_p,)),
    "rd_kafka_event_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_event_log": (
        c_int,
        (c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int)),
    ),
}


@cache
def _calls() -> Any:
    return clib.declared(clib.library(), _SIGNATURES)


def rows_in(columns: Mapping[str, pa.Array], count: int) -> Any:
    """An array of `Row` for the columns `key` and `value`, valid as long as these live."""
    rows = np.zeros(count, Row)
    for name, column in columns.items() if count else ():
        data, starts, rows[f"{name}_size"] = places_in(column)
        rows[name] = starts + data.address
        if column.null_count:
            rows[name][column.is_null().to_numpy(zero_copy_only=False)] = 0
    return rows


def places_in(column: pa.Array) -> tuple[pa.Buffer, Any, Any]:
    """The buffer of a binary column, and where each value starts there and its size in bytes.

    Not of an empty column. The size of a null is 0.
    """
    _, offsets, data = column.buffers()
    wide = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    ends = np.frombuffer(offsets, wide, len(column) + 1, column.offset * wide().itemsize)
    sizes = np.diff(ends)
    if column.null_count:
        sizes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return data or offsets, ends[:-1].astype(np.int64), sizes


def produce_rows(producer: Producer, topic: str, rows: Any) -> tuple[int, int]:
    """Queue an array of `Row`: the number of queued rows, and the code of what stopped it.

    After `QUEUE_FULL` the remaining rows can be queued later.
    """
    calls, rk = _calls(), clib.handle(producer)
    place = calls.rd_kafka_topic_new(rk, topic.encode(), None)
    if place is None:
        raise KafkaException(KafkaError(_INVALID_ARG, f"not a topic: {topic!r}"))
    try:
        calls.rd_kafka_produce_batch(place, _ANY_PARTITION, _COPY, rows.ctypes.data, len(rows))
    finally:
        calls.rd_kafka_topic_destroy(place)
    failed = np.flatnonzero(rows["err"])
    return (int(failed[0]), int(rows["err"][failed[0]])) if len(failed) else (len(rows), 0)


def serve(
    producer: Producer,
    wait_s: float,
    undelivered: Callable[[KafkaError], None],
    on_error: Callable[[KafkaError], None],
    logger: logging.LoggerAdapter[logging.Logger],
) -> None:
    """Handle all available events; waits up to `wait_s` for the first."""
    calls, rk = _calls(), clib.handle(producer)
    queue = calls.rd_kafka_queue_get_main(rk)
    wait_ms = int(wait_s * 1000)
    try:
        while event := calls.rd_kafka_queue_poll(queue, wait_ms):
            wait_ms = 0
            try:
                kind, code = calls.rd_kafka_event_type(event), calls.rd_kafka_event_error(event)
                if kind == _DELIVERY and code:
                    undelivered(KafkaError(code))
                elif kind == _ERROR:
                    text = _text(calls.rd_kafka_event_error_string(event))
                    fatal = clib.fatal_error(producer) if code == _FATAL else None
                    on_error(fatal or KafkaError(code, text))
                elif kind == _LOG:
                    name, line, level = c_char_p(), c_char_p(), c_int()
                    calls.rd_kafka_event_log(event, byref(name), byref(line), byref(level))
                    words = _text(name.value), _text(calls.rd_kafka_name(rk)), _text(line.value)
                    logger.log(_LEVELS[level.value], "%s [%s] %s", *words)
            finally:
                calls.rd_kafka_event_destroy(event)
    finally:
        calls.rd_kafka_queue_destroy(queue)


def _text(given: bytes | None) -> str:
    return (given or b"").decode(errors="replace")
