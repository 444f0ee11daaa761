"""Which records may start, so that the offset map fits whichever of them finish.

Theory of operation. The broker stores 4,096 characters of metadata. A map has two shapes:

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

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import repeat
from operator import ne, sub
from typing import TYPE_CHECKING

from weft.codec.limits import NOT_DONE_MAX
from weft.core.work import Work

if TYPE_CHECKING:
    from weft.core.commits import CommitState
    from weft.core.offsets import Offsets

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

    def taken_without(self, claimed: Collection[int]) -> float:
        """How much of the room for starts is taken, if all these offsets were done.

        By the measure with more room left: the distance of the bit set, or, if starts are counted,
        the runs.
        """
        undone, window = self._offsets.incomplete, self.window
        first = next((offset for offset in undone if offset not in claimed), None)
        if first is None:
            return 0.0
        distance = max(0, self._offsets.top + 1 - first) / max(1, self._near)
        if window is None:
            return distance
        gone = {offset for offset in claimed if offset in window and offset < window.end}
        return min(distance, window.runs_without(gone) / max(1, self._under_pressure))

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
