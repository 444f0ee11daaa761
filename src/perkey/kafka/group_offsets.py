"""Read and move a group's committed offsets from outside the group, for `perkey offsets`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException

from perkey.codec import OffsetMap, UnreadableMap, decode
from perkey.errors import ConfigError, FatalError
from perkey.kafka import clib
from perkey.kafka import properties as librdkafka
from perkey.kafka.admin import KafkaAdmin
from perkey.kafka.failures import passes, raised_code
from perkey.kafka.ports import CommittedOffset, KafkaUnavailable
from perkey.kafka.settings import ClientSettings, check_addresses
from perkey.types import TopicPartition as TopicAndPartition  # the client has one, too

#: How long a broker may take for one answer before it counts as unavailable.
ANSWER_S = 10.0
_AGAIN_S = 0.1

#: Properties that this tool sets itself -> the option for them.
_OWN = {"bootstrap.servers": "--bootstrap-servers", "group.id": "--group"}


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets that a partition's log holds: from start to end, end excluded."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Progress:
    """One partition's commit."""

    topic: str
    partition: int
    #: the commit's map; without a readable one, only its offset
    map: OffsetMap
    span: Span
    #: Why the metadata could not be read; None if it could.
    unreadable: str | None

    @property
    def lag(self) -> int:
        """Offsets from the frontier to the end of the log."""
        return max(0, self.span.end - self.map.frontier)


@dataclass(frozen=True, slots=True)
class Move:
    """The effect of a new committed offset on one partition, counted in offsets."""

    topic: str
    partition: int
    #: The offset committed now; None if there is none.
    before: int | None
    after: int
    #: Handled already, and handled again: before the frontier, and done beyond it.
    repeated: int
    #: Of `repeated`, those beyond the frontier, which only the offset map knows.
    repeated_beyond: int
    #: Not handled yet, and then never handled.
    skipped: int


def plan_move(progress: Progress | None, span: Span, where: TopicAndPartition, after: int) -> Move:
    """The effect of committing ``after`` with no map; ``progress`` is None without a commit."""
    topic, partition = where
    known = progress.map if progress else OffsetMap("none", span.start, span.start - 1, ())
    behind = max(0, known.frontier - max(after, span.start))
    first = max(after, known.frontier)
    waiting = sum(offset >= first for offset in known.not_done)
    beyond = max(0, known.highest_seen - first + 1 - waiting)
    skipped = sum(span.start <= offset < after for offset in known.not_done)
    skipped += max(0, after - max(known.highest_seen + 1, known.frontier, span.start))
    return Move(
        topic=topic,
        partition=partition,
        before=progress.map.frontier if progress else None,
        after=after,
        repeated=behind + beyond,
        repeated_beyond=beyond,
        skipped=skipped,
    )


