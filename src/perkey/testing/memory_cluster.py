"""The in-memory broker with a lock, a clock and faults, shared by the clients of an address."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Literal, Protocol, get_args

from confluent_kafka import KafkaError

from perkey.codec import OffsetMap, decode
from perkey.errors import ConfigError
from perkey.kafka.connect import MEMORY_SCHEME
from perkey.kafka.ports import REAL_CLOCK, Delivery, OutMessage
from perkey.numeric import is_whole
from perkey.testing.clock import VirtualClock
from perkey.testing.crash import Armed, CrashPoint
from perkey.testing.memory import Log, MemoryBroker, OffsetAndMetadata, ProducerId, Stored
from perkey.types import ErrorInfo, Headers, Record, Sent, TopicPartition

PARTITIONS_MAX = 10_000
MESSAGE_BYTES_MAX = 1_048_588  # message.max.bytes, the default of a broker
LOOK_S = 0.002
Request = Literal["commit", "commit_answer", "find", "produce"]

_numbers = itertools.count(1)


class Output(Sent):
    """The elements of `Result.outputs` in a test: the place of an output, and its content."""

    value: bytes | None
    headers: Headers


class Polling(Protocol):
    """The cluster's view of a consumer."""

    def match_topics(self) -> None:
        """Match the existing topics again."""


