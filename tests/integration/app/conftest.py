"""A broker for every test of this folder, and short words for what they do with it.

A push runs them on the in-memory broker, which the contract suite holds to the real one, and
`make test-all` on both. Those marked `broker` are of what only the real one shows.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from tests.support.waiting import wait_for

import perkey
from perkey.kafka import clib
from perkey.runtime.run.run import Run
from perkey.testing import MemoryKafka
from perkey.testing.memory import OffsetAndMetadata

WAIT_S = 60.0  # a busy machine is patient; what has a bar of its own asserts it
#: a broker that has just come back says this, or nothing
NOT_NOW = (
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
)
_numbers = itertools.count()


class Kafka:
    """Topics, records and groups of one test session."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        quiet = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.admin = AdminClient(quiet)
        # One request at a time: what a fresh leader refuses is sent again before what follows.
        self.producer = Producer({**quiet, "linger.ms": 0, "max.in.flight": 1})
        self._reader = Consumer(
            {**quiet, "group.id": "reader", "enable.auto.commit": False, "fetch.wait.max.ms": 20}
        )
        self.runs: list[Run] = []
        self.apps: list[perkey.App] = []

    def name(self, what: str = "t") -> str:
        """A name no other test has."""
        return f"{what}-{os.getpid()}-{next(_numbers)}"

    def topic(self, partitions: int = 1, name: str | None = None, **config: Any) -> str:
        """A new topic that has leaders."""
        name = name or self.name()
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        wait_for(lambda: self._made(new))
        wait_for(lambda: self.partitions(name) == partitions)
        return name

    def _made(self, new: NewTopic) -> bool:
        """A broker that stood still counts as fenced for a moment, and holds no replica then."""
        try:
            self.admin.create_topics([new])[new.topic].result(WAIT_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code not in (*NOT_NOW, KafkaError.TOPIC_ALREADY_EXISTS):
                raise
            return code not in NOT_NOW  # what was not answered in time may have been made
        return True

    def partitions(self, topic: str) -> int:
        """How many partitions of the topic have a leader."""
        found = self.admin.list_topics(topic, timeout=WAIT_S).topics[topic]
        return 0 if found.error else sum(p.leader >= 0 for p in found.partitions.values())

    def grow(self, topic: str, partitions: int) -> None:
        """Give the topic more partitions."""
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(WAIT_S)
        wait_for(lambda: self.partitions(topic) == partitions)

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result(WAIT_S)
        wait_for(lambda: topic not in self.admin.list_topics(timeout=WAIT_S).topics)

    def delete_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """Retention: everything before this offset goes."""
        gone = TopicPartition(topic, partition, offset)
        self.admin.delete_records([gone])[gone].result(WAIT_S)

    def fill(self, topic: str, values: Sequence[Any], **fixed: Any) -> None:
        """Produce values, or dicts of what `produce` takes, and wait for the broker."""
        for value in values:
            given = value if isinstance(value, dict) else {"value": value}
            self.producer.produce(topic, **{**fixed, **given})
        assert self.producer.flush(WAIT_S) == 0

    def read(self, topic: str, count: int, partition: int = 0) -> list[Message]:
        """The first `count` records of a partition; fails when there are not as many."""
        self._reader.assign([TopicPartition(topic, partition, 0)])
        found: list[Message] = []

        def enough() -> bool:
            found.extend(m for m in self._reader.consume(count, 0.2) if not m.error())
            return len(found) >= count

        wait_for(enough)
        assert len(found) == count
        return found

    def count(self, topic: str, partition: int = 0) -> int:
        """How many offsets the partition has."""
        low, high = self._reader.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=WAIT_S
        )
        return high - low

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """The group's committed offset."""
        return self.commit_of(group, topic, partition).offset

    def commit_of(self, group: str, topic: str, partition: int = 0) -> Any:
        """The group's committed offset with its metadata."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0}
        )
        try:
            return clib.committed(consumer, [(topic, partition)], WAIT_S)[0]
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        """Commit partition 0 as any other client would."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0}
        )
        place = TopicPartition(topic, 0, offset, metadata=metadata)
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    def keep_members(self, group: str) -> None:
        """Under KIP-848 the broker waits 6 s for a member: here as long as under the classic one."""
        entry = ConfigEntry(
            "consumer.session.timeout.ms", "45000", incremental_operation=AlterConfigOpType.SET
        )
        wanted = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
        for done in self.admin.incremental_alter_configs([wanted]).values():
            done.result(WAIT_S)

    def app(self, *, group: str | None = None, kafka: Any = None, **options: Any) -> perkey.App:
        """An app on this broker, in a group of its own if none is given."""
        config = {"bootstrap.servers": self.bootstrap, "fetch.wait.max.ms": 50, **(kafka or {})}
        app = perkey.App(group=group or self.name("g"), kafka=config, **options)
        self.apps.append(app)
        return app

    def start(self, app: perkey.App, **how: Any) -> Run:
        """Start it in the background; it is stopped at the latest when the test ends."""
        run = cast("Run", app.start(**how))
        self.runs.append(run)
        return run

    def drain(self, app: perkey.App, timeout_s: float = WAIT_S) -> perkey.RunReport:
        """Run it until it is drained."""
        return self.start(app, until="drained").wait(timeout_s)

    def end_all(self) -> None:
        """Stop what a failed test has left running."""
        runs, self.runs = self.runs, []
        for run in runs:
            if not run.over:
                run.stop("now")
                run.wait(WAIT_S)


