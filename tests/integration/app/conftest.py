"""A real broker for every test of this folder, and short words for what they do with it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import (
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

import weft
from weft.kafka import calls
from weft.runtime.run.run import Run

WAIT_S = 60.0  # a busy machine is patient; what has a bar of its own asserts it
#: a broker that has just come back says this, or nothing
NOT_NOW = (
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
)
_numbers = itertools.count()


def wait_for(what: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """What `what` returned when it was first true; fails after the limit."""
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)  # between two looks
    return found


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
        self.apps: list[weft.App] = []

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
            return calls.committed(consumer, [(topic, partition)], WAIT_S)[0]
        finally:
            consumer.close()

    def keep_members(self, group: str) -> None:
        """Under KIP-848 the broker waits 6 s for a member: here as long as under the classic one."""
        entry = ConfigEntry(
            "consumer.session.timeout.ms", "45000", incremental_operation=AlterConfigOpType.SET
        )
        wanted = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
        for done in self.admin.incremental_alter_configs([wanted]).values():
            done.result(WAIT_S)

    def app(self, *, group: str | None = None, kafka: Any = None, **options: Any) -> weft.App:
        """An app on this broker, in a group of its own if none is given."""
        config = {"bootstrap.servers": self.bootstrap, "fetch.wait.max.ms": 50, **(kafka or {})}
        app = weft.App(group=group or self.name("g"), kafka=config, **options)
        self.apps.append(app)
        return app

    def start(self, app: weft.App, **how: Any) -> Run:
        """Start it in the background; it is stopped at the latest when the test ends."""
        run = cast("Run", app.start(**how))
        self.runs.append(run)
        return run

    def drain(self, app: weft.App, timeout_s: float = WAIT_S) -> weft.RunReport:
        """Run it until it is drained."""
        return self.start(app, until="drained").wait(timeout_s)

    def end_all(self) -> None:
        """Stop what a failed test has left running."""
        runs, self.runs = self.runs, []
        for run in runs:
            if not run.over:
                run.stop("now")
                run.wait(WAIT_S)


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
def kafka(_kafka: Kafka) -> Iterator[Kafka]:
    """The session's broker; what the test started is ended after it."""
    yield _kafka
    _kafka.end_all()
