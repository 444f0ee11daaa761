"""One face for the in-memory broker and the real one, so that one suite runs on both."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition

from perkey.kafka import ports
from perkey.kafka.connect import Connection, connect
from perkey.kafka.ports import Polled, ToCommit
from perkey.types import Record, Sent

#: a cold broker makes its coordinator's topic first, and refuses joins for seconds; a member id that
#: librdkafka gives up half-way through a join is waited for by its group, 45 s (librdkafka#5569)
LIMIT_S = 60.0
#: for a broker's answer where no poll may wait for it: a busy machine is patient
ANSWER_S = 30.0
#: so that a real group's members hear of each other soon
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 100},
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 100,
    },
    "consumer": {"group.protocol": "consumer"},
}
FAST = {"topic.metadata.refresh.interval.ms": 100}


class Broker(Protocol):
    """What both brokers have."""

    @property
    def bootstrap(self) -> str: ...

    def create_topic(self, name: str, partitions: int = 1) -> None: ...

    def delete_topic(self, name: str) -> None: ...


class Cluster:
    """A broker under test; names made by it are used once."""

    in_memory: bool

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.closing: list[Callable[[], None]] = []

    def topic(self, partitions: int = 1, prefix: str = "t") -> str:
        """A fresh topic."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(name, partitions)
        return name

    def connection(
        self, group: str, producer: dict[str, Any] | None = None, **kafka: Any
    ) -> Connection:
        """Clients of one member; property names with _ for dots."""
        given = {name.replace("_", "."): value for name, value in kafka.items()}
        return connect(
            {"bootstrap.servers": self.broker.bootstrap, **FAST, **given},
            producer or {},
            group=group,
            buffer_records=50_000,
            buffer_bytes=2**27,
            delivery="at_least_once",
        )

    def join(self, group: str, topics: str | Sequence[str], **kafka: Any) -> Joined:
        """A member of the group that has subscribed; left at the end of the test."""
        member = Joined(self.connection(group, **kafka).consumer())
        self.closing.append(member.leave)
        member.consumer.subscribe([topics] if isinstance(topics, str) else topics, member)
        return member

    def fill(self, topic: str, count: int, *, partition: int = 0, start: int = 0) -> None:
        """Write records with their number as value and key."""
        for number in range(start, start + count):
            text = str(number)
            self.produce(topic, text.encode(), text.encode(), partition=partition, flush=False)
        self.flush()

    # each broker's own

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = 0,
        headers: Any = (),
        timestamp_ms: int = 0,
        flush: bool = True,
    ) -> None:
        raise AssertionError

    def flush(self) -> None:
        """Everything written is there."""

    def records(self, topic: str, count: int) -> list[Record]:
        raise AssertionError

    def add_partitions(self, topic: str, partitions: int) -> None:
        raise AssertionError

    def write_open(self, topic: str) -> None:
        """A record in partition 0, in a transaction that stays open for the test."""
        raise AssertionError


class InMemory(Cluster):
    """On `perkey.testing.MemoryKafka`."""

    in_memory = True

    def produce(
        self, topic, value, key=None, *, partition=0, headers=(), timestamp_ms=0, flush=True
    ):
        self.broker.produce(
            topic,
            value,
            key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms or None,
        )

    def records(self, topic, count):
        records = self.broker.records(topic)
        assert len(records) == count
        return records

    def add_partitions(self, topic, partitions):
        self.broker.add_partitions(topic, partitions)

    def write_open(self, topic):
        with self.broker.changed:
            inner = self.broker.broker
            producer = inner.init_producer(uuid.uuid4().hex)
            inner.begin(producer)
            inner.produce((topic, 0), None, b"open", producer=producer)
            self.broker.notify()


