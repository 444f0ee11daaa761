"""Assigned while the committed offsets cannot be read: nothing starts without them, then all does."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.chaos import PROTOCOLS

import weft
from weft.broker import LocalBroker
from weft.kafka.consumer import KafkaConsumer
from weft.kafka.ports import KafkaUnavailable

RECORDS = 200
UNREADABLE = 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_wait_until_their_offsets_are_read(
    chaos_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Design 4.3: "if the read fails stay paused and try again, never start without the map"."""
    topic = f"unreadable-{protocol}"
    chaos_broker.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": chaos_broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, b"%d" % (number % 7))
    assert producer.flush(10) == 0
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


def run(broker: LocalBroker, topic: str, protocol: str, stop_after: int = 0) -> list[int]:
    """Handle what is there, or stop after so many; the handled values."""
    app = weft.App(topic, {"bootstrap.servers": broker.bootstrap, **PROTOCOLS[protocol]})
    handled: list[int] = []

    @app.consume(topic, concurrency=8)
    async def handle(record: weft.Record) -> None:
        handled.append(int(record.value))
        if len(handled) == stop_after:
            app.stop()

    report = app.run(until="drained")
    assert report.exit_code == 0
    return handled
