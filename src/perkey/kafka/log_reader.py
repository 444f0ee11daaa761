"""Ranges of logs, read without joining a group, and the commits of a group without members."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from math import inf
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from perkey.errors import ConfigError
from perkey.kafka import clib, clib_offsets
from perkey.kafka.batches import batches_of
from perkey.kafka.clientlog import with_client_log
from perkey.kafka.ports import AdminPort, KafkaUnavailable
from perkey.kafka.verdicts import reason
from perkey.types import Record
from perkey.types import TopicPartition as Where

MESSAGES_AT_A_TIME = 2_000
#: how long `consume` waits for a full batch
TURN_S = 0.05
AGAIN_S = 0.5
#: time limit for one request for offsets
ASKED_S = 5.0
#: time limit for a leader that moves
SILENT_S = 30.0
#: longest gap between two wanted offsets that is read rather than skipped by a seek
GAP_MAX = 1_000
#: how much librdkafka fetches ahead for a member's second client
QUEUED_KB, QUEUED_MIN = 4_096, 1_000
#: topic, partition, offset
Place = tuple[str, int, int]
_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001  # a public constant
#: Properties of a consumer that joins no group and reads every record of its ranges. Offsets that
#: retention has deleted are skipped.
UNGROUPED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_uncommitted",
}


class RangeReader:
    """Reads ranges of many partitions with one consumer, made with `UNGROUPED`. Not thread-safe.

    Gaps need no care: a range is read once a record or an end at or past its last offset comes.
    """

    def __init__(self, consumer: Consumer, on_error: Callable[[Where, KafkaError], bool]) -> None:
        """`on_error` raises, or returns whether the partition is given up."""
        self._consumer = consumer
        self._on_error = on_error
        #: partitions that are not read yet -> the end of their range
        self.left: dict[Where, int] = {}

    def read(
        self, ranges: Mapping[Where, tuple[int, int]], *, silent_s: float = inf, until: float = inf
    ) -> Iterator[list[Message]]:
        """The messages of these ranges, and some behind their ends; ascending in each partition.

        Stops with `left` not empty after `silent_s` without any message, and at `until`, in
        seconds of the monotonic clock.
        """
        self.left = {where: end for where, (start, end) in ranges.items() if start < end}
        if not self.left:
            return
        begin = [TopicPartition(*where, ranges[where][0]) for where in self.left]
        self._consumer.assign(begin)
        # librdkafka still has those paused that an earlier range paused.
        self._consumer.resume(begin)
        last_answer = time.monotonic()
        try:
            while self.left:
                messages = self._consumer.consume(MESSAGES_AT_A_TIME, TURN_S)
                if not messages and time.monotonic() - last_answer > silent_s:
                    return
                records = [message for message in messages if self._is_record(message)]
                if records:
                    yield records
                if messages:  # after the caller, whose time is not silence
                    last_answer = time.monotonic()
                if time.monotonic() > until:
                    return
        finally:
            self._consumer.unassign()

    def _is_record(self, message: Message) -> bool:
        """Whether it is a record and not an event; a finished partition leaves `left`."""
        where = (str(message.topic()), _number(message.partition()))
        error = message.error()
        if error is None or error.code() == _EOF:
            # At an end the offset is the next one; the last offset may be a marker.
            behind = _number(message.offset()) + (error is None)
            is_over = behind >= self.left.get(where, inf)
        else:
            is_over = self._on_error(where, error) and where in self.left
        if is_over:
            del self.left[where]
            self._consumer.pause([TopicPartition(*where)])
        return error is None


class LogReader(Protocol):
    """Reads as read_committed, or as the group's consumer does. Not thread-safe."""

    def read(self, ranges: Mapping[Where, tuple[int, int]]) -> Iterator[list[Record[Any]]]:
        """The records in these ranges: from the first offset up to the second, excluded.

        Ascending in each partition, several partitions mixed. Raises KafkaUnavailable if nothing
        comes for half a minute, ConfigError if a topic may not be read.
        """

    def committed(
        self, partitions: Sequence[Where], timeout_s: float
    ) -> dict[Where, tuple[int | None, str]]:
        """The group's commits, with metadata; ConfigError if they may not be read."""

    def membership(self) -> Any:
        """A membership for a transaction with offsets of the group, which has no members."""

    def close(self) -> None:
        """Stop reading."""