class Read(NamedTuple):
    """A record, with the words of confluent-kafka's Message."""

    record: perkey.Record

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self.record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        return 1, self.record.timestamp_ms


class InMemory(Kafka):
    """The same words on a MemoryKafka."""

    def __init__(self, memory: MemoryKafka) -> None:
        self.memory = memory
        self.bootstrap = memory.bootstrap
        self.runs = []
        self.apps = []

    def topic(self, partitions: int = 1, name: str | None = None, **config: Any) -> str:
        assert not config, "for the real broker: mark the test `broker`"
        name = name or self.name()
        self.memory.create_topic(name, partitions)
        return name

    def partitions(self, topic: str) -> int:
        return self.memory.broker.partition_counts.get(topic, 0)

    def grow(self, topic: str, partitions: int) -> None:
        self.memory.add_partitions(topic, partitions)

    def delete(self, topic: str) -> None:
        self.memory.delete_topic(topic)

    def fill(self, topic: str, values: Sequence[Any], **fixed: Any) -> None:
        for value in values:
            given = value if isinstance(value, dict) else {"value": value}
            more = {**fixed, **given}
            if "timestamp" in more:
                more["timestamp_ms"] = more.pop("timestamp")
            self.memory.produce(topic, **more)

    def read(self, topic: str, count: int, partition: int = 0) -> list[Any]:
        def there() -> list[Read]:
            found = self.memory.records(topic)
            return [Read(record) for record in found if record.partition == partition]

        wait_for(lambda: len(there()) >= count)
        assert len(there()) == count
        return there()

    def count(self, topic: str, partition: int = 0) -> int:
        log = self.memory.broker.logs[topic, partition]
        return log.end - log.start

    def delete_before(self, topic: str, offset: int, partition: int = 0) -> None:
        self.memory.delete_before(topic, partition, offset)

    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        self.memory.commit(group, topic, 0, offset, metadata)

    def commit_of(self, group: str, topic: str, partition: int = 0) -> Any:
        with self.memory.changed:
            held = self.memory.broker.committed(group, (topic, partition))
        return held or OffsetAndMetadata(OFFSET_INVALID, "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On a push in memory, at night on both; what is marked `broker` on the real one alone."""
    if "kafka" in metafunc.fixturenames and not metafunc.definition.get_closest_marker("broker"):
        real = pytest.param("real", marks=[pytest.mark.broker, pytest.mark.long])
        metafunc.parametrize("kafka", ["memory", real], indirect=True)


@pytest.fixture(scope="session")
def _kafka(kafka_broker: Any) -> Kafka:
    kafka = Kafka(kafka_broker.bootstrap)
    # The first idempotent producer of a cluster waits seconds for its coordinator.
    first = kafka.topic()
    warm = Producer(
        {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    warm.produce(first, b"")
    assert warm.flush(WAIT_S) == 0
    return kafka


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """The session's broker, or one in memory; what the test started is ended after it."""
    if getattr(request, "param", "real") == "memory":
        found: Kafka = InMemory(request.getfixturevalue("memory_broker"))
    else:
        found = request.getfixturevalue("_kafka")
    yield found
    found.end_all()
