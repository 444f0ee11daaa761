"""Assigned while the committed offsets cannot be read: nothing starts without them, then all does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.chaos import ONE_ON_A_PUSH, PROTOCOLS

import perkey
from perkey.broker import LocalBroker
from perkey.kafka.consumer import KafkaConsumer
from perkey.kafka.ports import KafkaUnavailable

RECORDS = 200
UNREADABLE = 3
WAIT_S = 60.0


@pytest.mark.parametrize("protocol", ONE_ON_A_PUSH)
def test_partitions_wait_until_their_offsets_are_read(
    chaos_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Design 4.3: "if the read fails stay paused and try again, never start without the map"."""
    topic = f"unreadable-{protocol}"
    chaos_broker.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": chaos_broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, b"%d" % (number % 7))
    assert producer.flush(WAIT_S) == 0
    first = run(chaos_broker, topic, protocol, stop_after=RECORDS // 2)
    read, failures = KafkaConsumer.find, iter(range(UNREADABLE))

    def find(self: KafkaConsumer, *arguments: Any) -> Any:
        if next(failures, None) is not None:
            raise KafkaUnavailable("as the test wants it")
        return read(self, *arguments)

    monkeypatch.setattr(KafkaConsumer, "find", find)
    second = run(chaos_broker, topic, protocol)
    assert next(failures, None) is None, "every read succeeded: nothing was tested"
    assert sorted(first + second) == list(range(RECORDS)), "lost, or repeated what was committed"


ROUNDS, PARTITIONS, START = 8, 6, 5


@pytest.mark.parametrize("protocol", ONE_ON_A_PUSH)
def test_a_partition_begins_exactly_where_it_is_reported(
    chaos_broker: LocalBroker, protocol: str
) -> None:
    """Told at once after the assignment, while librdkafka is still setting it up.

    A logical first offset (the end) won over the start in a quarter of the rounds, and the
    records between were skipped (found by a storm).
    """
    topic = f"begins-{protocol}"
    chaos_broker.create_topic(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": chaos_broker.bootstrap})
    for number in range(PARTITIONS * 2 * START):
        producer.produce(topic, b"v", partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    for number in range(ROUNDS):
        group = {"bootstrap.servers": chaos_broker.bootstrap, "group.id": f"{topic}-{number}"}
        consumer = KafkaConsumer({**group, **PROTOCOLS[protocol]})
        assert first_offsets(consumer, topic) == dict.fromkeys(range(PARTITIONS), START)
        consumer.leave(5.0)


class Listener:
    """Takes what is assigned, and begins it later."""

    def __init__(self) -> None:
        self.assigned: list[tuple[str, int]] = []

    def on_assigned(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        self.assigned += partitions
        return {}

    def on_revoked(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Nothing to finish."""

    on_lost = on_revoked


def first_offsets(consumer: KafkaConsumer, topic: str) -> dict[int, int]:
    """The first offset of each partition that comes, within the limit."""
    listener = Listener()
    consumer.subscribe([topic], listener)
    found: dict[int, int] = {}
    deadline = time.monotonic() + WAIT_S
    while len(found) < PARTITIONS and time.monotonic() < deadline:
        polled = consumer.poll(0.05)
        for where in listener.assigned:
            consumer.begin(where, START)
        listener.assigned.clear()
        for batch in polled.batches:
            found.setdefault(batch.partition, batch.records[0].offset)
    return found


def run(broker: LocalBroker, topic: str, protocol: str, stop_after: int = 0) -> list[int]:
    """Handle what is there, or stop after so many; the handled values."""
    app = perkey.App(topic, {"bootstrap.servers": broker.bootstrap, **PROTOCOLS[protocol]})
    handled: list[int] = []

    @app.consume(topic, concurrency=8)
    async def handle(record: perkey.Record) -> None:
        handled.append(int(record.value))
        if len(handled) == stop_after:
            app.stop()

    report = app.run(until="drained")
    assert report.exit_code == 0
    return handled
