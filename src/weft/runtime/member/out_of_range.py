"""Positions outside the log, after retention, DeleteRecords or a truncation.

What was fetched is still ours: it is handled and committed. Where only the log's start has moved,
the epoch continues there. If the log ends before our position, its offsets mean other records now:
when everything is handled, the partition restarts, and `on_offset_lost` decides where.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from weft.core.epochs import Found
from weft.core.partition import Partition
from weft.kafka.ports import KafkaUnavailable
from weft.runtime.logs import event
from weft.runtime.member.member_config import MemberConfig
from weft.runtime.member.seat import Reread, Seat
from weft.types import TopicPartition

_log = logging.getLogger("weft")

FIND_S = 5.0
AGAIN_S = 0.5


class OutOfRange:
    """The partitions that are not fetched until it is known where. Of the polling thread."""

    def __init__(self, seat: Seat, config: MemberConfig, reread: Reread) -> None:
        """`reread` restarts partitions."""
        self._seat = seat
        self._reread = reread
        self._config = config
        #: not to be looked at before this time
        self._later: dict[TopicPartition, tuple[Partition, float]] = {}
        #: cut logs -> the epoch that ends, and until when it may take
        self._ending: dict[TopicPartition, tuple[Partition, float]] = {}

    def held(self) -> set[TopicPartition]:
        """Those that are known to be out of range."""
        return {*self._later, *self._ending}

    def heard(self, where: Sequence[TopicPartition]) -> None:
        """The consumer has stopped fetching these."""
        held = self._seat.partitions
        self._look({one: held[one] for one in where if one in held})

    def tick(self, now: float) -> None:
        """Now and then."""
        if self._later:
            due = {one: p for one, (p, at) in self._later.items() if now >= at}
            for one in due:
                del self._later[one]
            self._look(due)
        for one, (partition, deadline) in list(self._ending.items()):
            if now >= deadline or _all_committed(partition):
                del self._ending[one]
                if self._ours(one, partition):
                    self._reread([one])

    def _look(self, wanted: Mapping[TopicPartition, Partition]) -> None:
        if wanted:
            self._seat.background(partial(self._find, wanted))

    def _find(self, wanted: Mapping[TopicPartition, Partition]) -> None:
        """On the background thread."""
        try:
            found = self._seat.consumer.find(list(wanted), FIND_S)
        except KafkaUnavailable:
            found = {}
        self._seat.on_poll_thread(partial(self._go_on, wanted, found))

    def _go_on(
        self, wanted: Mapping[TopicPartition, Partition], found: Mapping[TopicPartition, Found]
    ) -> None:
        now = self._seat.now()
        for one, partition in wanted.items():
            log = found.get(one)
            if not self._ours(one, partition):
                continue
            if log is None:
                self._later[one] = partition, now + AGAIN_S
            elif partition.position > log.log_end:
                self._cut(one, partition, log, now)
            else:
                self._move(one, partition, log)

    def _move(self, one: TopicPartition, partition: Partition, log: Found) -> None:
        """Continue at the log's start, or at the current position if the error was temporary."""
        seat = self._seat
        if log.log_start > partition.position:
            event(
                _log,
                "warning",
                "records were deleted before they were read",
                topic=one[0],
                partition=one[1],
                first=partition.position,
                last=log.log_start - 1,
            )
            seat.door.call(lambda engine, at: engine.reached(at, [(partition, log.log_start)]))
        seat.consumer.begin(one, partition.position)
        if partition.intake_paused:
            seat.consumer.pause([one])

    def _cut(self, one: TopicPartition, partition: Partition, log: Found, now: float) -> None:
        event(
            _log,
            "warning",
            "the log was truncated: records already read are finished first",
            topic=one[0],
            partition=one[1],
            position=partition.position,
            log_end=log.log_end,
        )
        self._ending[one] = partition, now + self._config.drain_timeout_s

    def _ours(self, one: TopicPartition, partition: Partition) -> bool:
        return self._seat.partitions.get(one) is partition


def _all_committed(partition: Partition) -> bool:
    """All that can be finished now is, and is committed; what is parked stays behind."""
    busy = partition.in_flight or partition.sending or partition.retrying or partition.claiming
    return not busy and partition.healthy <= 0 and partition.settled
