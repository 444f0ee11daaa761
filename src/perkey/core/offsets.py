"""The offsets of one partition epoch: which are done, and which may start.

`Offsets`. One dictionary holds the offsets that were received and are not done. Offsets arrive in
ascending order and a dictionary keeps that order, so its first key is the frontier, and a gap
(compaction, transaction markers) needs no special case: an offset that never arrives is never
waited for.

`Reach` lets records start only so far out that the offset map fits whichever of them finish. Theory
of operation. The broker stores 4,096 characters of metadata. A map has two shapes:

- as a bit set it takes one bit for each offset from the frontier to the top, however they end;
- as runs it takes eight bytes for each run of offsets that are not done, however long they are.

So a record may start for one of two reasons. **Near**: it is less than three quarters of a bit set
from the frontier. Nothing is measured or counted. **Counted**: once a record further out is ready,
every start is counted, also of holes far below the top, and the number of runs is the limit::

    frontier                        top         end       position
    |  a run   done   a run   done   |  not started  |   beyond    |
    |<-------------- window ------------------------>|

The *window* holds what may start: all that is not done below `end`, as if the top were there
already. `Window.runs` is updated with each record that is done. Three rules follow:

1. A record between two that are not done splits a run in two. Records end in any order, so each
   running one may cost a run: `runs + running + budget <= most` holds at every moment.
2. A record beside one that is done (or beside a gap of the log) splits nothing. It is *free*: it
   may start however little room there is. The frontier is always free, so something can always
   start.
3. The window grows only when a record past it is ready. Each gap of the log in it is one more run,
   and takes at most half of the remaining room; and a map names at most `NOT_DONE_MAX` offsets.

It costs O(1) per record. Only the change from near to counted walks over what is not done, and the
change back needs a quarter of the near distance, so that it does not happen at every step.

Which fields are valid, and when::

    near      limit = frontier at the last check + near distance    window None, budget unused
    counted   limit = -1    window = Offsets.incomplete    budget = runs that may still be made
    both      farthest = the furthest offset started with a count; frontier = at the last check
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import ne, sub
from typing import TYPE_CHECKING, Any, NamedTuple

from perkey.codec.limits import NOT_DONE_MAX
from perkey.core.work import Work
from perkey.types import Record

if TYPE_CHECKING:
    from perkey.core.commits import CommitState


class Snapshot(NamedTuple):
    """Frontier, top and holes of one partition, taken together."""

    frontier: int
    #: the highest offset that is done; frontier - 1 if nothing beyond the frontier is
    top: int
    #: ascending offsets in [frontier, top) that are not done
    not_done: list[int]


class Offsets:
    """The offsets of one epoch."""

    __slots__ = (
        "changed", "expected", "incomplete", "position", "restored_top", "shelved", "top",
    )  # fmt: skip

    def __init__(
        self, start: int, restored_top: int | None = None, not_done: Sequence[int] = ()
    ) -> None:
        #: received and not done: offset -> Work; None for one that is not done in the restored map
        #: and has not been fetched again yet, and for one on a shelf
        self.incomplete: dict[int, Work | None] = dict.fromkeys(not_done)
        #: those None entries, ascending; pruned as the polls pass them
        self.expected: deque[int] = deque(not_done)
        #: the highest offset that is done
        self.top = start - 1 if restored_top is None else restored_top
        #: up to here the restored map defines what is done
        self.restored_top = self.top
        while self.top in self.incomplete:  # a map may end with offsets that are not done
            self.top -= 1
        #: the offset after the last one polled (or known to be a gap)
        self.position = start
        #: how many were received and are kept as offsets only (memory.py)
        self.shelved = 0
        #: a commit would differ from the last one
        self.changed = False

    # -- intake ----------------------------------------------------------------------------------

    def receive(self, records: Sequence[Record], sizes: Sequence[int], epoch: Any) -> list[Work]:
        """Add records of one poll, ascending; returns those that are not done and are new."""
        first = records[0][2]
        if first < self.position or first <= self.restored_top:
            # The slower way, if some are done already or were received before
            works = []
            for record, size in zip(records, sizes, strict=True):
                if self._wants(record.offset):
                    self.incomplete[record.offset] = work = Work.one(record, size, epoch)
                    works.append(work)
            return works
        if self.expected:
            self._prune(first)
        incomplete, works = self.incomplete, Work.several(records, sizes, epoch)
        for work in works:
            incomplete[work.offset] = work
        self.position = records[-1][2] + 1
        return works

    def _wants(self, offset: int) -> bool:
        """Move past this offset; False if its record is done, or was received before."""
        if offset < self.position:
            return False  # fetched twice, for example after a pause
        self._prune(offset)
        self.position = offset + 1
        if self.expected and self.expected[0] == offset:
            self.expected.popleft()
            return True
        return offset > self.restored_top or offset in self.incomplete

    def advance(self, position: int) -> None:
        """The log has nothing between the last record polled and `position` (markers, gaps)."""
        if position > self.position:
            self._prune(position)
            self.position = position
            self.changed = True

    def _prune(self, offset: int) -> None:
        """Drop restored holes that the log no longer has: compacted or deleted since."""
        while self.expected and self.expected[0] < offset:
            del self.incomplete[self.expected.popleft()]
            self.changed = True

    # -- kept as offsets ---------------------------------------------------------------------------

    def put_on_shelf(self, offset: int) -> None:
        """Keep only the offset of the record."""
        self.incomplete[offset] = None

    def unfetched(self) -> Iterator[int]:
        """Unfetched offsets, ascending: in the restored map, or on a shelf."""
        if not self.shelved:
            return iter(self.expected)
        return (offset for offset, work in self.incomplete.items() if work is None)

    def back(self, record: Record, size: int, epoch: Any) -> Work:
        """A record was fetched again."""
        work = self.incomplete[record[2]] = Work.one(record, size, epoch)
        return work

    def gone(self, offset: int) -> None:
        """The log does not have it any more."""
        del self.incomplete[offset]
        self.changed = True

    # -- done ------------------------------------------------------------------------------------

    def done(self, offset: int) -> None:
        """The record at this offset is done."""
        del self.incomplete[offset]
        if offset > self.top:  # noqa: PLR1730 - once a record: max() costs five times as much
            self.top = offset
        self.changed = True

    def mark(self, offset: int) -> None:
        """The same, if the commit that was just stored contained it already."""
        del self.incomplete[offset]
        self.top = max(self.top, offset)

    def undone(self, offset: int, work: Work) -> None:
        """It was committed as done (marked, at_most_once) and never started: it is not done."""
        self.incomplete[offset] = work
        self.incomplete = dict(sorted(self.incomplete.items()))
        while self.top in self.incomplete:
            self.top -= 1
        self.changed = True

    def replace(self, incomplete: dict[int, Work | None]) -> None:
        """Replace the dictionary: by one that counts runs, or back."""
        self.incomplete = incomplete

    # -- queries ---------------------------------------------------------------------------------

    def works(self) -> Iterator[Work]:
        """Records held that are not done, by offset."""
        return (work for work in self.incomplete.values() if work is not None)

    @property
    def buffered(self) -> int:
        """Records held in memory that are not done."""
        return len(self.incomplete) - len(self.expected) - self.shelved

    @property
    def frontier(self) -> int:
        """The lowest offset not yet done."""
        first = next(iter(self.incomplete), None)
        return max(self.position, self.top + 1) if first is None else first

    def snapshot(self, claimed: Collection[int] = ()) -> Snapshot:
        """Frontier, top and holes together; the offsets in `claimed` count as done."""
        top = max(self.top, max(claimed, default=self.top))
        not_done = self._not_done_to(top)
        if claimed:
            not_done = [offset for offset in not_done if offset not in claimed]
        frontier = not_done[0] if not_done else max(self.position, top + 1)
        top = max(top, frontier - 1)
        del not_done[bisect_left(not_done, top) :]
        return Snapshot(frontier, top, not_done)

    def _not_done_to(self, top: int) -> list[int]:
        """Offsets not done, up to and including the first one past `top`.

        Past, not at: `top` itself is held while it is a claim, and the frontier must still find
        what comes after it.
        """
        if 2 * (self.position - top) <= len(self.incomplete):  # at most half of it is past `top`
            offsets = list(self.incomplete)
            del offsets[bisect_right(offsets, top) + 1 :]
            return offsets
        # In chunks: most of what is held is records behind `top` that have not started yet.
        offsets = []
        following = iter(self.incomplete)
        while chunk := list(islice(following, 1024)):
            offsets += chunk
            if chunk[-1] > top:
                del offsets[bisect_right(offsets, top) + 1 :]
                break
        return offsets


# -- which may start -------------------------------------------------------------------------------

PRESSURE = 0.75  # of the limit: past it nothing further out starts (as in the Java library)
LOOK_EVERY = 1_024  # done records between two checks whether counting is still needed
BYTES_PER_RUN = 8  # 32 bits for what is not done, 32 for what is done behind it


def always_fits(limit_chars: int) -> int:
    """Offsets whose bit set takes at most `limit_chars` characters of base64."""
    body_bytes = limit_chars // 4 * 3
    return max(0, (body_bytes - 6) * 8)  # magic byte, 32-bit length, trailing zero byte


def runs_fit(limit_chars: int) -> int:
    """Runs of offsets not done that a map of at most `limit_chars` characters can represent."""
    body_bytes = limit_chars // 4 * 3
    return max(0, (body_bytes - 1) // BYTES_PER_RUN)  # magic byte


class Window(dict[int, Work | None]):
    """`Offsets.incomplete` while its runs are counted: all that is received and not done.

    A separate dictionary class, so that a log whose starts are not counted pays nothing.
    """

    __slots__ = ("beyond", "end", "freed", "named", "removed", "runs", "waiting")

    def __init__(self, undone: dict[int, Work | None], end: int, waiting: Collection[int]) -> None:
        super().__init__(undone)
        offsets = list(undone)
        #: offsets below it may start
        self.end = end
        #: how many offsets below `end` are not done, and how many runs they form
        self.named = sum(offset < end for offset in offsets)
        gaps = map(ne, map(sub, offsets[1 : self.named], offsets), repeat(1))
        self.runs: int = sum(gaps) + (self.named > 0)
        #: offsets received at and past `end`, ascending
        self.beyond = deque(offsets[self.named :])
        #: heads of lanes that wait for room; those of them that have become free
        self.waiting = waiting
        self.freed = [offset for offset in waiting if self.free(offset)]
        #: entries removed since the last search for the frontier, which steps over each
        self.removed = 0

    def __setitem__(self, offset: int, work: Work | None) -> None:
        """A record was received, or one that the restored map names was fetched."""
        if offset not in self:
            self.beyond.append(offset)
        super().__setitem__(offset, work)

    def __delitem__(self, offset: int) -> None:
        """A record is done, or the log does not have it any more."""
        super().__delitem__(offset)
        self.removed += 1
        if offset >= self.end:  # started when the broker still stored longer maps
            return
        before, after = offset - 1 in self, offset + 1 in self and offset + 1 < self.end
        self.runs += before + after - 1
        self.named -= 1
        for beside in (offset - 1, offset + 1):
            if beside in self.waiting and beside < self.end:
                self.freed.append(beside)

    def free(self, offset: int) -> bool:
        """Whether finishing it adds no run: a neighbour in the window is done."""
        if offset >= self.end:
            return False
        return offset - 1 not in self or (offset + 1 not in self and offset + 1 < self.end)

    def grow(self, offset: int, room: int) -> int:
        """Extend the window to `offset`, by at most `room` new runs; returns how many it added."""
        beyond, left = self.beyond, room
        while beyond and beyond[0] <= offset and self.named <= NOT_DONE_MAX:
            following = beyond[0]
            if following not in self:
                beyond.popleft()
                continue
            if following - 1 not in self:
                if left <= 0 and self.named:
                    break
                left -= 1
                self.runs += 1
                beside = (self.end - 1, following)
                self.freed += [offset for offset in beside if offset in self.waiting]
            beyond.popleft()
            self.named += 1
            self.end = following + 1
        return room - left

    def runs_without(self, claims: Collection[int]) -> int:
        """The number of runs if these offsets were done, as in a commit."""
        before = sum(offset - 1 in self for offset in claims)
        after = sum(offset + 1 in self and offset + 1 < self.end for offset in claims)
        both = sum(offset + 1 in claims for offset in claims)
        return self.runs - len(claims) + before + after - both


@dataclass(slots=True, eq=False)
class Reach:
    """How far out records of one epoch may start. Only this file changes its fields."""

    _offsets: Offsets
    _commit: CommitState
    #: heads of lanes that wait for room, by offset
    _waiting: Collection[int] = ()
    #: near: before this offset records start without a count; counted: -1
    limit: int = -1
    #: counted: how many more may start that are not free
    budget: int = 0
    #: the furthest offset that was started with a count
    farthest: int = -1
    #: the frontier when the limit was set
    frontier: int = -1
    #: near, without room to count: how much was not done then, and how few running ones would do
    size: int = 0
    fewer: int = 0

    @property
    def window(self) -> Window | None:
        """The window while starts are counted; otherwise None."""
        undone = self._offsets.incomplete
        return undone if isinstance(undone, Window) else None

    @property
    def taken(self) -> int:
        """Characters of a map with the window as runs; 0 if nothing is counted."""
        window = self.window
        return 0 if window is None else -(-(window.runs * BYTES_PER_RUN + 1) // 3) * 4

    @property
    def edge(self) -> int:
        """Nothing at or past this offset starts for now, unless free; -1 before the first check."""
        window = self.window
        if window is None:
            return self.limit
        return window.end if self.budget > 0 else max(self.farthest, self.frontier) + 1

    @property
    def share(self) -> float:
        """How much of the room for starts is taken, by the measure with more room left.

        That is the distance of the bit set, or, if starts are counted, the runs.
        """
        window, first = self.window, next(iter(self._offsets.incomplete), None)
        if first is None:
            return 0.0
        distance = max(0, self._offsets.top + 1 - first) / max(1, self._near)
        if window is None:
            return distance
        return min(distance, window.runs / max(1, self._under_pressure))

    # -- may it start ----------------------------------------------------------------------------

    def price(self, offset: int) -> int | None:
        """The budget that starting it takes: 0 or 1; None: the map has no room for it."""
        if offset < self.limit:
            return 0
        window = self.window
        if window is None:
            return None
        if offset >= window.end:
            room = self._under_pressure - window.runs + 1
            self.budget -= window.grow(offset, room // 2)
            if offset >= window.end:
                return None
        if window.free(offset):
            return 0
        return 1 if self.budget > 0 else None

    def has_room(self, offset: int) -> bool:
        """Whether the map still fits if this record is done, whichever others are."""
        return self.price(offset) is not None

    def take_room(self, offset: int) -> bool:
        """The same for a record that starts now: it takes its part of the room."""
        price = self.price(offset)
        if price is None:
            return False
        if offset >= self.limit:
            self.budget -= price
            self.farthest = max(self.farthest, offset)
        return True

    # -- checking again --------------------------------------------------------------------------

    def worth_a_look(self, under_way: int) -> bool:
        """Whether so much has changed since the last check that there may be room."""
        undone = self._offsets.incomplete
        if self.frontier not in undone or isinstance(undone, Window):
            return True
        changed = abs(len(undone) - self.size)
        return under_way < self.fewer or changed * 64 >= self.size or (changed > 0 == under_way)

    def look(self, under_way: int, wanted: int) -> None:
        """Measure again: `wanted` is to start, after `under_way` others that have started."""
        window = self.window
        if window is not None:
            if not self._near_again(window):
                self.budget = self._allowed(window) - under_way
                return
            self._offsets.replace(dict(window))
        if self.frontier not in self._offsets.incomplete:
            self.frontier = self._offsets.frontier
        # The frontier itself may always start: only its end makes room again.
        self.limit = self.frontier + max(1, self._near)
        far = max(self._offsets.top, self.farthest)
        if far >= self.limit:  # it is done already, or may be at any time
            self._count(max(far + 1, min(self.limit, self._offsets.position)), under_way)
        elif wanted >= self.limit and self.worth_a_look(under_way):
            self.size = len(self._offsets.incomplete)
            self.fewer = self._room(self._runs_to(wanted))
            if under_way < self.fewer:
                self.farthest = wanted
                self._count(wanted + 1, under_way)

    def _runs_to(self, wanted: int) -> int:
        """Runs of undone offsets up to here; possibly too many, if a map is not exact."""
        most, runs, before = self._under_pressure, 0, -2
        for named, offset in enumerate(self._offsets.incomplete):
            if offset > wanted:
                break
            runs += offset - before != 1
            before = offset
            if runs > most or named > NOT_DONE_MAX:
                return most + 1
        return runs

    def _count(self, end: int, under_way: int) -> None:
        """Start to count starts."""
        window = Window(self._offsets.incomplete, end, self._waiting)
        self._offsets.replace(window)
        self.limit, self.budget = -1, self._allowed(window) - under_way

    def _near_again(self, window: Window) -> bool:
        """Whether counting is no longer needed: done and started records are near the frontier."""
        if self._offsets.top >= window.end:
            return True  # or the window is not all that may be done: it is rebuilt
        if window.removed < LOOK_EVERY or self.frontier in window:
            return False
        window.removed, self.frontier = 0, self._offsets.frontier
        far = max(self._offsets.top, self.farthest)
        return far < self.frontier + self._near * 3 // 4

    def freed(self) -> list[int]:
        """Heads of lanes that wait for room and have become free since the last call."""
        window = self.window
        if window is None:
            return []
        freed, window.freed = window.freed, []
        return freed

    # -- how much the map has room for -----------------------------------------------------------

    @property
    def _near(self) -> int:
        return int(always_fits(self._commit.map_limit) * PRESSURE)

    @property
    def _under_pressure(self) -> int:
        return int(runs_fit(self._commit.map_limit) * PRESSURE)

    def _allowed(self, window: Window) -> int:
        """How many more runs fit into the map; records that wait for a commit count as done."""
        claims = {work.offset for work in self._commit.claims}
        return self._room(window.runs_without(claims) if claims else window.runs)

    def _room(self, runs: int) -> int:
        return runs_fit(self._commit.map_limit) - runs if runs <= self._under_pressure else 0
