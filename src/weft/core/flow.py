"""When to stop fetching a partition and when to go on: two budgets, with hysteresis.

Healthy records and the records of failing lanes are charged apart, so that lanes that fail for
ever fill their own budget and never stop the intake of the others. Every partition has an equal
share; it may borrow while the member as a whole is less than half full.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.partition import Partition
from weft.core.spec import Limits

RESUME_SHARE = 0.5  # resuming fetches again what pausing threw away: not before half is free
BORROW_SHARE = 0.5
ACTIVE_BYTES_SHARE = 0.5  # the rest: failing lanes 1/4, librdkafka's own queue 1/4
BLOCKED_BYTES_SHARE = 0.25
BLOCKED_RESUME_SHARE = 0.75


class Flow:
    """Decides which partitions are fetched."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.paused: set[Partition] = set()

    def _fill(self, partition: Partition, shares: int) -> float:
        """How full the partition's share is; 1.0 is full, whichever of four limits is nearest."""
        limits = self.limits
        healthy = partition.buffered - partition.blocked_records
        healthy_bytes = partition.bytes - partition.blocked_bytes
        return shares * max(
            healthy / limits.buffer_records,
            healthy_bytes / (limits.buffer_bytes * ACTIVE_BYTES_SHARE),
        )

    def _blocked_fill(self, partition: Partition, shares: int) -> float:
        limits = self.limits
        return shares * max(
            partition.blocked_records / limits.buffer_records,
            partition.blocked_bytes / (limits.buffer_bytes * BLOCKED_BYTES_SHARE),
        )

    def _total(self, partitions: Iterable[Partition]) -> tuple[float, float]:
        """How full the whole member is with healthy and with failing records."""
        fills = [(self._fill(p, 1), self._blocked_fill(p, 1)) for p in partitions]
        return sum(fill for fill, _ in fills), sum(blocked for _, blocked in fills)

    def to_pause(self, touched: Iterable[Partition], every: list[Partition]) -> list[Partition]:
        """Which of the partitions that just grew must not be fetched for now."""
        shares, totals = len(every), None
        pause = []
        for partition in touched:
            if partition.intake_paused:
                continue
            fill = self._fill(partition, shares)
            blocked = self._blocked_fill(partition, shares)
            if fill < 1.0 and blocked < 1.0:
                continue
            totals = totals or self._total(every)
            if _over(fill, totals[0]) or _over(blocked, totals[1]):
                pause.append(partition)
        for partition in pause:
            partition.intake_paused = True
        self.paused.update(pause)
        return pause

    def to_resume(self, every: list[Partition]) -> list[Partition]:
        """Which paused partitions have room again."""
        resume = [
            partition
            for partition in self.paused
            if self._fill(partition, len(every)) < RESUME_SHARE
            and self._blocked_fill(partition, len(every)) < BLOCKED_RESUME_SHARE
        ]
        for partition in resume:
            partition.intake_paused = False
        self.paused.difference_update(resume)
        # The set has no order of its own, and effects must be the same in every run.
        return sorted(resume, key=lambda p: (p.topic, p.number))

    def forget(self, partition: Partition) -> None:
        """The epoch ended."""
        self.paused.discard(partition)


def _over(share: float, total: float) -> bool:
    return share >= 1.0 and total >= BORROW_SHARE
