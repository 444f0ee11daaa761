"""Scheduling: which records start, which partitions are fetched, and what is paused.

`Handler`, `Slots`. Partitions with a ready record are in a rotation. The next free slot goes to the
first of them, which then goes to the back: a partition with one record waits for one round of the
others, however deep their backlogs are. The cost of a choice does not depend on the number of
waiting records. A slot is room for one call. Only `Slots.take` and `Slots.give` change who has it.

`Flow` pauses and resumes the fetch of a partition: two budgets of memory, with hysteresis. Healthy
records and the records of failing lanes are charged separately, so that lanes that always fail fill
their own budget and never stop the intake of the others. One half of each budget is divided equally
among the partitions; the other half is for any that needs it. So a busy partition may take three
quarters and more, and the budget is never exceeded by more than a poll.

`Desired`: what the app has paused, and the pauses, settings and held lanes by command that are in
force. A new epoch gets all of it in one call (`Desired.open`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from perkey.core.budgets import Bucket
from perkey.core.events import ALL_STARTS_PER_S, AS_DECLARED, AT_MOST_ONCE, Steering
from perkey.core.gates import COMMAND, PAUSED, Flood, Gate
from perkey.core.states import ROOM
from perkey.policies import Park
from perkey.types import Record

if TYPE_CHECKING:
    from perkey.core.budgets import SharedBudget
    from perkey.core.events import HandlerSpec, Limits, Tuning
    from perkey.core.gates import Outage
    from perkey.core.partition import Partition
    from perkey.core.work import HeldBy, Work


class Handler:
    """The slots, the rotation and the counts of one handler."""

    __slots__ = (
        "ahead", "alone", "batched", "bucket", "budget", "dead_lettered", "done",
        "exact", "failures", "flood", "gate", "good_calls", "index", "limited", "name", "outages",
        "overdue", "park", "parked", "plain", "relieve_at", "remembers", "retries", "rotation",
        "short_of_room", "skipped", "slots", "spec", "standing", "superseded", "timeout_s",
        "unbegun",
    )  # fmt: skip

    def __init__(self, index: int, spec: HandlerSpec) -> None:
        self.index = index
        self.spec = spec
        self.name = spec.name
        #: as in its spec; here for the hot path
        self.plain = spec.plain
        #: whether outputs and offsets go into transactions
        self.exact = spec.exact
        #: whether attempts and parked records survive the epoch
        self.remembers = spec.retry.remember and spec.delivery != AT_MOST_ONCE
        #: whether its calls take batches
        self.batched = spec.batch is not None
        #: rate limit of starts per second
        self.bucket = Bucket(spec.rate_limit_per_s)
        self.limited = self.bucket.per_s != ALL_STARTS_PER_S
        #: why nothing of it may start
        self.gate = Gate()
        #: the budget that it shares with others
        self.budget: SharedBudget | None = None
        #: whether its attempts have a time-out, or had one
        #: the time-out of one attempt, as declared or set by a command; the executor's to apply
        self.timeout_s = spec.timeout_s
        #: calls past it that run on; kept by the executor
        self.overdue: Collection[object] = ()
        #: requested calls that have not started -> the attempt; by account/begun.py
        self.unbegun: Mapping[Work, Record] = {}
        self.slots = Slots(spec.concurrency, spec.ahead)
        #: calls granted beyond the concurrency, now
        self.ahead = spec.ahead
        #: a command has disabled that
        self.alone = False
        #: partitions with something ready, each once (`Partition.listed`)
        self.rotation: deque[Partition] = deque()
        #: partitions with records past the reach of their map
        self.short_of_room: dict[Partition, None] = {}
        #: how many of its last records used up their attempts; only with a brake
        self.flood = None if spec.brake is None else Flood(spec.brake)
        #: outages, by the value of `Hold.by`, or of the whole handler
        self.outages: dict[Hashable, Outage] = {}
        policy = spec.on_exhausted
        #: the `Park(dead_letter=)` of its parked records; for a function the last that it returned
        self.park = policy if isinstance(policy, Park) and policy.dead_letter else None
        #: the time of the next look whether one of them is to be given up
        self.relieve_at = 0.0
        #: batch calls that handled something
        self.good_calls = 0
        # counts since the start
        self.done = self.failures = self.retries = self.superseded = 0
        self.dead_lettered = self.skipped = self.parked = 0
        #: parked here, or before they came here, and not released since
        self.standing = 0

    def tune(self, tuning: Tuning) -> None:
        """Apply a command's settings; running calls continue, also if they are too many now.

        A changed time-out applies to them, too; a new one does not.
        """
        spec, slots = self.spec, self.slots
        self.bucket.per_s = tuning.rate_limit_per_s or spec.rate_limit_per_s
        self.limited = self.bucket.per_s != ALL_STARTS_PER_S
        # Calls granted ahead would run in a worker without other work, and their time would count.
        self.alone = tuning.concurrency is not None or tuning.timeout_s is not None
        slots.resize(tuning.concurrency or spec.concurrency, 0 if self.alone else self.ahead)
        self.timeout_s = tuning.timeout_s or spec.timeout_s

    def grant_ahead(self, count: int) -> None:
        """Grant this many calls beyond the concurrency from now on, unless a command forbids it."""
        self.ahead = count
        if not self.alone:
            self.slots.resize(self.spec.concurrency, count)

    @property
    def in_flight(self) -> int:
        """Calls that were requested and have not ended; any thread."""
        return self.slots.taken

    @property
    def calls_max(self) -> int:
        """Calls without which nothing more starts: its concurrency, or more that still run."""
        return max(self.slots.concurrency, self.slots.taken)

    @property
    def concurrency(self) -> int:
        """Calls at a time, as declared or set by a command."""
        return self.slots.concurrency

    # -- the rotation ----------------------------------------------------------------------------

    def enqueue(self, partition: Partition) -> None:
        """Put a partition with something ready into the rotation."""
        partition.listed = True
        self.rotation.append(partition)

    def enlist(self, partition: Partition) -> None:
        """The same for one that may already be in it, or may not start."""
        if partition.lanes.ready and not partition.gate.reasons and not partition.listed:
            self.enqueue(partition)

    def take(self, now: float, most: int) -> list[Work]:
        """Up to `most` records that may start now, in turns, fairly among the partitions.

        Records for batches take no room of the map yet: they join a batch, and may be put back.
        """
        if self.limited:
            most = self.affordable(now, most)
        works: list[Work] = []
        looked: dict[Partition, None] = {}
        rotation = self.rotation
        while rotation and len(works) < most:
            # Each gets an equal share of the free slots, so that no partition waits for another's
            # backlog; what short ones leave is divided again.
            left, standing = most - len(works), len(rotation)
            if left < 2 * standing:
                self._take_one_each(min(left, standing), works, looked)
                continue
            for _ in range(standing):
                self._take_share(left // standing, works, looked)
        if self.limited:
            self.bucket.pay(len(works))
        return works

    def _take_one_each(self, most: int, works: list[Work], looked: dict[Partition, None]) -> None:
        """One record of each of the first `most` partitions."""
        rotation = self.rotation
        for _ in range(most):
            partition = rotation.popleft()
            lanes = partition.lanes
            ready = lanes.ready
            if not ready or partition.gate.reasons:
                partition.listed = False
                continue
            work = ready.popleft()
            if work.offset < partition.reach.limit or partition.may_start(
                work, looked, works, spend=not self.batched
            ):
                works.append(work)
            else:
                self.put_far(work)
            if ready:
                rotation.append(partition)
            else:
                partition.listed = False

    def _take_share(self, share: int, works: list[Work], looked: dict[Partition, None]) -> None:
        """Up to `share` records of the next partition."""
        partition = self.rotation.popleft()
        if partition.gate.reasons:
            partition.listed = False
            return
        lanes, limit = partition.lanes, partition.reach.limit
        if partition.offsets.position <= limit:  # so are all its offsets
            works += lanes.take(share)
        else:
            for work in lanes.take(share):
                if work.offset >= limit:
                    if not partition.may_start(work, looked, works, spend=not self.batched):
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
        work.partition.wait(work, ROOM)
        self.short_of_room[work.partition] = None

    # -- the rate limit --------------------------------------------------------------------------

    def affordable(self, now: float, allowed: int) -> int:
        """Refill the bucket; returns how many of `allowed` starts it pays for."""
        self.bucket.refill(now)
        return min(allowed, self.bucket.starts())

    def untake(self, count: int) -> None:
        """This many of the taken records do not start after all."""
        if self.limited:
            self.bucket.pay(-count)

    def tokens_due(self) -> float | None:
        """When the bucket can pay for the next start, if a record waits for it."""
        if not self.limited or not self.rotation or self.slots.free <= 0:
            return None
        return self.bucket.due()


class Slots:
    """Calls that one handler may have in flight."""

    __slots__ = ("capacity", "concurrency", "free")

    def __init__(self, concurrency: int, ahead: int) -> None:
        self.concurrency = concurrency
        #: total calls: those beyond `concurrency` keep the pipes to worker processes full
        self.capacity = concurrency + ahead
        #: calls that may still start; negative while finished records keep slots (Commit each)
        self.free = self.capacity

    @property
    def taken(self) -> int:
        """Slots in use: running calls, and whatever else holds a slot."""
        return self.capacity - self.free

    def resize(self, concurrency: int, ahead: int) -> None:
        """Change the number of calls; `free` is negative while more than that still run."""
        taken = self.taken
        self.concurrency, self.capacity = concurrency, concurrency + ahead
        self.free = self.capacity - taken

    def take(self, count: int = 1) -> None:
        """This many calls start."""
        self.free -= count

    def give(self, count: int = 1) -> None:
        """This many calls are over."""
        self.free += count


# -- the fetch -------------------------------------------------------------------------------------

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


# -- what the app and commands want ----------------------------------------------------------------


class Desired:
    """Pauses, settings and held lanes; they also apply to later epochs."""

    def __init__(self) -> None:
        #: the app paused all topics; and topics for which it has since requested the opposite
        self._all = False
        self._toggled: set[str] = set()
        #: in force by command
        self.steering = Steering()
        #: of lanes, as `hold` gets them
        self._holds: dict[tuple[str, int | None, bytes], HeldBy] = {}

    def by_app(self, topic: str | None, *, on: bool) -> None:
        """The app pauses or resumes a topic, or all."""
        if topic is None:
            self._all = on
            self._toggled.clear()
        elif on == self._all:
            self._toggled.discard(topic)
        else:
            self._toggled.add(topic)

    def by_command(self, steering: Steering, handlers: Iterable[Handler]) -> None:
        """All commands in force from now on; the same again changes nothing."""
        self.steering = steering
        for handler in handlers:
            handler.tune(steering.tunings.get(handler.index, AS_DECLARED))

    def hold_lane(self, lane: tuple[str, int | None, bytes], by: HeldBy) -> None:
        """Hold a lane in epochs to come: topic, partition (None: all) and key."""
        self._holds[lane] = by

    def let_go(self, lane: tuple[str, int | None, bytes]) -> None:
        """End the hold of a lane in epochs to come."""
        self._holds.pop(lane, None)

    @property
    def topics(self) -> set[str | None]:
        """The topics that the app paused; None means all (except those resumed since)."""
        return {None} if self._all else set(self._toggled)

    def open(self, partition: Partition, now: float) -> None:
        """Apply all of it to a new epoch."""
        for (topic, number, key), by in self._holds.items():
            here = topic == partition.topic and number in (None, partition.number)
            if here and by.until > now:
                partition.set_hold(key, by)
        self.apply(partition)

    def apply(self, partition: Partition) -> None:
        """Pause or resume the partition accordingly."""
        topic, handler = partition.topic, partition.handler
        by_command = any(pause.holds(topic, handler.index) for pause in self.steering.pauses)
        partition.gate.put(PAUSED, on=self._all != (topic in self._toggled))
        partition.gate.put(COMMAND, on=by_command)
        handler.enlist(partition)