class Real(Cluster):
    """On a real broker."""

    in_memory = False

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    def produce(
        self, topic, value, key=None, *, partition=0, headers=(), timestamp_ms=0, flush=True
    ):
        self._producer.produce(
            topic, value, key, partition, timestamp=timestamp_ms, headers=list(headers) or None
        )
        if flush:
            self.flush()

    def flush(self):
        assert self._producer.flush(LIMIT_S) == 0

    def records(self, topic, count):
        reader = Consumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": uuid.uuid4().hex,
             "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
        )  # fmt: skip
        found = reader.list_topics(topic, LIMIT_S).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in found])
        records: list[Record] = []
        deadline = time.monotonic() + LIMIT_S
        while len(records) < count and time.monotonic() < deadline:
            for m in reader.consume(1000, 0.1):
                assert m.error() is None
                headers = tuple(m.headers() or ())
                where = (m.topic(), m.partition(), m.offset(), m.timestamp()[1])
                records.append(Record(*where, m.key(), m.value(), headers))
        reader.close()
        assert len(records) == count
        return sorted(records, key=lambda r: (r.partition, r.offset))

    def add_partitions(self, topic, partitions):
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(LIMIT_S)

    def write_open(self, topic):
        name = {"transactional.id": uuid.uuid4().hex, "log_level": 0}
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, **name})
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        assert producer.flush(LIMIT_S) == 0
        self.closing.append(lambda: producer.abort_transaction(LIMIT_S))


class Joined:
    """A member and what it has lived through; it begins partitions where the group left them."""

    def __init__(self, consumer: ports.ConsumerPort) -> None:
        self.consumer = consumer
        self.threads: set[int] = set()
        self.told: list[tuple[str, tuple[ports.TopicPartition, ...]]] = []
        self.seen = Polled()
        self.left = False
        #: given in place of the committed offset (or the start of the log)
        self.starts: dict[ports.TopicPartition, int | None] = {}
        self.on_revoke: Callable[[Sequence[ports.TopicPartition]], None] = lambda _: None

    # -- its callbacks

    def on_assigned(self, partitions):
        self._tell("assigned", partitions)
        found = self.consumer.find(partitions, ANSWER_S)
        usual = {where: one.committed or one.log_start for where, one in found.items()}
        starts = {where: self.starts.get(where, usual[where]) for where in partitions}
        return {where: start for where, start in starts.items() if start is not None}

    def on_revoked(self, partitions):
        self._tell("revoked", partitions)
        self.on_revoke(partitions)

    def on_lost(self, partitions):
        self._tell("lost", partitions)

    def _tell(self, what, partitions):
        self.threads.add(threading.get_ident())
        self.told.append((what, tuple(sorted(partitions))))

    # -- what a test does with it

    def poll(self, timeout_s: float = 0.05) -> Polled:
        """Poll once; what it brought is also kept in `seen`."""
        polled = self.consumer.poll(timeout_s)
        for name in ("batches", "ends", "commits", "problems", "out_of_range"):
            getattr(self.seen, name).extend(getattr(polled, name))
        return polled

    def until(self, done: Callable[[], Any], others: Sequence[Joined] = ()) -> Any:
        """Poll, and have others poll, until this is true; its value."""
        deadline = time.monotonic() + LIMIT_S
        while not (value := done()):
            assert time.monotonic() < deadline, (self.told, self.seen)
            for member in (self, *others):
                member.poll()
        return value

    def quiet(self, polls: int = 6) -> None:
        """Poll for a little while, for what should not happen."""
        for _ in range(polls):
            self.poll()

    @property
    def assigned(self) -> set[ports.TopicPartition]:
        """What it holds now, by its callbacks."""
        held: set[ports.TopicPartition] = set()
        for what, partitions in self.told:
            (held.update if what == "assigned" else held.difference_update)(partitions)
        return held

    @property
    def records(self) -> list[Record]:
        """Everything polled so far."""
        return [record for batch in self.seen.batches for record in batch.records]

    @property
    def offsets(self) -> list[int]:
        """Their offsets."""
        return [record.offset for record in self.records]

    def commit(self, topic: str, offset: int, metadata: str = "", partition: int = 0) -> Any:
        """Commit one partition and wait for the answer that comes with a poll."""
        token = self.consumer.commit([ToCommit(topic, partition, offset, metadata)])
        return self.until(lambda: next((a for a in self.seen.commits if a.token == token), None))

    def leave(self, limit_s: float = 5.0) -> None:
        """Leave the group, once."""
        if not self.left:
            self.left = True
            self.consumer.leave(limit_s)


class Deliveries(list[ports.Delivery]):
    """What a producer said of its messages, in that order."""

    def wait(self, count: int) -> Deliveries:
        """Until there are so many."""
        deadline = time.monotonic() + LIMIT_S
        tick = threading.Event()
        while len(self) < count:
            assert time.monotonic() < deadline, self
            tick.wait(0.005)
        return self

    @property
    def sent(self) -> list[Sent]:
        """Those that were stored."""
        return [one.sent for one in self if one.sent is not None]