@contextmanager
def _asking(what: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Turn refusals of the brokers or librdkafka into one line without secrets."""
    try:
        yield
    except KafkaException as failure:
        error = failure.args[0]
        reason = error.str() if hasattr(error, "str") else str(error)
        for secret in secrets:
            reason = reason.replace(secret, "***") if secret else reason
        raise ConfigError(f"{what}: {reason}") from None
    except TimeoutError:
        raise ConfigError(f"{what}: no response in time") from None


@contextmanager
def _answered() -> Iterator[None]:
    """FatalError if no broker answers."""
    try:
        yield
    except KafkaUnavailable as error:
        raise FatalError(str(error)) from None


def chosen(
    topic: str, partition: int | None, count: int, described: str
) -> list[TopicAndPartition]:
    """All partitions of a topic that has `count`, or this one; ConfigError if there is none."""
    if not count:
        raise ConfigError(f"topic {topic} does not exist at {described}")
    if partition is None:
        return [(topic, number) for number in range(count)]
    if not 0 <= partition < count:
        raise ConfigError(f"topic {topic} has no partition {partition}, only 0 to {count - 1}")
    return [(topic, partition)]


class GroupOffsets:
    """The committed offsets of one group; close it, or use it as a context manager."""

    def __init__(self, bootstrap: str, group: str, properties: Mapping[str, str]) -> None:
        # ConfigError for a property that this tool sets itself or that librdkafka does not accept.
        known = librdkafka.properties()
        for name in properties:
            if name in _OWN:
                raise ConfigError(f"the property {name} is set by {_OWN[name]}: omit it")
            if name not in known or not known[name].settable:
                raise ConfigError(f"librdkafka does not accept {name}: {librdkafka.cure_for(name)}")
        shared: dict[str, Any] = {"log_level": "0", **properties, "bootstrap.servers": bootstrap}
        self.bootstrap, self.group = bootstrap, group
        check_addresses({"bootstrap.servers": bootstrap})
        with _asking("the Kafka client refuses a property", properties.values()):
            self._admin = KafkaAdmin(ClientSettings(consumer={}, producer={}, admin=shared))
            # Read uncommitted: an open transaction would delay the answer.
            self._consumer = Consumer(
                {
                    **shared,
                    "group.id": group,
                    "enable.auto.commit": "false",
                    "isolation.level": "read_uncommitted",
                }
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()
        self._consumer.close()

    def partitions(self) -> list[TopicAndPartition]:
        """Every partition of the cluster; the first query, so it detects absent brokers.

        Raises FatalError if none answers, and ConfigError if the login is refused.
        """
        with _answered():
            return self._admin.partitions(ANSWER_S)

    def members(self) -> int | None:
        """How many members the group has; None if it does not exist."""
        with _answered():
            state, members = self._admin.group_state(self.group, ANSWER_S * 2)
        return None if state == "DEAD" else members or int(state != "EMPTY")

    def spans(self, partitions: Sequence[TopicAndPartition]) -> dict[TopicAndPartition, Span]:
        """Start and end of these partitions' logs."""
        with _answered():
            starts = self._admin.offsets(partitions, "start", timeout_s=ANSWER_S)
            ends = self._admin.offsets(partitions, "end", timeout_s=ANSWER_S)
        if gone := [place for place in partitions if place not in starts or place not in ends]:
            raise ConfigError(f"{gone[0][0]}[{gone[0][1]}] does not exist any more: run this again")
        return {place: Span(starts[place], ends[place]) for place in partitions}

    def offsets_at(
        self, partitions: Sequence[TopicAndPartition], timestamp_ms: int
    ) -> dict[TopicAndPartition, int]:
        """The first offset from that time on; -1 if no record is that late."""
        with _answered():
            return self._admin.offsets(partitions, timestamp_ms, timeout_s=ANSWER_S)

    def progress(self, partitions: Sequence[TopicAndPartition]) -> list[Progress]:
        """The group's commits of these partitions, without those that have no commit."""
        with _asking(f"the commits of group {self.group} cannot be read"):
            offsets = self.committed(partitions)
        stored = [
            stored_offset
            for stored_offset in offsets
            if stored_offset.offset is not None and not stored_offset.error
        ]
        spans = self.spans(
            [(stored_offset.topic, stored_offset.partition) for stored_offset in stored]
        )
        rows = []
        for stored_offset in stored:
            span, frontier, unreadable = (
                spans[stored_offset.topic, stored_offset.partition],
                stored_offset.offset or 0,
                None,
            )
            try:
                known = decode(frontier, stored_offset.metadata, log_end=span.end)
            except UnreadableMap as reason:
                unreadable = str(reason)
                known = OffsetMap("unreadable", frontier, frontier - 1, ())
            rows.append(
                Progress(stored_offset.topic, stored_offset.partition, known, span, unreadable)
            )
        return rows

    def committed(self, partitions: Sequence[TopicAndPartition]) -> list[CommittedOffset]:
        """The committed offsets, and the broker's errors of refused partitions; KafkaException.

        Repeated for a while: errors of a moving coordinator are temporary.
        """
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                return clib.committed(self._consumer, partitions, ANSWER_S)
            except KafkaException as error:
                if not passes(raised_code(error)) or time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_S)

    def store(self, moves: Sequence[Move]) -> None:
        """Commit the moves, each without a map; ConfigError if the broker refuses."""
        queue = clib.CommitQueue(self._consumer)
        with _asking(f"the offsets of group {self.group} cannot be set"):
            queue.send([(move.topic, move.partition, move.after, "") for move in moves])
            answers = queue.poll(ANSWER_S)
        queue.close()
        if not answers:
            raise ConfigError(f"no answer to the commit within {ANSWER_S:.0f} s: look with `show`")
        if answers[0].error:
            raise ConfigError(
                f"the broker refused the commit (code {answers[0].error}): "
                f"did a member of group {self.group} start meanwhile?"
            )
