"""Rows on their way into the producer: each once, in order, whatever the queue says."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from perkey.spark.sink import plain, protocol, transactions
from perkey.spark.sink.columns import Rows
from perkey.spark.sink.options import sink_options
from perkey.spark.sink.plain import POLL_EVERY_ROWS, Sending
from perkey.spark.sink.protocol import Sums, Task


class FakeProducer:
    """Holds so many rows; each poll sends them all."""

    def __init__(self, room: int) -> None:
        self._room, self._queued = room, 0
        self.taken: list[bytes] = []
        self.polls = 0

    def produce(self, _topic: str, value: bytes, _key: bytes | None) -> None:
        if self._queued == self._room:
            raise BufferError
        self._queued += 1
        self.taken.append(value)

    def poll(self, _timeout_s: float) -> None:
        self.polls += 1
        self._queued = 0


@pytest.fixture
def sending(monkeypatch):
    """A function that makes one with a fake producer."""

    def made(room: int) -> Any:
        fake: Any = FakeProducer(room)
        monkeypatch.setattr(plain, "Producer", lambda _config: fake)
        return Sending(sink_options({"kafka.bootstrap.servers": "x:1", "topic": "t"}))

    return made


def rows(count: int) -> Rows:
    """So many rows, each another."""
    values: list[bytes | None] = [b"%d" % number for number in range(count)]
    return Rows(["t"] * count, values, [None] * count, None, None)


@pytest.mark.parametrize(
    ("count", "polls"),
    [(0, 0), (1, 1), (POLL_EVERY_ROWS - 1, 1), (POLL_EVERY_ROWS, 1), (POLL_EVERY_ROWS + 1, 2)],
)
def test_what_is_acknowledged_is_given_back_every_thousand_rows(sending, count, polls):
    """And none is left out where a thousand end."""
    one = sending(room=10_000)
    one.send(rows(count))
    assert (len(one.producer.taken), one.producer.polls) == (count, polls)


@pytest.mark.parametrize("room", [1, 7, POLL_EVERY_ROWS])
def test_a_full_queue_neither_loses_nor_repeats_a_row(sending, room):
    """The row that found it full goes first when there is room."""
    one = sending(room)
    one.send(rows(2_500))
    assert one.producer.taken == [b"%d" % number for number in range(2_500)]


def test_another_attempt_asks_with_a_new_client(monkeypatch):
    """An admin client keeps the leaders it knows, and after an outage found none for minutes."""
    monkeypatch.setattr(transactions, "PAUSE_S", 0.0)
    options = sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    client = transactions.Client(options, "q", Task(0, 0, None))
    asked: list[Any] = []

    def step(_timeout_s: float) -> int:
        asked.append(client._admin())
        if len(asked) == 1:
            raise KafkaException(KafkaError(KafkaError._NOENT))
        return 5

    assert client._again(step) == 5
    assert asked[0] is not asked[1]


def test_a_transaction_is_opened_by_a_connected_producer(monkeypatch):
    """Without a connection librdkafka looks for the coordinator again only after 500 ms."""
    calls: list[str] = []

    class Connecting:
        def __init__(self, config: Any) -> None:
            calls.append(config["transactional.id"])

        def list_topics(self, topic: str, _timeout_s: float) -> None:
            calls.append(topic)

        def init_transactions(self, _timeout_s: float) -> None:
            calls.append("open")

    monkeypatch.setattr(plain, "Producer", Connecting)
    monkeypatch.setattr(transactions, "consumer_of", lambda group, *_: calls.append(group))
    options = sink_options({"kafka.bootstrap.servers": "x:1", "topic": "t"})
    transactions.Client(options, "q", Task(3, 0, None))._answer(protocol.Open())
    assert calls == ["q-3", "q-3", "t", "t", "open"], "producer, its marker's reader, twice asked"


def test_rows_are_read_while_a_transaction_is_opened(monkeypatch):
    """And come in their order; what is held of them is limited."""

    def batch(number: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": pa.array([number], pa.int64())})

    options = sink_options({"kafka.bootstrap.servers": "x:1", "topic": "t"})
    monkeypatch.setattr(transactions.Chunk, "sums", Sums(1))
    for limit, expected in ((15, 2), (16, 2), (17, 3)):  # of 8 bytes each
        monkeypatch.setattr(transactions, "AHEAD_BYTES", limit)
        chunks = transactions.Chunks(map(batch, range(5)), options)
        ahead = [chunks.read_ahead() for _ in range(9)]
        assert sum(ahead) == expected
        numbers = [chunk._batch.column(0)[0].as_py() for chunk in chunks]
        assert numbers == [0, 1, 2, 3, 4]
    opened = threading.Event()
    client = transactions.Client(options, "q", Task(0, 0, None), lambda: bool(opened.set()))
    monkeypatch.setattr(client, "_opened", lambda _id: opened.wait(30))
    client._answer(protocol.Open())
    assert client._sending is True, "it waited until rows were read"