class KafkaLogReader:
    """A LogReader on a real broker."""

    def __init__(self, config: Mapping[str, Any], *, as_consumer: bool = False) -> None:
        """`config`: librdkafka consumer properties, complete (see `settings`)."""
        # As the group's consumer reads, or without what is not committed.
        level = config["isolation.level"] if as_consumer else "read_committed"
        quiet = {"log_level": 2, **config, **UNGROUPED, "isolation.level": level}
        # The group does not know a member with this client's id.
        quiet.pop("group.instance.id", None)
        if as_consumer:  # runs beside the consumer, which has the budget
            quiet |= {"queued.max.messages.kbytes": QUEUED_KB, "queued.min.messages": QUEUED_MIN}
        self._consumer = Consumer(with_client_log(quiet))
        self._reader = RangeReader(self._consumer, _refused)
        self._group = str(config["group.id"])

    def read(self, ranges: Mapping[Where, tuple[int, int]]) -> Iterator[list[Record[Any]]]:
        """The records at these offsets."""
        topics = {topic for (topic, _), (start, end) in ranges.items() if start < end}
        if not topics:
            return
        # Look up the leaders now: otherwise the client looks for them once per second.
        clib_offsets.refresh(self._consumer, topics, SILENT_S)
        for messages in self._reader.read(ranges, silent_s=SILENT_S):
            for batch in batches_of(messages):
                _, end = ranges.get((batch.topic, batch.partition), (0, 0))
                records = [record for record in batch.records if record.offset < end]
                if records:
                    yield records
        for topic, partition in self._reader.left:
            raise KafkaUnavailable(
                f"{topic}[{partition}] cannot be read: nothing came for {SILENT_S:.0f} s"
            )

    def committed(
        self, partitions: Sequence[Where], timeout_s: float
    ) -> dict[Where, tuple[int | None, str]]:
        """What the group has committed."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                held = clib.committed(self._consumer, partitions, min(timeout_s, ASKED_S))
            except KafkaException as error:
                # ConfigError if the group is refused; a request may time out, and a message
                # gives the reason.
                reported = [
                    problem.error() for problem in self._consumer.consume(MESSAGES_AT_A_TIME, 0)
                ]
                for problem in (error.args[0], *reported):
                    if (
                        problem is not None
                        and problem.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
                    ):
                        raise ConfigError(
                            f"group {self._group}: {reason(problem.code())}"
                        ) from None
                if time.monotonic() >= deadline:
                    text = error.args[0].str()
                    raise KafkaUnavailable(f"the offsets of {self._group}: {text}") from None
                time.sleep(AGAIN_S)  # its coordinator is being looked up
            else:
                return {
                    (stored.topic, stored.partition): (stored.offset, stored.metadata)
                    for stored in held
                }

    def membership(self) -> clib.GroupMetadata:
        """A membership without a member: Kafka accepts it while the group has no members."""
        return clib.GroupMetadata(self._consumer)

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()


def _refused(where: Where, error: KafkaError) -> bool:
    """Raise ConfigError for permanent errors, KafkaUnavailable for fatal ones."""
    topic, partition = where
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise ConfigError(f"topic {topic} may not be read: {reason(error.code())}")
    if error.fatal():
        raise KafkaUnavailable(f"{topic}[{partition}] cannot be read: {error.str()}")
    return False


def _number(given: int | None) -> int:
    return -1 if given is None else given


def fetch(
    reader: LogReader, places: AbstractSet[Place], gap_max: int = GAP_MAX
) -> Iterator[Record[Any]]:
    """The records at these places that still exist; `gap_max`: see `GAP_MAX`."""
    # The ranges to read: one per partition and round, split at wide gaps
    rounds: list[dict[Where, tuple[int, int]]] = []
    for where, group in groupby(sorted(places), key=lambda place: place[:2]):
        number, last = -1, -gap_max - 2
        for _, _, offset in group:
            if offset - last > gap_max:
                number += 1
                if number == len(rounds):
                    rounds.append({})
                rounds[number][where] = (offset, offset + 1)
            last = offset
            rounds[number][where] = (rounds[number][where][0], last + 1)
    for ranges in rounds:
        for records in reader.read(ranges):
            yield from (
                record
                for record in records
                if (record.topic, record.partition, record.offset) in places
            )


def fetch_stored(
    admin: AdminPort, reader: LogReader, places: AbstractSet[Place], timeout_s: float
) -> Iterator[Record[Any]]:
    """`fetch` without places past the end of their log, which a reader would wait for."""
    topics = sorted({topic for topic, _, _ in places})
    if topics:
        ends = admin.ends(topics, committed=True, timeout_s=timeout_s)
        yield from fetch(reader, {place for place in places if place[2] < ends.get(place[:2], 0)})
