"""Whose turn it is: the slots of one handler, and a fair choice among its partitions.

The partitions that have a ready record stand in a rotation. The next free slot goes to the first
of them, which then goes to the back: a partition with one record waits for one round of the
others, however deep their backlogs are. The cost of a choice does not depend on what waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from weft.core.lanes import Lanes
from weft.core.reach import Reach
from weft.core.spec import ALL_STARTS_PER_S, AT_LEAST_ONCE, EXACTLY_ONCE, HandlerSpec
from weft.core.work import Work


class InTurn(Protocol):
    """A partition, as far as the choice among them has to know it."""

    #: True while it stands in the rotation; the handler's alone to change
    listed: bool
    startable: bool
    lanes: Lanes
    reach: Reach

    def may_start(
        self,
        work: Work,
        looked: dict[Any, None],
        taken: Iterable[Any] = (),
        *,
        count: bool = True,
    ) -> bool:
        """Whether the map has room for the record."""

    def reopen(self) -> None:
        """Look again at the records that wait for room."""


RATE_BURST_S = 0.1  # a rate limit lets at most this much of a second start at once


class Handler:
    """The slots, the rotation and the counts of one handler."""

    __slots__ = (
        "batched",
        "dead_lettered",
        "done",
        "exact",
        "failures",
        "good_calls",
        "index",
        "limited",
        "name",
        "parked",
        "plain",
        "retries",
        "rotation",
        "short_of_room",
        "skipped",
        "slots",
        "spec",
        "superseded",
        "timed",
        "tokens",
        "tokens_at",
    )

    def __init__(self, index: int, spec: HandlerSpec) -> None:
        self.index = index
        self.spec = spec
        self.name = spec.name
        #: a record is done as soon as its call returns and has nothing to send
        self.plain = spec.delivery == AT_LEAST_ONCE and not spec.commit_each
        #: outputs and offsets go into transactions
        self.exact = spec.delivery == EXACTLY_ONCE
        #: its calls take batches
        self.batched = spec.batch is not None
        #: starts are limited by the second
        self.limited = spec.rate_limit_per_s != ALL_STARTS_PER_S
        #: its attempts have a time-out
        self.timed = spec.timeout_s is not None
        self.slots = Slots(spec.concurrency, spec.ahead, spec.timeout_s)
        #: partitions with something ready, each once (`InTurn.listed`)
        self.rotation: deque[InTurn] = deque()
        #: partitions with records past the reach of their map
        self.short_of_room: dict[InTurn, None] = {}
        self.tokens = 1.0
        self.tokens_at: float | None = None
        #: batch calls that handled something
        self.good_calls = 0
        # counts since the start
        self.done = 0
        self.failures = 0
        self.retries = 0
        self.dead_lettered = 0
        self.skipped = 0
        self.parked = 0
        self.superseded = 0

    def count_done(self, records: int = 1) -> None:
        """So many more are done."""
        self.done += records

    def enqueue(self, partition: InTurn) -> None:
        """Put a partition with something ready into the rotation."""
        partition.listed = True
        self.rotation.append(partition)

    def enlist(self, partition: InTurn) -> None:
        """The same, where it may stand there already or may not start."""
        if partition.lanes.ready and partition.startable and not partition.listed:
            self.enqueue(partition)

    def take(self, now: float, most: int) -> list[Work]:
        """Up to `most` records that may start now, in turns, fairly among the partitions.

        Those of batches take no room of the map yet: they join one, and may be put back.
        """
        if self.limited:
            most = self._affordable(now, most)
        works: list[Work] = []
        looked: dict[InTurn, None] = {}
        rotation = self.rotation
        while rotation and len(works) < most:
            # An equal share of the free slots each, so that no partition waits for another's
            # backlog; what a short one leaves goes round again.
            left, standing = most - len(works), len(rotation)
            if left < 2 * standing:
                self._take_one_each(min(left, standing), works, looked)
            else:
                self._take_share(left // standing, works, looked)
        if self.limited:
            self.tokens -= len(works)
        return works

    def _take_one_each(self, most: int, works: list[Work], looked: dict[InTurn, None]) -> None:
        """One record of each of the first `most` partitions."""
        rotation = self.rotation
        for _ in range(most):
            partition = rotation.popleft()
            lanes = partition.lanes
            ready = lanes.ready
            if not ready or not partition.startable:
                partition.listed = False
                continue
            work = lanes.take_one()
            if work.record[2] < partition.reach.limit or partition.may_start(
                work, looked, works, count=not self.batched
            ):
                works.append(work)
            else:
                self.put_far(work)
            if ready:
                rotation.append(partition)
            else:
                partition.listed = False

    def _take_share(self, share: int, works: list[Work], looked: dict[InTurn, None]) -> None:
        """Up to `share` records of the next partition."""
        partition = self.rotation.popleft()
        if not partition.startable:
            partition.listed = False
            return
        lanes, limit = partition.lanes, partition.reach.limit
        for work in lanes.take(share):
            if work.record[2] >= limit:
                if not partition.may_start(work, looked, works, count=not self.batched):
                    self.put_far(work)
                    continue
                limit = partition.reach.limit
            works.append(work)
        if lanes.ready:
            self.rotation.append(partition)
        else:
            partition.listed = False

    def put_far(self, work: Work) -> None:
        """It waits until the map has room for its offset."""
        work.partition.lanes.put_far(work)
        self.short_of_room[work.partition] = None

    def has_room(self, partition: InTurn) -> None:
        """No record of it waits for room in the map."""
        self.short_of_room.pop(partition, None)

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
        if not self.limited or self.tokens_at is None:
            return None
        if not self.rotation or not self.slots.free or self.tokens >= 1:
            return None
        return self.tokens_at + (1.0 - self.tokens) / self.spec.rate_limit_per_s
