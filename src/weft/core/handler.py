"""Whose turn it is: the slots of one handler, and a fair choice among its partitions.

The partitions that have a ready record stand in a rotation. The next free slot goes to the first
of them, which then goes to the back: a partition with one record waits for one round of the
others, however deep their backlogs are. The cost of a choice does not depend on what waits.

A slot is room for one call. It changes hands in `Slots.take` and `Slots.give` alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from weft.core.bucket import Bucket
from weft.core.spec import ALL_STARTS_PER_S, AT_MOST_ONCE
from weft.core.states import RUNNING
from weft.core.work import Call
from weft.policies import GivenUp, Park
from weft.types import Record

if TYPE_CHECKING:
    from weft.core.budgets import SharedBudget
    from weft.core.events import Tuning
    from weft.core.outages import Outage
    from weft.core.partition import Partition
    from weft.core.spec import HandlerSpec
    from weft.core.work import Work
    from weft.policies import Brake

LOOKS = 12  # so often in `Brake.over_s` the records that are done are counted


class Handler:
    """The slots, the rotation and the counts of one handler."""

    __slots__ = (
        "again", "ahead", "alone", "batched", "bucket", "budget", "dead_lettered", "done",
        "exact", "failures", "flood", "good_calls", "index", "limited", "name", "outages",
        "parked", "plain", "remembers", "retries", "rotation", "short_of_room", "skipped",
        "slots", "spec", "standing", "superseded", "timed", "valve",
    )  # fmt: skip

    def __init__(self, index: int, spec: HandlerSpec) -> None:
        self.index = index
        self.spec = spec
        self.name = spec.name
        #: `HandlerSpec.plain`, now
        self.plain = spec.plain
        #: records that are handled again: meanwhile none is `plain`
        self.again = 0
        #: outputs and offsets go into transactions
        self.exact = spec.exact
        #: attempts and parked records survive the epoch
        self.remembers = spec.retry.remember and spec.delivery != AT_MOST_ONCE
        #: its calls take batches
        self.batched = spec.batch is not None
        #: starts are limited by the second, to so many
        self.bucket = Bucket(spec.rate_limit_per_s)
        self.limited = self.bucket.per_s != ALL_STARTS_PER_S
        #: what it shares with others of the service that it calls
        self.budget: SharedBudget | None = None
        #: its attempts have a time-out, or had one
        self.timed = spec.timeout_s is not None
        self.slots = Slots(spec.concurrency, spec.ahead, spec.timeout_s)
        #: calls granted beyond the concurrency, now
        self.ahead = spec.ahead
        #: by command: none is
        self.alone = False
        #: partitions with something ready, each once (`Partition.listed`)
        self.rotation: deque[Partition] = deque()
        #: partitions with records past the reach of their map
        self.short_of_room: dict[Partition, None] = {}
        #: how many of its last records used up their attempts; only with a brake
        self.flood = None if spec.brake is None else Flood(spec.brake)
        #: what its calls need and is away: by the value of `Hold.by`, or of the whole handler
        self.outages: dict[Hashable, Outage] = {}
        policy = spec.on_exhausted
        #: by what its parked lanes are exported; of a function what it returned last
        self.valve = policy if isinstance(policy, Park) and policy.export else None
        #: batch calls that handled something
        self.good_calls = 0
        # counts since the start
        self.done = self.failures = self.retries = self.superseded = 0
        self.dead_lettered = self.skipped = self.parked = 0
        #: parked here, or before they came here, and not released since
        self.standing = 0

    def waits(self, work: Work) -> bool:
        """Its call was asked for and has not begun, as far as is known."""
        return self.slots.waits(work)

    @property
    def may_export(self) -> bool:
        """Its parked lanes are exported, or a function may decide that."""
        return self.valve is not None or not isinstance(self.spec.on_exhausted, GivenUp)

    def tune(self, tuning: Tuning) -> None:
        """Set what a command asks for; calls that run continue, also if they are too many now.

        A time-out that takes another's place is theirs, too; one where there was none is not.
        """
        spec, slots = self.spec, self.slots
        self.bucket.per_s = tuning.rate_limit_per_s or spec.rate_limit_per_s
        self.limited = self.bucket.per_s != ALL_STARTS_PER_S
        # What is granted ahead would run, in a worker that has nothing else; and its time would.
        self.alone = tuning.concurrency is not None or tuning.timeout_s is not None
        slots.resize(tuning.concurrency or spec.concurrency, 0 if self.alone else self.ahead)
        slots.limit(tuning.timeout_s or spec.timeout_s)
        self.timed = self.timed or slots.timeout_s is not None

    def grant_ahead(self, count: int) -> None:
        """So many calls beyond the concurrency from now on, unless a command has set that."""
        self.ahead = count
        if not self.alone:
            self.slots.resize(self.spec.concurrency, count)

    @property
    def timeout_s(self) -> float | None:
        """Of one attempt, as declared or set by a command; any thread."""
        return self.slots.timeout_s

    def divert(self, count: int) -> None:
        """So many records more, or fewer, are handled again."""
        self.again += count
        self.plain = self.spec.plain and not self.again

    # -- the rotation ----------------------------------------------------------------------------

    def enqueue(self, partition: Partition) -> None:
        """Put a partition with something ready into the rotation."""
        partition.listed = True
        self.rotation.append(partition)

    def enlist(self, partition: Partition) -> None:
        """The same, where it may stand there already or may not start."""
        if partition.lanes.ready and partition.startable and not partition.listed:
            self.enqueue(partition)

    def take(self, now: float, most: int) -> list[Work]:
        """Up to `most` records that may start now, in turns, fairly among the partitions.

        Those of batches take no room of the map yet: they join one, and may be put back.
        """
        if self.limited:
            most = self.affordable(now, most)
        works: list[Work] = []
        looked: dict[Partition, None] = {}
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
            self.bucket.pay(len(works))
        return works

    def _take_one_each(self, most: int, works: list[Work], looked: dict[Partition, None]) -> None:
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
        if not partition.startable:
            partition.listed = False
            return
        lanes, limit = partition.lanes, partition.reach.limit
        if partition.offsets.position <= limit:  # so is the offset of each
            works += lanes.take(share)
        else:
            for work in lanes.take(share):
                if work.record[2] >= limit:
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
        work.partition.lanes.put_far(work)
        self.short_of_room[work.partition] = None

    # -- the rate limit --------------------------------------------------------------------------

    def affordable(self, now: float, allowed: int) -> int:
        """Refill the bucket; how many of `allowed` starts it pays for."""
        self.bucket.refill(now)
        return min(allowed, self.bucket.starts())

    def untake(self, count: int) -> None:
        """So many of those taken do not start after all."""
        if self.limited:
            self.bucket.pay(-count)

    def tokens_due(self) -> float | None:
        """When the bucket will pay for the next start, if a record waits for it."""
        if not self.limited or not self.rotation or self.slots.free <= 0:
            return None
        return self.bucket.due()


class Flood:
    """How many of the last records used up their attempts, and whether they are too many.

    Records that are done are not counted one by one: `Handler.done` is looked at a few times in
    `Brake.over_s`, so what counts as the last of them is up to a twelfth more.
    """

    __slots__ = ("_looks", "brake", "exhausted")

    def __init__(self, brake: Brake) -> None:
        self.brake = brake
        #: since the start, or since the brake was released
        self.exhausted = 0
        #: (time, done, exhausted) at some times; the first one is where the counting begins
        self._looks: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])

    def look(self, now: float, done: int) -> None:
        """Time has passed."""
        looks, over_s = self._looks, self.brake.over_s
        if now - looks[-1][0] >= over_s / LOOKS:
            looks.append((now, done, self.exhausted))
        while len(looks) > 1 and looks[1][0] <= now - over_s:
            looks.popleft()

    def counts(self, done: int) -> tuple[int, int]:
        """How many were exhausted lately, and how many ended in all."""
        _, done_before, before = self._looks[0]
        exhausted = self.exhausted - before
        return exhausted, exhausted + done - done_before

    def add(self, now: float, done: int) -> bool:
        """One more used up its attempts; True: they are too many now."""
        self.look(now, done)
        self.exhausted += 1
        exhausted, ended = self.counts(done)
        return ended >= self.brake.at_least and exhausted >= self.brake.share * ended

    def begin_again(self, now: float, done: int) -> None:
        """What was before does not count any more."""
        self._looks.clear()
        self._looks.append((now, done, self.exhausted))


class Slots:
    """Calls that one handler may have in flight, and their time-outs."""

    __slots__ = (
        "capacity", "concurrency", "deadlines", "free", "overdue", "timeout_s", "waiting",
    )  # fmt: skip

    def __init__(self, concurrency: int, ahead: int, timeout_s: float | None) -> None:
        self.concurrency = concurrency
        #: calls in all: those beyond `concurrency` keep a pipe to a worker process full
        self.capacity = concurrency + ahead
        #: calls that may still start; below zero where finished records keep slots (Commit each)
        self.free = self.capacity
        self.timeout_s = timeout_s
        #: running attempts -> when their time is over, in that order; only with `timeout_s`.
        #: A call of several records is here once, as the call
        self.deadlines: dict[Work | Call, float] = {}
        #: running past their time and not to be cancelled -> since when
        self.overdue: dict[Work | Call, float] = {}
        #: calls that the runtime reported as not begun -> the attempt. An entry may outlive it
        self.waiting: dict[Work, Record] = {}

    @property
    def taken(self) -> int:
        """Calls that run, and whatever else holds a slot."""
        return self.capacity - self.free

    def resize(self, concurrency: int, ahead: int) -> None:
        """So many calls from now on; `free` is below zero while more than that still run."""
        taken = self.taken
        self.concurrency, self.capacity = concurrency, concurrency + ahead
        self.free = self.capacity - taken

    def limit(self, timeout_s: float | None) -> None:
        """The time of one attempt from now on; those that have a time get the new one."""
        before, self.timeout_s = self.timeout_s, timeout_s
        if timeout_s is None:
            self.deadlines.clear()
        elif before not in (None, timeout_s):
            later = timeout_s - before
            self.deadlines = {call: due + later for call, due in self.deadlines.items()}

    def take(self, count: int = 1) -> None:
        """So many calls start."""
        self.free -= count

    def give(self, count: int = 1) -> None:
        """So many are over."""
        self.free += count

    def time(self, works: Sequence[Work], now: float, *, together: bool = False) -> None:
        """These attempts begin, each in a separate call or all `together` in one."""
        if self.timeout_s is None:
            return
        due, call = now + self.timeout_s, works[0].call
        if together and call is not None:
            call.running = dict.fromkeys(works)
            self.deadlines[call] = due
        else:
            self.deadlines.update(dict.fromkeys(works, due))

    def ended(self, work: Work) -> None:
        """The attempt is over; a call of several keeps its slot, and its time, to its end."""
        call = work.call
        if call is not None:
            call.running.pop(work, None)
            return
        self.deadlines.pop(work, None)
        self.overdue.pop(work, None)

    def over(self, call: Call | None) -> None:
        """A call of several records has ended."""
        if call is not None:
            self.deadlines.pop(call, None)
            self.overdue.pop(call, None)

    def expired(self, now: float) -> list[Work]:
        """Attempts past their time, once each: they are overdue from now on.

        Of a batch one record that it still runs, if any: one that was acknowledged and is tried
        again, as its outputs were refused, is in another call, too.
        """
        expired = [call for call, _ in takewhile(lambda it: it[1] <= now, self.deadlines.items())]
        for call in expired:
            del self.deadlines[call]
            self.overdue[call] = now
        return [
            next(iter(one.running), one.first) if isinstance(one, Call) else one for one in expired
        ]

    def not_begun(self, works: Sequence[Work], now: float) -> None:
        """The calls of these wait in front of their handler: none of their time is used."""
        self.waiting = {work: one for work, one in self.waiting.items() if self.waits(work)}
        self.waiting.update((work, work.record) for work in works)
        self._time_again(works, now)

    def begun(self, works: Sequence[Work], at: float) -> None:
        """The calls of these began at `at`, which the engine took for earlier."""
        for work in works:
            self.waiting.pop(work, None)
        self._time_again(works, at)

    def waits(self, work: Work) -> bool:
        """Its call has not begun, as far as is known."""
        return work.state == RUNNING and self.waiting.get(work) is work.record

    def _time_again(self, works: Sequence[Work], at: float) -> None:
        if self.timeout_s is None:
            return
        due, last = at + self.timeout_s, next(reversed(self.deadlines.values()), 0.0)
        for call in map(_call_of, works):
            timed, overdue = self.deadlines.pop(call, None), self.overdue.pop(call, None)
            if timed is not None or overdue is not None:  # else it has ended
                self.deadlines[call] = due
        if due < last:
            self.deadlines = dict(sorted(self.deadlines.items(), key=lambda one: one[1]))

    def next_due(self) -> float | None:
        """When the time of the next one is over."""
        return next(iter(self.deadlines.values()), None)

    def all_hung(self, now: float) -> bool:
        """Every slot has been overdue for ten time-outs: nothing will ever start again."""
        if self.timeout_s is None or len(self.overdue) < max(self.concurrency, self.taken):
            return False
        return now - max(self.overdue.values()) >= 10 * self.timeout_s


def _call_of(work: Work) -> Work | Call:
    """What its time is kept under: the call that it shares with others, or itself."""
    return work if work.call is None else work.call
