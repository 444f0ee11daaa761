"""Commit metadata on the real broker: ours, aiokafka's, inside a rebalance, in a transaction.

aiokafka shares no code with librdkafka, so it shows what the broker really holds.
"""

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import Consumer, KafkaException, Producer

from perkey.broker import LocalBroker
from perkey.errors import ConfigError
from perkey.kafka import clib, ports

METADATA_TOO_LARGE = 12
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER = 25
TEXTS = {
    0: "",
    1: "abc",
    2: "bADF/v/v///+/+////7/7////v/v///+/+//HwA=",
    3: "Größe 大きさ \U0001f9f6",
    4: "x" * 4096,
    5: "é" * 4096,
}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 500},
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 500,
    },
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture
def topic(kafka_broker: LocalBroker) -> str:
    """A fresh topic of six partitions; its name also names the test's group."""
    name = f"metadata-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=6)
    return name


@pytest.fixture
def make_consumer(kafka_broker: LocalBroker, topic: str) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers of the group; those still open at the end are closed."""
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": kafka_broker.bootstrap,
                "group.id": topic,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def read_by_aiokafka(bootstrap: str, group: str) -> dict[int, tuple[int, str]]:
    """Partition to (offset, metadata) of the group, read without librdkafka."""

    async def read() -> dict[int, tuple[int, str]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            found = await admin.list_consumer_group_offsets(group)
        finally:
            await admin.close()
        return {one.partition: (value.offset, value.metadata) for one, value in found.items()}

    return asyncio.run(read())


def write_by_aiokafka(bootstrap: str, group: str, topic: str, texts: dict[int, str]) -> None:
    """Commit offset 10 + partition with these texts, written without librdkafka."""

    async def write() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, partition) for partition in texts])
            await consumer.commit(
                {
                    TopicPartition(topic, partition): OffsetAndMetadata(10 + partition, text)
                    for partition, text in texts.items()
                }
            )
        finally:
            await consumer.stop()

    asyncio.run(write())


def answer_of(queue: clib.CommitQueue, token: int, limit_s: float = 60) -> ports.CommitReply:
    """The answer with this token; fails after the limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for answer in queue.poll(0.2):
            if answer.token == token:
                return answer
    raise AssertionError(f"no answer to commit {token} within {limit_s} s")


