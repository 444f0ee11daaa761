"""Ranges of a log, read without a group, and the commits of a group without members."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
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
        quiet = {"log_level": 2, **config}
        # The group does not know a member with this client's id.
        quiet.pop("group.instance.id", None)
        quiet["enable.partition.eof"] = True
        if as_consumer:  # runs beside the consumer, which has the budget
            quiet |= {"queued.max.messages.kbytes": QUEUED_KB, "queued.min.messages": QUEUED_MIN}
        else:
            quiet["isolation.level"] = "read_committed"
        # Records deleted by retention meanwhile are skipped.
        self._consumer = Consumer(with_client_log({**quiet, "auto.offset.reset": "earliest"}))
        self._group = str(config["group.id"])

    def read(self, ranges: Mapping[Where, tuple[int, int]]) -> Iterator[list[Record[Any]]]:
        """The records at these offsets."""
        left = {where: end for where, (start, end) in ranges.items() if start < end}
        if not left:
            return
        # Look up the leaders now: otherwise the client looks for them once per second.
        clib_offsets.refresh(self._consumer, {topic for topic, _ in left}, SILENT_S)
        begin = [TopicPartition(*where, ranges[where][0]) for where in left]
        self._consumer.assign(begin)
        # librdkafka still has those paused that an earlier range paused.
        self._consumer.resume(begin)
        last_answer = time.monotonic()
        try:
            while left:
                messages = self._consumer.consume(MESSAGES_AT_A_TIME, TURN_S)
                if messages:
                    last_answer = time.monotonic()
                elif time.monotonic() - last_answer > SILENT_S:
                    topic, partition = next(iter(left))
                    raise KafkaUnavailable(
                        f"{topic}[{partition}] cannot be read: nothing came for {SILENT_S:.0f} s"
                    )
                yield from self._wanted(messages, left)
        finally:
            self._consumer.unassign()

    def _wanted(self, messages: list[Message], left: dict[Where, int]) -> Iterator[list[Record]]:
        """The records of these messages that are in range; finished partitions leave `left`."""
        ends = dict(left)
        for one in messages:
            where = (str(one.topic()), _number(one.partition()))
            error = one.error()
            if error is not None and error.code() != _EOF:
                # ConfigError for permanent errors.
                if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise ConfigError(f"topic {where[0]} may not be read: {reason(error.code())}")
                if error.fatal():
                    raise KafkaUnavailable(f"{where[0]}[{where[1]}] cannot be read: {error.str()}")
                continue
            # At an end the offset is the next one; the last offset may be a marker.
            behind = _number(one.offset()) + (error is None)
            if where in left and behind >= left[where]:
                del left[where]
                self._consumer.pause([TopicPartition(*where)])
        for batch in batches_of([one for one in messages if one.error() is None]):
            end = ends.get((batch.topic, batch.partition), 0)
            records = [one for one in batch.records if one.offset < end]
            if records:
                yield records

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
                reported = [one.error() for one in self._consumer.consume(MESSAGES_AT_A_TIME, 0)]
                for one in (error.args[0], *reported):
                    if one is not None and one.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                        raise ConfigError(f"group {self._group}: {reason(one.code())}") from None
                if time.monotonic() >= deadline:
                    text = error.args[0].str()
                    raise KafkaUnavailable(f"the offsets of {self._group}: {text}") from None
                time.sleep(AGAIN_S)  # its coordinator is being looked up
            else:
                return {(one.topic, one.partition): (one.offset, one.metadata) for one in held}

    def membership(self) -> clib.GroupMetadata:
        """A membership without a member: Kafka accepts it while the group has no members."""
        return clib.GroupMetadata(self._consumer)

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()


def _number(given: int | None) -> int:
    return -1 if given is None else given


def fetch(
    reader: LogReader, places: AbstractSet[Place], gap_max: int = GAP_MAX
) -> Iterator[Record[Any]]:
    """The records at these places that still exist; `gap_max`: see `GAP_MAX`."""
    # The ranges to read: one per partition and round, split at wide gaps
    rounds: list[dict[Where, tuple[int, int]]] = []
    for where, group in groupby(sorted(places), key=lambda one: one[:2]):
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
            yield from (one for one in records if (one.topic, one.partition, one.offset) in places)


def fetch_stored(
    admin: AdminPort, reader: LogReader, places: AbstractSet[Place], timeout_s: float
) -> Iterator[Record[Any]]:
    """`fetch` without places past the end of their log, which a reader would wait for."""
    topics = sorted({topic for topic, _, _ in places})
    if topics:
        ends = admin.ends(topics, committed=True, timeout_s=timeout_s)
        yield from fetch(reader, {one for one in places if one[2] < ends.get(one[:2], 0)})
