"""A range of a topic as a ConsumerPort: it joins no group, and its commits stay in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from confluent_kafka import TopicPartition

from perkey.errors import ConfigError
from perkey.kafka import ports
from perkey.kafka.admin import KafkaAdmin
from perkey.kafka.clientlog import with_client_log
from perkey.kafka.connect import RealConnection
from perkey.kafka.consumer import KafkaConsumer
from perkey.kafka.ports import CommittedOffset, KafkaUnavailable
from perkey.kafka.settings import ClientSettings

#: time limit for one request for offsets
ASKED_S = 10.0
#: partition -> first offset, and the offset behind the last one
Ranges = Mapping[ports.TopicPartition, tuple[int, int]]


def ranges_of(admin: KafkaAdmin, topic: str, numbers: int, from_ms: int, to_ms: int) -> Ranges:
    """The offsets of these times in each partition, without empty ones.

    Raises KafkaUnavailable if the brokers do not answer for every partition.
    """
    where = [(topic, number) for number in range(numbers)]
    lasts = admin.offsets(where, "end", committed=True, timeout_s=ASKED_S)
    starts, ends = (admin.offsets(where, ms, timeout_s=ASKED_S) for ms in (from_ms, to_ms))
    ranges = {}
    for place in where:
        if not all(place in offsets for offsets in (lasts, starts, ends)):
            raise KafkaUnavailable(f"{topic}[{place[1]}] has no leader that answers")
        last = lasts[place]
        # -1: no record is as late as that
        start, end = (
            last if bounds[place] == -1 else min(bounds[place], last) for bounds in (starts, ends)
        )
        if start < end:
            ranges[place] = (start, end)
    return ranges


class RangeConsumer(KafkaConsumer):
    """Reads these offsets only; all its partitions are assigned at the first poll."""

    def __init__(self, config: Mapping[str, Any], ranges: Ranges, key: bytes | None) -> None:
        super().__init__(config)
        self._ranges, self._key = ranges, key
        self._held_here = {where: (start, "") for where, (start, _) in ranges.items()}
        self._tokens = count(1)

    def subscribe(self, topics: Sequence[str], listener: ports.RebalanceListener) -> None:
        """Only remember the listener: there is no group."""
        self._listener = listener

    def poll(self, timeout_s: float, records_max: int = ports.POLL_RECORDS_MAX) -> ports.Polled:
        """Fetch, up to the end of each range."""
        if self._listener is not None and not self._assigned and not self._leaving:
            self._on_assign(self._consumer, [TopicPartition(*place) for place in self._ranges])
        polled = super().poll(timeout_s, records_max)
        batches, polled.batches = polled.batches, []
        for batch in batches:
            where = batch.topic, batch.partition
            end, last = self._ranges[where][1], batch.records[-1].offset
            kept = [
                (record, size)
                for record, size in zip(batch.records, batch.sizes, strict=True)
                if record.offset < end and self._key in (None, record.key)
            ]
            if kept:
                records, sizes = zip(*kept, strict=True)
                polled.batches.append(batch._replace(records=list(records), sizes=list(sizes)))
            polled.ends.append((*where, min(last + 1, end)))
            if last + 1 >= end:
                self._consumer.pause([TopicPartition(*where)])
        return polled

    def _held(
        self, partitions: Sequence[ports.TopicPartition], timeout_s: float
    ) -> list[CommittedOffset]:
        return [CommittedOffset(*place, *self._held_here[place], 0) for place in partitions]

    def commit(self, offsets: Sequence[ports.ToCommit]) -> int:
        """Keep it here."""
        token = next(self._tokens)
        for stored in offsets:
            self._held_here[stored.topic, stored.partition] = (stored.offset, stored.metadata)
            answer = ports.CommitAnswer(token, stored.topic, stored.partition, "stored", "")
            self._early.append(answer)
        self.wake()
        return token

    def commit_and_wait(
        self, offsets: Sequence[ports.ToCommit], timeout_s: float
    ) -> list[ports.CommitAnswer]:
        """The same, with its answers."""
        token = self.commit(offsets)
        own = [answer for answer in self._early if answer.token == token]
        self._early = [answer for answer in self._early if answer.token != token]
        return own

    def log_ends(self) -> dict[ports.TopicPartition, int]:
        """The ends of the ranges."""
        return {place: end for place, (_, end) in self._ranges.items() if place in self._assigned}

    def leave(self, timeout_s: float, left_s: ports.LeftS = ports.no_hurry) -> None:
        """Give everything up and close."""
        self._leaving = True
        if self._assigned:
            self._give_up([TopicPartition(*place) for place in self._assigned], lost=False)
            self._consumer.unassign()
        self._joining = False
        super().leave(timeout_s, left_s)


class RangeConnection(RealConnection):
    """Clients of a replay: ranges of one topic."""

    def __init__(self, settings: ClientSettings, topic: str, key: bytes | None) -> None:
        super().__init__(settings)
        self._topic, self._key = topic, key
        self.ranges: Ranges = {}

    def look(self, partitions: int, from_ms: int, to_ms: int) -> None:
        """Find the offsets of a time range; ConfigError if it holds no record."""
        with KafkaAdmin(self.settings) as admin:
            self.ranges = ranges_of(admin, self._topic, partitions, from_ms, to_ms)
        if not self.ranges:
            raise ConfigError(f"{self._topic} has no record between --from and --to")

    def consumer(self) -> RangeConsumer:
        """A new consumer of the ranges."""
        return RangeConsumer(with_client_log(self.settings.consumer), self.ranges, self._key)
