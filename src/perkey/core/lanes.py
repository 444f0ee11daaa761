"""The lanes of one partition epoch: who waits behind whom, and which record may start next.

Theory of operation. A lane is a chain of works linked by `Work.next`, in offset order; its tail is
in `tails`. Only the head may be anywhere but in the chain::

    head ──next──► work ──next──► work        tails[key] = the last one
      │
      ├ in `ready`: nothing keeps it waiting; oldest first
      ├ it waits for one reason, its state (states.py): the owner of the reason has it in a queue
      └ or it has started: see its state

Invariants (`simulators/core/invariants.py` recounts them):

1. A queued head is in exactly one of `ready`, `turns` or an open batch (batching.py), any other
   waits for one reason, and no other record of its lane is in any of them: that is the key order.
2. `waiting` counts the heads that wait; in `occupied` a lane may wait without a head.
3. A record without a key, or with ordering="unordered", is a separate lane and in no `tails`.
4. In a batch call several records of a lane run together; `Call.order` has each one's predecessor,
   and the lane continues past the last of them (`_skip_finished`).

A lane with a failing record is charged to the budget of failing records, so that it never stops
the intake of others. It gets one `LaneCharge`, shared by the records in it and those that join
later: moving the lane between the budgets is one addition, not a walk along it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import repeat
from typing import TYPE_CHECKING

from perkey.core import states
from perkey.core.events import KEY, UNORDERED
from perkey.core.work import LaneCharge
from perkey.types import Ordering, Record

if TYPE_CHECKING:
    from perkey.core.memory import Shelf
    from perkey.core.work import LaneKey, Work

ONE_LANE = "*"  # the one lane of ordering="partition"


@dataclass(slots=True, eq=False)
class Lanes:
    """The lanes of one epoch."""

    _ordering: Ordering
    #: heads to look at when their turn comes (`EngineState.turns`)
    turns: deque[Work]
    #: lanes in which an attempt of an earlier epoch still runs -> their waiting head
    occupied: dict[LaneKey, Work | None] = field(default_factory=dict)
    #: lane key -> the last record of that lane
    tails: dict[LaneKey, Work] = field(default_factory=dict)
    #: heads of lanes that may start, oldest first
    ready: deque[Work] = field(default_factory=deque)
    #: where a record goes when its turn comes: `ready`; `turns` if it has failed, and all while
    #: something may be known of the records of this partition (`Partition.watch`)
    up: deque[Work] = field(init=False)
    #: ready, but past the room of the map, by offset; and a heap of these offsets, in which some
    #: may be outdated
    far: dict[int, Work] = field(default_factory=dict)
    _far_order: list[int] = field(default_factory=list)
    #: parked or held lanes, present or former, with records that are kept as offsets (memory.py)
    shelves: dict[LaneKey, Shelf] = field(default_factory=dict)
    #: of these, lanes whose chain is at its end
    dry: dict[LaneKey, None] = field(default_factory=dict)
    #: how many heads wait, by the reason, which is their state
    waiting: list[int] = field(default_factory=lambda: [0] * len(states.RECORD_NAMES))
    #: what lanes with a failing record hold
    blocked_records: int = 0
    blocked_bytes: int = 0

    def __post_init__(self) -> None:
        self.up = self.ready

    def key_of(self, record: Record) -> LaneKey:
        """The lane of a record: its key, the whole partition, or its own offset."""
        if self._ordering == KEY and record.key is not None:
            return record.key
        return record.offset if self._ordering in (UNORDERED, KEY) else ONE_LANE

    # -- joining -----------------------------------------------------------------------------------

    def join(self, works: Sequence[Work]) -> None:
        """Records that arrived, ascending: each goes to the end of its lane."""
        if self.occupied:
            for work in works:
                self.join_one(work)
        elif self._ordering == KEY:
            self._join_by_key(works)
        elif self._ordering == UNORDERED:
            self.up.extend(works)
        else:
            for work in works:
                self._append(ONE_LANE, work)

    def _join_by_key(self, works: Sequence[Work]) -> None:
        # The hottest loop of the core: two dictionary calls and one link per record.
        tails, append = self.tails, self.up.append
        for work in works:
            key = work.record[4]
            if key is None:  # orders with nothing
                append(work)
                continue
            tail = tails.get(key)
            tails[key] = work
            if tail is None:
                append(work)
            else:
                tail.next = work
                if tail.charge is not None:
                    self._charge(work, tail.charge)

    def join_one(self, work: Work) -> None:
        """The same for one record, whose lane an old attempt may occupy."""
        key = self.key_of(work.record)
        if not isinstance(key, int):
            self._append(key, work)
        elif key in self.occupied:  # a separate lane: not in `tails`
            self._occupy(key, work)
        else:
            self.up.append(work)

    def _append(self, key: LaneKey, work: Work) -> None:
        tail = self.tails.get(key)
        self.tails[key] = work
        if tail is not None:
            tail.next = work
            if tail.charge is not None:
                self._charge(work, tail.charge)
        elif key in self.occupied:
            self._occupy(key, work)
        else:
            self.up.append(work)

    def _occupy(self, key: LaneKey, work: Work) -> None:
        """An attempt of an earlier epoch still runs in this lane."""
        self.occupied[key] = work
        self.waiting[states.EPOCH] += 1
        work.move(states.EPOCH)

    def rejoin(self, work: Work) -> None:
        """The lane has continued past this record (exactly_once): it goes to the lane's end."""
        self.discharge(work)
        work.next = None
        self.join_one(work)

    def discharge(self, work: Work) -> None:
        """The budget of failing records no longer pays for a record that its lane has passed."""
        if work.charge is not None:
            self._uncharge(work, work.charge)
            work.charge = None

    # -- leaving -----------------------------------------------------------------------------------

    def may_start(self, work: Work) -> None:
        """Nothing keeps this head waiting."""
        self.ready.append(work)

    def turn(self, work: Work) -> None:
        """The turn of this head comes, or comes again."""
        self.up.append(work)

    def take(self, most: int) -> list[Work]:
        """Up to `most` ready heads, oldest first."""
        ready = self.ready
        return list(map(deque.popleft, repeat(ready, min(most, len(ready)))))

    def take_for_budget(self) -> list[Work]:
        """All ready heads: they wait for their budget; as `Partition.wait`, without calls."""
        works = self.take(len(self.ready))
        self.waiting[states.BUDGET] += len(works)
        for work in works:
            work.state = states.BUDGET
        return works

    def paid(self, work: Work) -> None:
        """The budget lets it start."""
        self.waiting[states.BUDGET] -= 1
        work.state = states.QUEUED

    def take_out(self, work: Work) -> bool:
        """Remove a queued head from where it waits for its start; False if it is not there."""
        for queue in (self.ready, self.up):
            if work in queue:
                queue.remove(work)
                return True
        return False

    def leave(self, work: Work) -> bool:
        """The record leaves the head of its lane; True if that makes the next one ready."""
        if work.charge is not None:
            self._uncharge(work, work.charge)
        following = work.next
        if work.call is not None:
            if follows(work):
                return False  # an earlier record of its batch is not done: the lane waits for it
            work, following = self._skip_finished(work)
        if following is not None:
            if following.state != states.QUEUED:  # it is in the same batch
                return False
            (self.up if following.failure is None else self.turns).append(following)
            return True
        tails = self.tails
        if tails:
            key = work.record[4] if self._ordering == KEY else ONE_LANE
            # A null key has no lane to remove; with the charge gone the lane is forgotten.
            if key is not None and tails.get(key) is work:
                del tails[key]
                if self.shelves:
                    self.look(key)
        return False

    def look(self, key: LaneKey) -> None:
        """Check whether a lane is at the end of its chain, or also of its shelf."""
        shelf = self.shelves.get(key)
        if shelf is None:
            return
        if not shelf.offsets and not shelf.head.put_off:
            del self.shelves[key]
        elif shelf.offsets and key not in self.tails:
            self.dry[key] = None

    def cut_behind(self, head: Work, key: LaneKey) -> list[Work]:
        """Remove the end of a lane's chain, from the first record on of which nothing is known."""
        last, following = head, head.next
        while following is not None:
            fresh = following.state == states.QUEUED and following.failure is None
            if not fresh or follows(following):
                last = following
            following = following.next
        cut: list[Work] = []
        following, last.next = last.next, None
        while following is not None:
            cut.append(following)
            charge = following.charge
            if charge is not None:
                following.charge = None
                charge.records -= 1
                charge.bytes -= following.size
                if charge.blocked:
                    self.blocked_records -= 1
                    self.blocked_bytes -= following.size
            following = following.next
        self.tails[key] = last
        return cut

    def vacate(self, key: LaneKey) -> bool:
        """The attempt of an old epoch has ended; True if that makes the lane's head ready."""
        head = self.occupied.pop(key, None)
        if head is None:
            return False
        self.waiting[states.EPOCH] -= 1
        head.move(states.QUEUED)
        self.up.append(head)
        return True

    def clear(self) -> None:
        """The epoch ended."""
        for place in (
            self.tails, self.ready, self.far, self._far_order, self.occupied, self.shelves,
            self.dry,
        ):  # fmt: skip
            place.clear()
        self.waiting = [0] * len(self.waiting)

    # -- waiting elsewhere, and back ---------------------------------------------------------------

    def put_back(self, heads: Iterable[Work]) -> None:
        """Heads that were taken and did not start: in front of all others, in this order."""
        self.ready.extendleft(reversed(list(heads)))

    def put_far(self, work: Work) -> None:
        """It waits until the map has room for its offset."""
        self.far[work.offset] = work
        heappush(self._far_order, work.offset)

    @property
    def nearest_far(self) -> int:
        """The lowest offset that waits for room; -1 if none does."""
        far, order = self.far, self._far_order
        while order and order[0] not in far:
            heappop(order)
        return order[0] if order else -1

    # -- several of a lane in one batch ------------------------------------------------------------

    def _skip_finished(self, work: Work) -> tuple[Work, Work | None]:
        """Skip records of the same batch that were done before this one, their predecessor."""
        following = work.next
        while following is not None and unfollow(following):
            if following.state not in (states.DONE, states.PENDING):
                break
            work, following = following, following.next
        return work, following

    def mate_runs(self, work: Work) -> bool:
        """Whether a later record of its lane is still in the batch call that this one was in."""
        following = work.next
        while following is not None and follows(following):
            if following.state == states.RUNNING:
                return True
            following = following.next
        return False

    # -- which budget pays -------------------------------------------------------------------------

    def block(self, work: Work) -> LaneCharge:
        """The lane's head failed: what the lane holds moves to the budget of failing records."""
        charge = work.charge
        if charge is None:
            charge = LaneCharge()
            member: Work | None = work
            while member is not None:
                left = member.state in (states.DONE, states.PENDING)  # before it, in its batch
                if member is work or not left:
                    if member.charge is not None:  # one behind it in its batch failed first
                        self._uncharge(member, member.charge)
                    member.charge = charge
                    charge.records += 1
                    charge.bytes += member.size
                member = member.next
        # With a parked head nothing of the lane moves any more, whatever one behind it in its batch
        # does later.
        if not follows(work):
            charge.parked = work.state == states.PARKED
        if not charge.blocked:
            charge.blocked = True
            self.blocked_records += charge.records
            self.blocked_bytes += charge.bytes
        return charge

    def grow(self, work: Work, size_bytes: int) -> None:
        """This many bytes more are kept because of this record."""
        charge = work.charge
        if charge is not None:
            charge.bytes += size_bytes
            self.blocked_bytes += size_bytes if charge.blocked else 0

    def _charge(self, work: Work, charge: LaneCharge) -> None:
        """A record joins a lane that has a charge."""
        work.charge = charge
        charge.records += 1
        charge.bytes += work.size
        if charge.blocked:
            self.blocked_records += 1
            self.blocked_bytes += work.size

    def _uncharge(self, work: Work, charge: LaneCharge) -> None:
        """A record leaves such a lane: its head, or one behind that in the same batch."""
        if charge.blocked and follows(work):
            self.blocked_records -= 1
            self.blocked_bytes -= work.size
        elif charge.blocked:  # its head is done, so the rest of the lane is healthy again
            charge.blocked = charge.parked = False
            self.blocked_records -= charge.records
            self.blocked_bytes -= charge.bytes
        charge.records -= 1
        charge.bytes -= work.size


def follows(work: Work) -> bool:
    """Whether it waits for an unfinished record of its lane in the same batch."""
    return work.call is not None and work in work.call.order


def unfollow(work: Work) -> bool:
    """It no longer waits for another record of its batch; True if it did."""
    return work.call is not None and work.call.order.pop(work, None) is not None
