"""The clients of one member on the in-memory broker."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from perkey.errors import ConfigError
from perkey.kafka.admin import TopicFacts
from perkey.kafka.connect import MEMORY, Connection
from perkey.kafka.ports import Clock, KafkaUnavailable, Word
from perkey.kafka.settings import ClientSettings
from perkey.testing import crash
from perkey.testing.clock import VirtualClock
from perkey.testing.memory import UnstableOffset
from perkey.testing.memory_cluster import MemoryCluster, record_of
from perkey.testing.memory_consumer import Membership, MemoryConsumer
from perkey.testing.memory_producer import QUEUE_MAX, MemoryProducer, MemoryTransactions
from perkey.types import Record, TopicPartition


class MemoryWords:
    """The last value of each key of a topic, read on demand."""

    def __init__(
        self, kafka: MemoryCluster, topic: str, wanted: Callable[[bytes], bool], *, whole: bool
    ) -> None:
        self._kafka, self._topic, self._wanted, self._whole = kafka, topic, wanted, whole

    def last(self) -> dict[bytes, Word]:
        """Values by key, without deleted ones."""
        words: dict[bytes, Word | None] = {}
        with self._kafka.changed:
            for number in range(self._kafka.broker.partition_counts.get(self._topic, 0)):
                for record in self._kafka.broker.logs[self._topic, number].records:
                    if record.key is None and not self._whole:
                        continue
                    if self._wanted(record.key or b"") and record.key is not None:
                        at = record.timestamp_ms / 1e3
                        word = Word(record.value or b"", at, record.offset)
                        words.pop(record.key, None)  # in order of arrival
                        words[record.key] = word if record.value or self._whole else None
        return {key: word for key, word in words.items() if word is not None}

    def now(self) -> float:
        """The broker's clock is the local one."""
        return time.time()

    def is_read(self) -> bool:
        """Always: it is read on demand."""
        return True

    def close(self) -> None:
        """Nothing to close."""


class MemoryLogReader:
    """A LogReader."""

    def __init__(self, kafka: MemoryCluster, group: str, *, committed: bool = True) -> None:
        self._kafka, self._group, self._reads_committed = kafka, group, committed

    def read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[list[Record[Any]]]:
        """The records at these offsets."""
        for where, (start, end) in ranges.items():
            with self._kafka.changed:
                log = self._kafka.broker.logs[where]
                found, _ = log.read(
                    max(start, log.start), len(log.records) + 1, committed=self._reads_committed
                )
                records = [record_of(where, one) for one in found if one.offset < end]
            if records:
                yield records

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, tuple[int | None, str]]:
        """The group's commits, with metadata."""
        with self._kafka.changed:
            try:
                held = {one: self._kafka.broker.committed(self._group, one) for one in partitions}
            except UnstableOffset as error:
                raise KafkaUnavailable(str(error)) from error
        return {
            where: (None, "") if one is None else (one.offset, one.metadata)
            for where, one in held.items()
        }

    def membership(self) -> Membership:
        """A membership without a member."""
        return Membership("", -1)

    def close(self) -> None:
        """Nothing to close."""


class MemoryConnection(Connection):
    """A Connection of one run; all its clients die together."""

    def __init__(self, kafka: MemoryCluster, settings: ClientSettings) -> None:
        self.settings = settings
        self._kafka = kafka
        self._consumers: list[MemoryConsumer] = []
        #: the crash point at which this member was killed
        self.dead = ""

    # -- dying -------------------------------------------------------------------------------------

    def reach(self, point: crash.CrashPoint) -> bool:
        """Reach a crash point; True if dead, now or since before."""
        with self._kafka.changed:
            if not self.dead and self._kafka.strikes(point):
                self.dead = point
                for consumer in self._consumers:
                    consumer.vanish()
            return bool(self.dead)

    def hold(self) -> None:
        """Block a thread of a dead member until the broker is closed."""
        self._kafka.closed.wait()
        raise crash.Crashed(f"killed at {self.dead}")

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler with a crash point before and after it."""
        return crash.around(handler, self)

    # -- clients -----------------------------------------------------------------------------------

    def consumer(self) -> MemoryConsumer:
        """A new consumer."""
        made = MemoryConsumer(self._kafka, self, self.settings.consumer)
        self._consumers.append(made)
        return made

    def producer(
        self, on_served: Callable[[], None], on_failed: Callable[[str], None]
    ) -> MemoryProducer:
        """A new producer."""
        limit = int(self.settings.producer.get("queue.buffering.max.messages", QUEUE_MAX))
        return MemoryProducer(self._kafka, self, on_served, limit or QUEUE_MAX)

    def transactions(self, transactional_id: str) -> MemoryTransactions:
        """Transactions under this id."""
        group = str(self.settings.consumer["group.id"])
        return MemoryTransactions(self._kafka, self, group, transactional_id)

    def log_reader(self, *, as_consumer: bool = False) -> MemoryLogReader:
        """Reads ranges of logs, and the group's commits, without joining the group."""
        level = self.settings.consumer.get("isolation.level", "read_committed")
        committed = not as_consumer or level == "read_committed"
        return MemoryLogReader(
            self._kafka, str(self.settings.consumer["group.id"]), committed=committed
        )

    def last_words(
        self,
        topic: str,
        wanted: Callable[[bytes], bool],
        _failed: Callable[[str], None],
        *,
        whole: bool = False,
        of_now: Callable[[bytes], bool] | None = None,
    ) -> MemoryWords:
        """The last value of each key of a topic."""
        return MemoryWords(self._kafka, topic, wanted, whole=whole)

    def admin(self) -> MemoryAdmin:
        """A new admin client."""
        return MemoryAdmin(self._kafka)

    # -- facts -------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        """The broker's clock."""
        return self._kafka.clock

    def described(self) -> str:
        """The broker, for messages."""
        return self._kafka.bootstrap