class MemoryCluster:
    """The broker that the clients of one `MemoryKafka` share. Thread-safe."""

    def __init__(self, *, clock: VirtualClock | None = None, auto_create: bool = False) -> None:
        self.bootstrap = f"{MEMORY_SCHEME}{next(_numbers)}"
        self.virtual = clock
        self.clock = REAL_CLOCK if clock is None else clock
        self.broker = MemoryBroker()
        #: held for every access to `broker`; notified, with `changes` incremented, at every change
        self.changed = threading.Condition()
        self.changes = 0
        #: set when it is closed: threads of dead members may end
        self.closed = threading.Event()
        #: the crash points where members have died, in order
        self.crashes: list[CrashPoint] = []
        self.topic_ids: dict[str, str] = {}
        self._auto_create = auto_create
        self._armed: Armed | None = None
        self._faults: dict[str, deque[str]] = {name: deque() for name in get_args(Request)}
        self._members: dict[Polling, None] = {}
        self._resting: dict[Polling, float] = {}
        self._made = itertools.count(1)
        self._round_robin = itertools.count()

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; raises ConfigError if it exists."""
        if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name):
            raise ConfigError(f"create_topic({name!r}): letters, digits, '.', '_' and '-' only")
        if not is_whole(partitions, 1, PARTITIONS_MAX):
            raise ConfigError(f"create_topic(partitions={partitions!r}): 1 to {PARTITIONS_MAX}")
        with self.changed:
            if name in self.broker.partition_counts:
                raise ConfigError(f"topic {name!r} already exists")
            self.topic_ids[name] = f"memory-{next(self._made)}"
            self.broker.create_topic(name, partitions)
            self._subscribe_again()

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase the number of a topic's partitions to this."""
        with self.changed:
            have = self._known(name)
            if not have < partitions <= PARTITIONS_MAX:
                raise ConfigError(f"add_partitions({partitions!r}): more than {have}")
            self.broker.create_topic(name, partitions)
            self.notify()

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its records and committed offsets."""
        with self.changed:
            self._known(name)
            self.broker.delete_topic(name)
            del self.topic_ids[name]
            self._subscribe_again()

    def _subscribe_again(self) -> None:
        for member in self._members:
            member.match_topics()
        self.notify()

    def _known(self, topic: str) -> int:
        count = self.broker.partition_counts.get(topic)
        if count is None:
            raise ConfigError(f"topic {topic!r} does not exist: create_topic({topic!r}) first")
        return count

    # -- records -----------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Sent:
        """Write one record; returns its place. Raises ConfigError if Kafka would refuse it."""
        pairs = tuple((name, _bytes("headers", content)) for name, content in headers)
        held = _bytes("key", key), pairs, partition, timestamp_ms
        message = OutMessage(topic, _bytes("value", value), *held)
        with self.changed:
            sent, error, _ = self.store(message)
        if sent is None:
            raise ConfigError(f"produce to {topic!r}: {error.message if error else 'refused'}")
        return sent

    def records(self, topic: str) -> list[Record]:
        """All records of a topic that a read_committed reader sees, partition by partition."""
        with self.changed:
            records = []
            for number in range(self._known(topic)):
                log = self.broker.logs[topic, number]
                all_of_it = log.read(log.start, len(log.records) + 1, committed=True)[0]
                records += [record_of((topic, number), stored) for stored in all_of_it]
            return records

    def leave_gap(self, topic: str, partition: int = 0, count: int = 1) -> None:
        """Use up offsets without a record, as transaction markers do."""
        _at_least(1, "leave_gap(count=", count)
        self._change_log(topic, partition, lambda log: log.gap(count))

    def compact(self, topic: str, partition: int, offsets: Iterable[int]) -> None:
        """Remove single records; their offsets stay used."""
        self._change_log(topic, partition, lambda log: log.compact(offsets))

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Retention: delete everything before this offset."""
        self._change_log(topic, partition, lambda log: log.delete_before(offset))

    def _change_log(self, topic: str, partition: int, change: Callable[[Log], None]) -> None:
        with self.changed:
            count = self._known(topic)
            if not 0 <= partition < count:
                raise ConfigError(f"topic {topic!r} has no partition {partition}: it has {count}")
            change(self.broker.logs[topic, partition])
            self.notify()

    def store(self, message: OutMessage, producer: ProducerId | None = None) -> Delivery:
        """Write one message as a producer would; `changed` is held."""
        problem = self.take_fault("produce") or self._refusal(message)
        if problem:
            return Delivery(
                None,
                ErrorInfo(
                    problem, f"output to {message.topic}: the in-memory broker returned {problem}"
                ),
            )
        # Like `murmur2_random`, Perkey's default, but round-robin instead of random
        if message.partition is not None:
            number = message.partition
        else:
            count = self.broker.partition_counts[message.topic]
            if message.key is not None:
                number = (murmur2(message.key) & 0x7FFFFFFF) % count
            else:
                number = next(self._round_robin) % count
        stamp = message.timestamp_ms
        offset = self.broker.produce(
            (message.topic, number),
            message.key,
            message.value,
            message.headers,
            timestamp_ms=int(time.time() * 1000) if stamp is None or stamp < 0 else stamp,
            producer=producer,
        )
        self.notify()
        sent = Output(message.topic, number, offset, message.key)
        sent.value, sent.headers = message.value, message.headers
        return Delivery(sent, None)

    def _refusal(self, message: OutMessage) -> str:
        if message.topic not in self.broker.partition_counts:
            if not self._auto_create:
                return "UNKNOWN_TOPIC_OR_PART"
            self.create_topic(message.topic)
        count = self.broker.partition_counts[message.topic]
        if message.partition is not None and not 0 <= message.partition < count:
            return "_UNKNOWN_PARTITION"
        size = batch_bytes(message.key, message.value, message.headers)
        return "MSG_SIZE_TOO_LARGE" if size > MESSAGE_BYTES_MAX else ""

    # -- groups ------------------------------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int = 0) -> OffsetMap | None:
        """The group's commit for a partition, its map decoded; None: nothing."""
        with self.changed:
            held = self.broker.committed(group, (topic, partition))
        return None if held is None else decode(held.offset, held.metadata)

    def commit(
        self, group: str, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Commit for a group from outside, as `perkey offsets set` does."""
        _at_least(0, "commit(offset=", offset)
        with self.changed:
            self._known(topic)
            value = OffsetAndMetadata(offset, metadata)
            error = self.broker.group(group).store((topic, partition), value)
        if error:
            raise ConfigError(f"commit for {group}: {error}")

    def expire_members(self, group: str) -> None:
        """Remove every member from the group, as when its session times out.

        It loses its partitions and joins again.
        """
        with self.changed:
            for member_id in list(self.broker.group(group).members):
                self.broker.leave(group, member_id)
            self.notify()

    # -- faults ------------------------------------------------------------------------------------

    def fail_next(self, request: Request, error: str = "REQUEST_TIMED_OUT", times: int = 1) -> None:
        """Answer the next requests with an error, by Kafka's name for it.

        "commit": nothing is stored. "commit_answer": it is stored, but answered with the error.
        "find": offsets cannot be read. "produce": nothing is written.
        """
        if request not in self._faults:
            raise ConfigError(f"fail_next({request!r}): one of {', '.join(self._faults)}")
        if not isinstance(getattr(KafkaError, error, None), int):
            raise ConfigError(f"fail_next(error={error!r}) is not a Kafka error: see KafkaError")
        _at_least(1, "fail_next(times=", times)
        with self.changed:
            self._faults[request].extend([error] * times)

    def take_fault(self, request: Request) -> str:
        """The error for the current request; empty for none. `changed` is held."""
        faults = self._faults[request]
        return faults.popleft() if faults else ""

    def crash_at(self, point: CrashPoint, nth: int = 1) -> None:
        """Kill the `nth` member that reaches this point from now on."""
        with self.changed:
            self._armed = Armed(point, nth)

    def strikes(self, point: CrashPoint) -> bool:
        """Whether the member at this point dies now. `changed` is held."""
        if self._armed is None or not self._armed.strikes(point):
            return False
        self._armed = None
        self.crashes.append(point)
        return True

    def next_number(self) -> int:
        """A new number."""
        return next(self._made)

    # -- waiting -----------------------------------------------------------------------------------

    def notify(self) -> None:
        """Something has changed; `changed` is held."""
        self.changes += 1
        self.changed.notify_all()

    def enter(self, member: Polling) -> None:
        """A member starts to poll; `changed` is held."""
        self._members[member] = None

    def forget(self, member: Polling) -> None:
        """It stops polling; `changed` is held."""
        self._members.pop(member, None)
        self.notify()

    def rest(self, member: Polling, until: float, seen: int) -> None:
        """Wait for a change since `seen`, or for that time.

        `changed` must not be held: a virtual clock checks whether all members are quiet.
        """
        quiet = self.virtual is not None and self.virtual.quiet()
        with self.changed:
            if self.changes != seen:
                return
            left_s = until - self.clock.now()
            if self.virtual is None:
                self.changed.wait(left_s)
                return
            self._resting[member] = until
            if quiet and len(self._resting) == len(self._members):
                self.virtual.skip_to(min(self._resting.values()))
                self.notify()
            else:
                self.changed.wait(min(left_s, LOOK_S))
            del self._resting[member]


def record_of(where: TopicPartition, stored: Stored) -> Record:
    """A stored record as a consumer gets it."""
    return Record(
        *where, stored.offset, stored.timestamp_ms, stored.key, stored.value, stored.headers
    )


def _bytes(name: str, content: object) -> bytes | None:
    if isinstance(content, str):
        return content.encode()
    if content is None or isinstance(content, bytes):
        return content
    raise ConfigError(f"produce({name}=): give bytes, str or None, not {type(content).__name__}")


def _at_least(least: int, what: str, number: object) -> None:
    if not is_whole(number, least):
        raise ConfigError(f"{what}{number!r:.40}): give {least} or more")


# -- the size of a message for a broker ---------------------------------------------------------

#: base offset, length, leader epoch, magic, checksum, attributes, producer and the counts
_BATCH_BYTES = 61


def batch_bytes(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()
) -> int:
    """Bytes of a record batch (format 2, not compressed) with only this message."""
    parts = [_field(key), _field(value), _varint(len(headers))]
    for name, content in headers:
        parts += [_field(name.encode()), _field(content)]
    body = 1 + 1 + 1 + sum(parts)  # attributes, and the differences in time and offset: none
    return _BATCH_BYTES + _varint(body) + body


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    """Bytes of a number that is not negative, in zigzag form."""
    return max(1, -(-(2 * number).bit_length() // 7))


@lru_cache(4096)
def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, as `org.apache.kafka.common.utils.Utils.murmur2`, without its sign."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    whole = len(key) & ~3
    h = 0x9747B28C ^ len(key)
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