def wait_for(condition: Callable[[], bool], *consumers: Consumer, limit_s: float = 90) -> None:
    """Poll the consumers until the condition holds; fails after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        for consumer in consumers:
            consumer.consume(100, 0.05)


def test_librdkafka_is_reached():
    """On the machines we test on, the library is found and its calls are used."""
    assert clib.available()


def test_what_we_write_is_read_exactly(
    kafka_broker: LocalBroker, topic: str, make_consumer: Callable[..., Consumer]
):
    """An independent client finds every text as written: empty, non-ASCII, 4,096 characters."""
    queue = clib.CommitQueue(make_consumer())
    token = queue.send(
        [(topic, partition, 10 + partition, TEXTS[partition]) for partition in TEXTS]
    )
    answer = answer_of(queue, token)
    assert answer.error == 0
    assert {(one.topic, one.partition, one.offset) for one in answer.partitions} == {
        (topic, partition, 10 + partition) for partition in TEXTS
    }
    queue.close()
    assert read_by_aiokafka(kafka_broker.bootstrap, topic) == {
        partition: (10 + partition, text) for partition, text in TEXTS.items()
    }


def test_what_others_wrote_is_read_exactly(
    kafka_broker: LocalBroker, topic: str, make_consumer: Callable[..., Consumer]
):
    """We find every text an independent client wrote, again and again, with nothing behind it."""
    write_by_aiokafka(kafka_broker.bootstrap, topic, topic, TEXTS)
    consumer = make_consumer()
    for _ in range(50):
        found = clib.committed(consumer, [(topic, partition) for partition in TEXTS], 60)
        assert [(one.partition, one.offset, one.metadata, one.error) for one in found] == [
            (partition, 10 + partition, text, 0) for partition, text in TEXTS.items()
        ]


def test_what_we_write_we_read(topic: str, make_consumer: Callable[..., Consumer]):
    """Our own reader restores our own texts; a partition never committed has no offset."""
    consumer = make_consumer()
    queue = clib.CommitQueue(consumer)
    answer_of(queue, queue.send([(topic, 0, 5, "bgAA")]))
    queue.close()
    assert clib.committed(consumer, [(topic, 0), (topic, 1)], 60) == [
        ports.CommittedOffset(topic, 0, 5, "bgAA", 0),
        ports.CommittedOffset(topic, 1, None, "", 0),
    ]


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_the_brokers_limit_is_for_one_partition(
    topic: str, make_consumer: Callable[..., Consumer], surplus: int
):
    """4,096 characters are stored; of 4,097 the broker stores nothing, but the other partition.

    librdkafka gives every partition the error of the request, so the answer alone does not
    tell which partitions were stored.
    """
    consumer = make_consumer()
    queue = clib.CommitQueue(consumer)
    text = "x" * (4096 + surplus)
    answer = answer_of(queue, queue.send([(topic, 0, 1, "fine"), (topic, 1, 2, text)]))
    queue.close()
    expected = METADATA_TOO_LARGE if surplus > 0 else 0
    assert answer.error == expected
    assert [one.error for one in answer.partitions] == [expected, expected]
    found = clib.committed(consumer, [(topic, 0), (topic, 1)], 60)
    assert (found[0].offset, found[0].metadata) == (1, "fine")
    assert (found[1].offset, found[1].metadata) == ((None, "") if surplus > 0 else (2, text))


def test_many_commits_leave_nothing_behind(topic: str, make_consumer: Callable[..., Consumer]):
    """Each of 500 commits is answered once, under its token, and the consumer closes at once.

    The first is answered before the others are sent: what librdkafka keeps while it looks for the
    coordinator goes out behind what is sent just after it was found.
    """
    consumer = make_consumer()
    queue = clib.CommitQueue(consumer)
    answer_of(queue, queue.send([(topic, 0, 0, "first")]))
    sent = [queue.send([(topic, 0, offset, f"map {offset}")]) for offset in range(500)]
    answers: list[int] = []
    deadline = time.monotonic() + 60
    while len(answers) < len(sent) and time.monotonic() < deadline:
        answers += [answer.token for answer in queue.poll(0.5)]
    assert sorted(answers) == sent
    assert clib.committed(consumer, [(topic, 0)], 60)[0].metadata == "map 499"
    queue.send([(topic, 0, 500, "unread answer")])
    queue.close()
    queue.close()
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 40


def test_closed_objects_report_it(topic: str, make_consumer: Callable[..., Consumer]):
    """A closed queue, closed consumer and closed membership raise instead of crashing."""
    consumer = make_consumer()
    queue = clib.CommitQueue(consumer)
    membership = clib.GroupMetadata(consumer)
    queue.close()
    membership.close()
    membership.close()
    with pytest.raises(RuntimeError, match="queue is closed"):
        queue.send([(topic, 0, 1, "")])
    with pytest.raises(RuntimeError, match="metadata is closed"):
        clib.send_offsets_to_transaction(Producer({}), [(topic, 0, 1, "")], membership, 1)
    consumer.close()
    with pytest.raises(RuntimeError, match="client is closed"):
        clib.committed(consumer, [(topic, 0)], 1)
    with pytest.raises(RuntimeError, match="client is closed"):
        clib.CommitQueue(consumer)


def test_reading_is_bounded_without_brokers():
    """With nobody at the address, a read fails within its time."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "log_level": 0})
        began = time.monotonic()
        with pytest.raises(KafkaException):
            clib.committed(consumer, [("topic", 0)], 1.0)
        assert time.monotonic() - began < 20
        consumer.close()


