"""Committed progress moves between the Java Parallel Consumer and Perkey, in both directions.

Each side first handles 190 of 200 records and leaves 10 that keep failing; the other side takes
over the group and must handle exactly those 10, whatever Perkey's commits remember of them.
"""

import base64
import time
import uuid
from typing import Any

import pytest
from benchmarks import javapc
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import perkey
from perkey.broker import LocalBroker
from perkey.codec import Remembered, decode, encode_fitting, with_rider
from perkey.kafka import clib

RECORDS = 200
LEFT = list(range(3, RECORDS, 20))
JAVA_LIMIT_S = 110
JAVA_IDLE_S = 10  # a busy machine handles nothing for some seconds

pytestmark = [
    pytest.mark.long,
    pytest.mark.broker,
    pytest.mark.java,
    pytest.mark.timeout(240),
    pytest.mark.skipif(javapc.missing() is not None, reason=str(javapc.missing())),
]


@pytest.fixture
def bootstrap(kafka_broker: LocalBroker) -> str:
    """The address of the real broker."""
    return kafka_broker.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic of one partition with 200 records, each with a key of its own."""
    name = f"handover-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(RECORDS):
        producer.produce(name, b"value", b"key-%d" % i, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert refused == []
    return name


def java(mode: str, bootstrap: str, topic: str, group: str, **options: object) -> dict[str, object]:
    """Run the Java side on the group; `ordering` and the mode's own names are in `options`."""
    return javapc.run(
        mode,
        limit_s=JAVA_LIMIT_S,
        bootstrap=bootstrap,
        topic=topic,
        group=group,
        concurrency=16,
        **options,
    )


def perkey_handles(
    bootstrap: str, topic: str, group: str, ordering: str, failing: frozenset[int] = frozenset()
) -> list[int]:
    """Run Perkey on the group until it is drained; returns the offsets of the calls that succeeded."""
    app = perkey.App(group=group, kafka={"bootstrap.servers": bootstrap})
    handled: list[int] = []

    @app.consume(
        topic, ordering=ordering, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Park()
    )
    async def handle(record: perkey.Record) -> None:
        if record.offset in failing:
            raise ValueError(f"offset {record.offset} always fails")
        handled.append(record.offset)

    app.run(until="drained")
    return sorted(handled)


@pytest.mark.parametrize("ordering", ["unordered", "key"])
def test_perkey_handles_exactly_what_java_left(bootstrap: str, topic: str, ordering: str) -> None:
    """Java → Perkey: what Java finished beyond the frontier is not handled again."""
    group = f"java-to-perkey-{uuid.uuid4().hex[:8]}"
    before = java(
        "handover",
        bootstrap,
        topic,
        group,
        ordering=ordering.upper(),
        fail=",".join(map(str, LEFT)),
        expect=RECORDS - len(LEFT),
    )
    assert before["calls"] == RECORDS - len(LEFT)

    assert perkey_handles(bootstrap, topic, group, ordering) == LEFT


@pytest.mark.parametrize("ordering", ["unordered", "key"])
def test_java_handles_exactly_what_perkey_left(bootstrap: str, topic: str, ordering: str) -> None:
    """Perkey → Java: what Perkey finished beyond the frontier is not handled again."""
    group = f"perkey-to-java-{uuid.uuid4().hex[:8]}"
    done = perkey_handles(bootstrap, topic, group, ordering, frozenset(LEFT))
    assert done == [offset for offset in range(RECORDS) if offset not in LEFT]

    after = java("resume", bootstrap, topic, group, ordering=ordering.upper(), idle_s=JAVA_IDLE_S)

    assert after["handled"] == LEFT
    assert after["calls"] == len(LEFT)


@pytest.mark.parametrize("left", [LEFT, [0, 1, 150]], ids=["bits", "runs"])
def test_java_passes_over_what_a_commit_remembers(bootstrap: str, topic: str, left) -> None:
    """Perkey → Java with a rider behind the map, as long as the broker takes."""
    text, _ = encode_fitting(left[0], RECORDS - 1, left)
    entries = [
        Remembered(offset, 5, parked=True, exhausted_by="attempts", error=7) for offset in left
    ]
    text, count = with_rider(left[0], text, entries)
    assert count == len(left)
    stuffed = base64.b64decode(text) + bytes.fromhex("5a2a4d18f4010000") + bytes(500)
    assert java_handles(bootstrap, topic, left[0], base64.b64encode(stuffed).decode()) == left


def java_handles(bootstrap: str, topic: str, frontier: int, text: str) -> list[int]:
    """What the Java side handles after this commit, each once."""
    group = f"rider-to-java-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    queue = clib.CommitQueue(consumer)  # the client's own calls leave a NUL behind the text
    clib.committed(consumer, [(topic, 0)], 60)
    queue.send([(topic, 0, frontier, text)])
    assert [reply.error for reply in queue.poll(60)] == [0]
    queue.close()
    consumer.close()

    after = java("resume", bootstrap, topic, group, ordering="UNORDERED", idle_s=JAVA_IDLE_S)
    handled: Any = after["handled"]
    assert after["calls"] == len(handled)
    return handled


@pytest.mark.parametrize("ordering", ["unordered", "key"])
def test_riders_of_the_core_go_to_java_and_back(bootstrap: str, topic: str, ordering: str) -> None:
    """Perkey → Java → Perkey: parked and failing records of Perkey's commits, each handled exactly once.

    Java leaves some of what Perkey left.
    """
    group = f"there-and-back-{uuid.uuid4().hex[:8]}"
    again, parked = frozenset(LEFT[::2]), frozenset(LEFT[1::2])
    done, seen = leave_with_riders(bootstrap, topic, group, ordering, again, parked)
    assert done == [offset for offset in range(RECORDS) if offset not in LEFT]
    assert {one.offset: one.parked for one in seen} == {
        **dict.fromkeys(again, False), **dict.fromkeys(parked, True)
    }  # fmt: skip

    left = LEFT[2:6]
    between = java(
        "handover", bootstrap, topic, group, ordering=ordering.upper(),
        fail=",".join(map(str, left)), expect=len(LEFT) - len(left),
    )  # fmt: skip
    assert between["handled"] == [offset for offset in LEFT if offset not in left]
    assert between["calls"] == len(LEFT) - len(left)

    assert perkey_handles(bootstrap, topic, group, ordering) == left


def leave_with_riders(
    bootstrap: str,
    topic: str,
    group: str,
    ordering: str,
    again: frozenset[int],
    parked: frozenset[int],
) -> tuple[list[int], tuple[Remembered, ...]]:
    """Run Perkey until its commit remembers what failed; the offsets that it handled, and that."""
    app = perkey.App(group=group, kafka={"bootstrap.servers": bootstrap})
    handled: list[int] = []

    @app.consume(topic, ordering=ordering, retry=perkey.Retry(attempts=2, delay_s=0.05))
    async def handle(record: perkey.Record) -> None:
        if record.offset in again:
            raise perkey.RetryAfter(3_600)
        if record.offset in parked:
            raise ValueError("always")
        handled.append(record.offset)

    running = app.start()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    deadline = time.monotonic() + 60
    try:
        while True:
            (found,) = clib.committed(reader, [(topic, 0)], 60)
            rider = decode(found.offset or 0, found.metadata).rider
            ended = len(handled) == RECORDS - len(again) - len(parked)
            if ended and sum(one.parked for one in rider.entries) == len(parked):
                break
            assert time.monotonic() < deadline, rider
            time.sleep(0.1)  # between two looks
    finally:
        reader.close()
        running.stop()
        running.wait()
    return sorted(handled), rider.entries