class MemoryAdmin:
    """An AdminPort."""

    def __init__(self, kafka: MemoryCluster) -> None:
        self._kafka = kafka

    def describe(self, topics: Sequence[str], timeout_s: float) -> dict[str, TopicFacts]:
        """The topics of these that exist, by name."""
        kafka = self._kafka
        with kafka.changed:
            counts = kafka.broker.partition_counts
            return {
                name: TopicFacts(name, kafka.topic_ids[name], counts[name])
                for name in topics
                if name in counts
            }

    def matching(self, patterns: Sequence[str], timeout_s: float) -> list[str]:
        """The names of existing topics that any of these patterns matches, sorted."""
        matchers = [re.compile(pattern) for pattern in patterns]
        with self._kafka.changed:
            names = sorted(self._kafka.broker.partition_counts)
        return [name for name in names if any(m.match(name) for m in matchers)]

    def starts(self, topics: Sequence[str], *, timeout_s: float) -> dict[TopicPartition, int]:
        """The first offset in the log of each partition of these topics."""
        with self._kafka.changed:
            logs = self._kafka.broker.logs
            return {where: log.start for where, log in logs.items() if where[0] in topics}

    def ends(
        self, topics: Sequence[str], *, committed: bool, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """One past the last record of each; `committed`: up to the oldest open transaction."""
        with self._kafka.changed:
            logs = self._kafka.broker.logs
            return {
                where: log.stable_end() if committed else log.end
                for where, log in logs.items()
                if where[0] in topics
            }

    def group_offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        """What the group has committed for each partition; None: nothing."""
        with self._kafka.changed:
            try:
                held = {where: self._kafka.broker.committed(group, where) for where in partitions}
            except UnstableOffset as error:
                raise KafkaUnavailable(str(error)) from error
        return {where: None if one is None else one.offset for where, one in held.items()}

    def group_members(self, group: str, timeout_s: float) -> int | None:
        """How many members the group has now; None: it does not exist."""
        with self._kafka.changed:
            members = len(self._kafka.broker.group(group).members)
        return members or None

    def group_state(self, group: str, timeout_s: float) -> tuple[str, int]:
        """Kafka's name for the state of the group, and the number of members."""
        members = self.group_members(group, timeout_s) or 0
        return ("STABLE" if members else "EMPTY"), members

    def groups_reading(self, topic: str, partitions: int, timeout_s: float) -> list[str]:
        """The groups that read this topic now or have committed offsets of it, by name."""
        with self._kafka.changed:
            return sorted(
                name
                for name, group in self._kafka.broker.groups.items()
                if any(topic in member.topics for member in group.members.values())
                or any(where[0] == topic for where in group.committed)
            )

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int = -1,
        timeout_s: float = 10.0,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a topic; False if it existed already."""
        try:
            self._kafka.create_topic(name, partitions)
        except ConfigError:
            if self.describe([name], timeout_s):
                return False
            raise
        return True

    def close(self) -> None:
        """Nothing to close."""


class MemoryKafka(MemoryCluster):
    """A Kafka in this process, for apps with `kafka={"bootstrap.servers": broker.bootstrap}`.

    It has topics, groups that rebalance, commits with metadata, gaps and transactions, and tests
    can make it fail. `clock` is the clock of its apps; `auto_create` creates topics when they are
    written to. It is a context manager. Thread-safe.
    """

    def __init__(self, *, clock: VirtualClock | None = None, auto_create: bool = False) -> None:
        super().__init__(clock=clock, auto_create=auto_create)
        MEMORY[self.bootstrap] = lambda settings: MemoryConnection(self, settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unregister its address. May be called again."""
        MEMORY.pop(self.bootstrap, None)
        self.closed.set()

    def __repr__(self) -> str:
        return f"<MemoryKafka {self.bootstrap}>"
