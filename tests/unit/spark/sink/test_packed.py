"""Rows that are queued many at a time: where they are in memory, and what becomes of each."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer
from tests.support.waiting import wait_for

from perkey.kafka import clib_rows
from perkey.kafka.clib_rows import QUEUE_FULL, Row
from perkey.kafka.clientlog import ClientLog
from perkey.spark.sink import plain
from perkey.spark.sink.columns import Packed, Rows, packed_of, rows_of
from perkey.spark.sink.options import SinkOptions, sink_options
from perkey.spark.sink.plain import POLL_EVERY_ROWS, Sending
from perkey.spark.sink.protocol import SinkError

BASE = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


def options(**kafka: str) -> SinkOptions:
    """Of a sink whose broker does not answer."""
    return sink_options({**BASE, **{f"kafka.{k.replace('_', '.')}": v for k, v in kafka.items()}})


def read(rows: Any, name: str) -> list[bytes | None]:
    """A column, from the memory that the rows point to."""
    places = zip(rows[name].tolist(), rows[f"{name}_size"].tolist(), strict=True)
    return [ctypes.string_at(at, size) if at else None for at, size in places]


def packed(batch: pa.RecordBatch) -> Packed:
    found = packed_of(batch, options())
    assert found is not None
    return found


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_the_rows_point_to_keys_and_values(kind):
    """Null is no address, empty is one; a slice starts where it starts."""
    keys = pa.array(["out", None, "", "k", "kk"], pa.string()).cast(kind).slice(1)
    values = pa.array(["out", "v", None, "", "w" * 99], pa.string()).cast(kind).slice(1)
    found = packed(pa.RecordBatch.from_arrays([keys, values], ["key", "value"]))
    assert read(found.rows, "key") == [None, b"", b"k", b"kk"]
    assert read(found.rows, "value") == [b"v", None, b"", b"w" * 99]


def test_values_that_are_all_empty_are_no_nulls():
    """Arrow has no buffer for them."""
    found = packed(pa.RecordBatch.from_pydict({"value": [b"", b""]}))
    assert read(found.rows, "value") == [b"", b""]
    assert read(found.rows, "key") == [None, None]


def test_the_memory_is_there_as_long_as_the_rows():
    """Also that of a column that had to be converted."""
    values = [f"value {n}" * 9 for n in range(1_000)]
    found = packed(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string_view())}))
    assert read(found.rows, "value") == [value.encode() for value in values]


@pytest.mark.parametrize(
    ("columns", "kafka"),
    [
        ({"partition": pa.array([1], pa.int32())}, {}),
        ({"headers": [None]}, {}),
        ({}, {"linger.ms": "1000"}),
        ({}, {"sasl.mechanism": "OAUTHBEARER", "security.protocol": "SASL_SSL"}),
    ],
    ids=["partition", "headers", "lingering", "tokens"],
)
def test_rows_that_are_sent_one_by_one(columns, kafka):
    """What librdkafka's call for many rows cannot do, or would do later."""
    batch = pa.RecordBatch.from_pydict({"value": [b"v"], **columns})
    assert packed_of(batch, options(**kafka)) is None


def test_rows_with_their_own_topics_are_sent_one_by_one():
    """The call for many rows is for one topic."""
    batch = pa.RecordBatch.from_pydict({"value": [b"v"], "topic": ["a"]})
    assert packed_of(batch, sink_options({"kafka.bootstrap.servers": "127.0.0.1:1"})) is None


class Queue:
    """librdkafka's queue with room for so many rows; serving it sends them all."""

    def __init__(self, room: int) -> None:
        self._room, self._queued = room, 0
        self.taken: list[int] = []
        self.refused = 0

    def produce(self, _producer: Producer, _topic: str, rows: Any) -> tuple[int, int]:
        taken = min(len(rows), self._room - self._queued)
        self.taken += rows["value_size"][:taken].tolist()
        self._queued += taken
        return taken, 0 if taken == len(rows) else self.refused or QUEUE_FULL

    def serve(self, *_: Any) -> None:
        self._queued = 0


def numbered(count: int) -> Packed:
    """Rows whose sizes are their numbers."""
    rows = np.zeros(count, Row)
    rows["value_size"] = np.arange(count)
    return Packed("t", rows, {})


@pytest.mark.parametrize("room", [1, 7, POLL_EVERY_ROWS, 10_000])
def test_a_full_queue_neither_loses_nor_repeats_a_row(monkeypatch, room):
    """Those that found no room are first when there is some."""
    queue = Queue(room)
    monkeypatch.setattr(plain, "produce_rows", queue.produce)
    monkeypatch.setattr(plain, "serve", queue.serve)
    Sending(options()).send(numbered(2_500))
    assert queue.taken == list(range(2_500))


def test_a_row_that_is_refused_is_an_error(monkeypatch):
    """Not the next try of a full queue."""
    queue = Queue(3)
    queue.refused = KafkaError.MSG_SIZE_TOO_LARGE
    monkeypatch.setattr(plain, "produce_rows", queue.produce)
    with pytest.raises(SinkError, match=r"127\.0\.0\.1:1: topic t: .*too large"):
        Sending(options()).send(numbered(5))


@pytest.mark.parametrize("first", ["packed", "each"])
def test_a_row_that_is_not_delivered_is_reported(first):
    """Each way of sending sees its own rows, also if the other one follows."""
    batch = pa.RecordBatch.from_pydict({"value": [b"v"]})
    both: dict[str, Packed | Rows] = {"packed": packed(batch), "each": rows_of(batch, "t")}
    sending = Sending(options(message_timeout_ms="10"))
    sending.send(both.pop(first))
    with pytest.raises(SinkError, match=r"topic t: .*timed out"):
        sending.send(both.popitem()[1])


def test_errors_of_connections_are_remembered():
    """They come as events, and are the reason why a row is not delivered."""
    sending = Sending(options())
    sending.send(packed(pa.RecordBatch.from_pydict({"value": [b"v"]})))

    def remembered() -> bool:
        sending.serve(0.1)
        return "refused" in str(sending._failed("x"))

    wait_for(remembered)


def test_log_lines_are_passed_on(caplog):
    """They come as events, too."""
    config = {"bootstrap.servers": "127.0.0.1:1", "debug": "generic"}
    log = ClientLog(config)
    producer = Producer({**config, "logger": log})

    def logged() -> bool:
        clib_rows.serve(producer, 0.1, pytest.fail, lambda _: None, log)
        return any("rdkafka#producer" in line for line in caplog.messages)

    with caplog.at_level(logging.DEBUG):
        wait_for(logged)
