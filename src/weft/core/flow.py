"""When to pause and resume the fetch of a partition: two budgets, with hysteresis.

Healthy records and the records of failing lanes are charged separately, so that lanes that always
fail fill their own budget and never stop the intake of the others. One half of each budget is
divided equally among the partitions; the other half is for any that needs it. So a busy partition
may take three quarters and more, and the budget is never exceeded by more than a poll.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from weft.core.events import Limits
    from weft.core.partition import Partition


KEPT_SHARE = 0.5  # of a budget: divided equally, reserved for each partition
RESUME_SHARE = 0.5  # a resume fetches again what the pause discarded: not before half is free
BLOCKED_RESUME_SHARE = 0.75
ACTIVE_BYTES_SHARE = 0.5  # the rest: failing lanes 1/4, librdkafka's own queue 1/4
BLOCKED_BYTES_SHARE = 0.25
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class _Resume:
    """A paused partition is fetched again when it holds less than this of both budgets."""

    healthy: float
    blocked: float


class Room(NamedTuple):
    """How much may still arrive before a partition has to be paused."""

    #: of the budget
    share: float
    #: records of any partition, of the present average size
    records: int


class Flow:
    """Decides which partitions are fetched."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.paused: dict[Partition, _Resume] = {}

    def _healthy(self, partition: Partition) -> float:
        """The part of the member's budget that it holds, of records or of bytes."""
        limits = self.limits
        return max(
            (partition.buffered - partition.lanes.blocked_records) / limits.buffer_records,
            (partition.bytes + partition.outputs_bytes - partition.lanes.blocked_bytes)
            / (limits.buffer_bytes * ACTIVE_BYTES_SHARE),
        )

    def _blocked(self, partition: Partition) -> float:
        """The same of the budget of failing lanes."""
        limits = self.limits
        return max(
            partition.lanes.blocked_records / limits.buffer_records,
            partition.lanes.blocked_bytes / (limits.buffer_bytes * BLOCKED_BYTES_SHARE),
        )

    def _roomy(self, every: Collection[Partition], part: int = 2) -> bool:
        """A quick check: less than half (or 1 / part) of each budget is taken, so none is full."""
        limits = self.limits
        return (
            part * sum([len(p.offsets.incomplete) for p in every]) < limits.buffer_records
            and part * sum([p.bytes + p.outputs_bytes for p in every])
            < limits.buffer_bytes * BLOCKED_BYTES_SHARE
        )

    def room(self, every: Collection[Partition]) -> Room:
        """How much may arrive from any partition without a pause."""
        limits = self.limits
        if self._roomy(every, 4):  # half may be reserved, a quarter is taken
            return Room(0.25, limits.buffer_records // 4 - 1)
        kept = KEPT_SHARE / len(every)
        share = 1.0 - sum([max(self._healthy(p), kept) for p in every])
        # at_most_once: records that are marked as started are not incomplete, and in memory.
        records = sum([len(p.offsets.incomplete) + len(p.commit.marked) for p in every])
        each = sum([p.bytes for p in every]) / max(1, records)
        most = min(limits.buffer_records, limits.buffer_bytes * ACTIVE_BYTES_SHARE / max(1.0, each))
        return Room(share, max(0, ceil(most * share - ROUNDING) - 1))

    def to_pause(
        self, touched: Iterable[Partition], every: Collection[Partition]
    ) -> list[Partition]:
        """Which of the partitions that just grew must not be fetched for now."""
        if self._roomy(every):
            return []
        kept = KEPT_SHARE / len(every)
        alone = 1.0 - KEPT_SHARE + kept  # the most that one partition may have
        # The reserved part of a partition counts as taken, whether it is used or not.
        healthy_full = sum(max(self._healthy(p), kept) for p in every) >= 1.0
        blocked_full = sum(max(self._blocked(p), kept) for p in every) >= 1.0
        pause = []
        for partition in touched:
            healthy, blocked = self._healthy(partition), self._blocked(partition)
            too_many = healthy_full and healthy >= kept
            too_bad = blocked_full and blocked >= kept
            if (too_many or too_bad) and not partition.intake_paused:
                partition.intake_paused = True
                self.paused[partition] = _Resume(
                    min(healthy, 1.0) * RESUME_SHARE if too_many else alone,
                    min(blocked, 1.0) * BLOCKED_RESUME_SHARE if too_bad else alone,
                )
                pause.append(partition)
        return pause

    def to_resume(self) -> list[Partition]:
        """Which paused partitions have room again."""
        resume = [
            partition
            for partition, below in self.paused.items()
            if self._healthy(partition) < below.healthy and self._blocked(partition) < below.blocked
        ]
        for partition in resume:
            partition.intake_paused = False
            del self.paused[partition]
        return resume

    def forget(self, partition: Partition) -> None:
        """The epoch ended."""
        self.paused.pop(partition, None)
