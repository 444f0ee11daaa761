"""Whose turn it is: the slots of one handler, and a fair choice among its partitions.

The partitions that have a ready record stand in a rotation. The next free slot goes to the first
of them, which then goes to the back: a partition with one record waits for one round of the
others, however deep their backlogs are. The cost of a choice does not depend on what waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappush

from weft.core import states
from weft.core.partition import Partition
from weft.core.spec import ALL_STARTS_PER_S, AT_MOST_ONCE, HandlerSpec
from weft.core.work import Work

RATE_BURST_S = 0.1  # a rate limit lets at most this much of a second start at once


class TimedBatch:
    """One running batch call, and how many of its records have not ended."""

    __slots__ = ("first", "left")

    def __init__(self, first: Work, left: int) -> None:
        self.first = first
        self.left = left


class Handler:
    """The slots, the rotation and the counts of one handler."""

    __slots__ = (
        "calls",
        "crowded",
        "dead_lettered",
        "done",
        "failures",
        "free",
        "index",
        "name",
        "overdue",
        "parked",
        "retries",
        "rotation",
        "running",
        "skipped",
        "spec",
        "superseded",
        "tokens",
        "tokens_at",
    )

    def __init__(self, index: int, spec: HandlerSpec) -> None:
        self.index = index
        self.spec = spec
        self.name = spec.name
        #: calls that may still start
        self.free = spec.concurrency + spec.ahead
        #: partitions with something ready, each once (`Partition.listed`)
        self.rotation: deque[Partition] = deque()
        #: partitions with records past the reach of their map
        self.crowded: dict[Partition, None] = {}
        #: running attempts -> when their time is over, in that order; only with `timeout_s`.
        #: A batch stands here once, as its first record
        self.running: dict[Work, float] = {}
        #: records of a timed batch that have not ended -> the batch they run in
        self.calls: dict[Work, TimedBatch] = {}
        #: running past their `timeout_s` and not to be cancelled -> since when
        self.overdue: dict[Work, float] = {}
        self.tokens = 1.0
        self.tokens_at: float | None = None
        # counts since the start
        self.done = 0
        self.failures = 0
        self.retries = 0
        self.dead_lettered = 0
        self.skipped = 0
        self.parked = 0
        self.superseded = 0

    def enqueue(self, partition: Partition) -> None:
        """Put a partition with something ready into the rotation."""
        partition.listed = True
        self.rotation.append(partition)

    def enlist(self, partition: Partition) -> None:
        """The same, where it may stand there already or may not start."""
        if partition.ready and partition.startable and not partition.listed:
            self.enqueue(partition)

    def take(self, now: float) -> list[Work]:
        """Records to start now, one for each free slot, fairly among the partitions."""
        allowed = self.free
        if self.spec.rate_limit_per_s != ALL_STARTS_PER_S:
            allowed = self._affordable(now, allowed)
        marks = self.spec.delivery == AT_MOST_ONCE
        works = self._pick(allowed, states.MARKING if marks else states.RUNNING)
        self.free -= len(works)
        if self.spec.rate_limit_per_s != ALL_STARTS_PER_S:
            self.tokens -= len(works)
        if not marks:
            self.time(works, now)
        return works

    def time(self, works: Sequence[Work], now: float) -> None:
        """These attempts begin, each in a call of its own."""
        if self.spec.timeout_s is not None:
            due = now + self.spec.timeout_s
            self.running.update(dict.fromkeys(works, due))

    def time_batch(self, works: Sequence[Work], now: float) -> None:
        """These begin in one call."""
        if self.spec.timeout_s is not None:
            self.running[works[0]] = now + self.spec.timeout_s
            self.calls.update(dict.fromkeys(works, TimedBatch(works[0], len(works))))

    def gather(self, now: float, limit: int) -> list[Work]:
        """Records that may join a batch now; they take no slot yet."""
        if self.spec.rate_limit_per_s != ALL_STARTS_PER_S:
            limit = self._affordable(now, limit)
        works = self._pick(limit, states.QUEUED)
        if self.spec.rate_limit_per_s != ALL_STARTS_PER_S:
            self.tokens -= len(works)
        return works

    def ended(self, work: Work) -> None:
        """The attempt is over: its time-out is none any more."""
        call = self.calls.pop(work, None)
        if call is not None:
            call.left -= 1
            if call.left:
                return
            work = call.first
        self.running.pop(work, None)
        self.overdue.pop(work, None)

    def _pick(self, allowed: int, state: int) -> list[Work]:
        """Take up to `allowed` ready records, in turns, and put them into `state`."""
        works: list[Work] = []
        measured: set[Partition] = set()
        while len(works) < allowed and self.rotation:
            # An equal share of the free slots each, so that no partition waits for another's
            # backlog; what a short one leaves goes round again.
            share = (allowed - len(works)) // len(self.rotation)
            if share > 1:
                self._take_share(share, state, works, measured)
            else:
                self._take_one_each(allowed, state, works, measured)
        return works

    def _take_one_each(
        self, allowed: int, state: int, works: list[Work], measured: set[Partition]
    ) -> None:
        """One record of each partition, until there are `allowed` of them."""
        rotation, running = self.rotation, state == states.RUNNING
        popleft, append = rotation.popleft, rotation.append
        for _ in range(min(allowed - len(works), len(rotation))):
            partition = popleft()
            ready = partition.ready
            if not ready or not partition.startable:
                partition.listed = False
                continue
            work = ready.popleft()
            if work.record[2] < partition.start_limit or may_start(work, measured):
                work.state = state
                works.append(work)
                partition.in_flight += running
            else:
                self.put_far(work)
            if ready:
                append(partition)
            else:
                partition.listed = False

    def _take_share(
        self, share: int, state: int, works: list[Work], measured: set[Partition]
    ) -> None:
        """Up to `share` records of the next partition."""
        partition = self.rotation.popleft()
        ready, had = partition.ready, len(works)
        if not partition.startable:
            partition.listed = False
            return
        limit, popleft = partition.start_limit, ready.popleft
        for _ in range(min(share, len(ready))):
            work = popleft()
            if work.record[2] >= limit:
                if not may_start(work, measured):
                    self.put_far(work)
                    continue
                limit = partition.start_limit
            work.state = state
            works.append(work)
        if state == states.RUNNING:
            partition.in_flight += len(works) - had
        if ready:
            self.rotation.append(partition)
        else:
            partition.listed = False

    def put_far(self, work: Work) -> None:
        """It waits until the map has room for its offset."""
        heappush(work.partition.far, (work.record[2], work))
        self.crowded[work.partition] = None

    def _affordable(self, now: float, allowed: int) -> int:
        """Refill the bucket; how many of `allowed` starts it pays for."""
        rate = self.spec.rate_limit_per_s
        if self.tokens_at is not None:
            self.tokens += (now - self.tokens_at) * rate
        self.tokens_at = now
        self.tokens = min(self.tokens, max(1.0, rate * RATE_BURST_S))
        return min(allowed, int(self.tokens))

    def tokens_due(self) -> float | None:
        """When the bucket will pay for the next start, if a record waits for it."""
        if self.spec.rate_limit_per_s == ALL_STARTS_PER_S or self.tokens_at is None:
            return None
        if not self.rotation or not self.free or self.tokens >= 1:
            return None
        return self.tokens_at + (1.0 - self.tokens) / self.spec.rate_limit_per_s


def may_start(work: Work, measured: set[Partition]) -> bool:
    """Whether the map would still fit if this record were done; measures when it must.

    Once a turn is enough: nothing is done within one.
    """
    # Imported here: the window measures partitions, partitions belong to handlers.
    from weft.core.window import measure

    partition = work.partition
    if partition not in measured:
        measured.add(partition)
        measure(partition)
    return work.record[2] < partition.start_limit
