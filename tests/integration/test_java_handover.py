"""Committed progress moves between the Java Parallel Consumer and Weft, in both directions.

Each side first handles 190 of 200 records and leaves 10 that keep failing; the other side takes
over the group and must handle exactly those 10.
"""

import base64
import uuid

import pytest
from benchmarks import javapc
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import weft
from weft.broker import LocalBroker
from weft.codec import Remembered, encode_fitting, with_rider
from weft.kafka import clib

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


def weft_handles(
    bootstrap: str, topic: str, group: str, ordering: str, failing: frozenset[int] = frozenset()
) -> list[int]:
    """Run Weft on the group until it is drained; returns the offsets of the calls that succeeded."""
    app = weft.App(group=group, kafka={"bootstrap.servers": bootstrap})
    handled: list[int] = []

    @app.consume(topic, ordering=ordering, retry=weft.Retry(attempts=1), on_exhausted=weft.Park())
    async def handle(record: weft.Record) -> None:
        if record.offset in failing:
            raise ValueError(f"offset {record.offset} always fails")
        handled.append(record.offset)

    app.run(until="drained")
    return sorted(handled)


@pytest.mark.parametrize("ordering", ["unordered", "key"])
def test_weft_handles_exactly_what_java_left(bootstrap: str, topic: str, ordering: str) -> None:
    """Java → Weft: what Java finished beyond the frontier is not handled again."""
    group = f"java-to-weft-{uuid.uuid4().hex[:8]}"
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

    assert weft_handles(bootstrap, topic, group, ordering) == LEFT


@pytest.mark.parametrize("ordering", ["unordered", "key"])
def test_java_handles_exactly_what_weft_left(bootstrap: str, topic: str, ordering: str) -> None:
    """Weft → Java: what Weft finished beyond the frontier is not handled again."""
    group = f"weft-to-java-{uuid.uuid4().hex[:8]}"
    done = weft_handles(bootstrap, topic, group, ordering, frozenset(LEFT))
    assert done == [offset for offset in range(RECORDS) if offset not in LEFT]

    after = java("resume", bootstrap, topic, group, ordering=ordering.upper(), idle_s=JAVA_IDLE_S)

    assert after["handled"] == LEFT
    assert after["calls"] == len(LEFT)


@pytest.mark.parametrize("left", [LEFT, [0, 1, 150]], ids=["bits", "runs"])
def test_java_passes_over_what_a_commit_remembers(bootstrap: str, topic: str, left) -> None:
    """Weft → Java with a rider behind the map, as long as the broker takes."""
    group = f"rider-to-java-{uuid.uuid4().hex[:8]}"
    text, _ = encode_fitting(left[0], RECORDS - 1, left)
    entries = [
        Remembered(offset, 5, parked=True, exhausted_by="attempts", error=7) for offset in left
    ]
    text, count = with_rider(left[0], text, entries)
    assert count == len(left)
    stuffed = base64.b64decode(text) + bytes.fromhex("5a2a4d18f4010000") + bytes(500)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    queue = clib.CommitQueue(consumer)  # the client's own calls leave a NUL behind the text
    clib.committed(consumer, [(topic, 0)], 60)
    queue.send([(topic, 0, left[0], base64.b64encode(stuffed).decode())])
    assert [reply.error for reply in queue.poll(60)] == [0]
    queue.close()
    consumer.close()

    after = java("resume", bootstrap, topic, group, ordering="UNORDERED", idle_s=JAVA_IDLE_S)

    assert after["handled"] == left
    assert after["calls"] == len(left)