class Member:
    """A consumer that commits what it loses from within its revoke callback."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer, self.topic = consumer, topic
        self.queue = clib.CommitQueue(consumer)
        self.owned: set[int] = set()
        self.acknowledged: dict[int, float] = {}
        consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, _consumer: Consumer, partitions: list[Any]) -> None:
        self.owned.update(one.partition for one in partitions)

    def _revoked(self, _consumer: Consumer, partitions: list[Any]) -> None:
        if not partitions:
            return
        lost = [one.partition for one in partitions]
        began = time.perf_counter()
        token = self.queue.send([(self.topic, one, 7 + one, f"map of {one}") for one in lost])
        answer = answer_of(self.queue, token, limit_s=30)
        assert answer.error == 0
        took_s = time.perf_counter() - began
        self.acknowledged.update(dict.fromkeys(lost, took_s))
        self.owned.difference_update(lost)

    def leave(self) -> None:
        """Leave as Perkey does: unsubscribe, poll until everything is revoked, close."""
        self.consumer.unsubscribe()
        wait_for(lambda: not self.owned, self.consumer)
        self.queue.close()
        began = time.monotonic()
        self.consumer.close()
        assert time.monotonic() - began < 40


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_inside_the_revoke_callback_is_acknowledged(
    kafka_broker: LocalBroker, topic: str, make_consumer: Callable[..., Consumer], protocol: str
):
    """On joining and leaving, in all three protocols, and closing afterwards does not hang."""
    first = Member(make_consumer(**PROTOCOLS[protocol]), topic)
    wait_for(lambda: len(first.owned) == 6, first.consumer)
    second = Member(make_consumer(**PROTOCOLS[protocol]), topic)
    wait_for(
        lambda: len(first.owned) == 3 and len(second.owned) == 3, first.consumer, second.consumer
    )
    assert len(first.acknowledged) >= 3
    second.leave()
    first.leave()
    took_s = [*first.acknowledged.values(), *second.acknowledged.values()]
    assert sorted(took_s)[len(took_s) // 2] < 15.0  # not after a time-out
    assert read_by_aiokafka(kafka_broker.bootstrap, topic) == {
        one: (7 + one, f"map of {one}") for one in range(6)
    }


def transactional(kafka_broker: LocalBroker, name: str) -> Producer:
    """A producer that has begun a transaction."""
    producer = Producer(
        {
            "bootstrap.servers": kafka_broker.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def test_a_transaction_carries_metadata(
    kafka_broker: LocalBroker, topic: str, make_consumer: Callable[..., Consumer]
):
    """Offset and text are there after the commit and exactly as given, and not before."""
    consumer = make_consumer()
    assigned: list[int] = []
    consumer.subscribe([topic], on_assign=lambda _c, found: assigned.extend(found))
    wait_for(lambda: len(assigned) == 6, consumer)
    producer = transactional(kafka_broker, topic)
    with clib.GroupMetadata(consumer) as membership:
        offsets = [(topic, partition, 10 + partition, TEXTS[partition]) for partition in TEXTS]
        clib.send_offsets_to_transaction(producer, offsets, membership, 60)
    assert read_by_aiokafka(kafka_broker.bootstrap, topic) == {}
    producer.commit_transaction(60)
    # The coordinator applies the commit marker a moment after the producer's answer.
    wait_for(lambda: len(read_by_aiokafka(kafka_broker.bootstrap, topic)) == len(TEXTS))
    assert read_by_aiokafka(kafka_broker.bootstrap, topic) == {
        partition: (10 + partition, text) for partition, text in TEXTS.items()
    }


def test_a_stale_membership_is_fenced(
    kafka_broker: LocalBroker, topic: str, make_consumer: Callable[..., Consumer]
):
    """Metadata taken before the member left is refused, with the flags of KafkaError."""
    first = Member(make_consumer(), topic)
    wait_for(lambda: len(first.owned) == 6, first.consumer)
    membership = clib.GroupMetadata(first.consumer)
    first.leave()
    producer = transactional(kafka_broker, topic)
    with pytest.raises(KafkaException) as caught:
        clib.send_offsets_to_transaction(producer, [(topic, 0, 99, "zombie")], membership, 60)
    membership.close()
    error = caught.value.args[0]
    assert error.code() in (ILLEGAL_GENERATION, UNKNOWN_MEMBER)
    assert error.txn_requires_abort()
    assert not error.fatal()
    assert not error.retriable()
    producer.abort_transaction(60)


def test_offsets_outside_a_transaction_are_refused(
    kafka_broker: LocalBroker, topic: str, make_consumer: Callable[..., Consumer]
):
    """A wrong state is an exception too: nothing is dropped silently."""
    producer = transactional(kafka_broker, topic)
    producer.commit_transaction(60)
    membership = clib.GroupMetadata(make_consumer())
    with pytest.raises(KafkaException):
        clib.send_offsets_to_transaction(producer, [(topic, 0, 1, "")], membership, 5)
    membership.close()


def test_without_the_library_it_reports_what_to_install(
    make_consumer: Callable[..., Consumer], monkeypatch: pytest.MonkeyPatch
):
    """Where librdkafka cannot be called nothing is committed: an error names the wheel."""
    consumer = make_consumer()
    monkeypatch.setattr(clib, "available", lambda: False)
    for call in (clib.CommitQueue, clib.WakeableQueue, clib.GroupMetadata):
        with pytest.raises(ConfigError, match="pip install"):
            call(consumer)
    with pytest.raises(ConfigError, match="pip install"):
        clib.committed(consumer, [("t", 0)], 1)
