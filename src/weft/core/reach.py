"""Which records may start, so that the offset map keeps fitting whatever of them is done.

The broker stores 4,096 characters of metadata. A map over a range of offsets never takes more
than one bit for each of them (a bit set), so while nothing past `always_fits` offsets from the
frontier has started, nothing needs to be measured or counted.

After that, or once a record asks that lies behind so many, every start is counted, also of holes
far below the top. A record that is done between two that are not splits a run in two: eight bytes,
which base64 writes as `CHARS_PER_DONE` characters. What has started may end in any order, so each
start takes that much of the room that was measured. One beside a record that is done makes no run
more: it may always start. A run of what is not done is four bytes, however long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from weft.codec import measure_runs
from weft.codec.limits import NOT_DONE_MAX
from weft.core.commit_state import CommitState
from weft.core.offsets import Offsets, Snapshot

PRESSURE = 0.75  # of the limit: past it nothing further out starts (as in the Java library)
CHARS_PER_DONE = 11


def always_fits(limit_chars: int) -> int:
    """Offsets whose bit set takes at most `limit_chars` characters of base64."""
    body_bytes = limit_chars // 4 * 3
    return max(0, (body_bytes - 6) * 8)  # magic byte, 32-bit length, trailing zero byte


@dataclass(slots=True, eq=False)
class Reach:
    """How far out records of one epoch may start. Nothing outside this file changes any field."""

    _offsets: Offsets
    _commit: CommitState
    #: before this offset records start without a question
    limit: int = -1
    #: past it every start is counted; else none may start there
    counted: bool = False
    #: so many more may start with a count, unless they make the map no longer
    budget: int = 0
    #: nothing at or past it starts with a count
    end: int = -1
    #: the furthest offset that was started with a count
    farthest: int = -1
    #: characters of the map at the last measurement, as runs; 0 where nothing had to be measured
    taken: int = 0
    #: records under way at the last measurement, and started with a count since
    opened: int = 0
    #: gaps of the log were counted up to here; what lies behind is looked at when it asks
    looked: int = -1
    #: something past the limit may start, with a count, once fewer than these are under way;
    #: or, where too much lies before it, once the frontier is there
    fewer: int = 0
    again: int = -1
    # when measuring again is worth while: once the frontier or the position of the last time is
    # passed; the top is here; or, where starts are counted, so many have ended
    frontier: int = -1
    position: int = -1
    at_top: int = -1
    after: int = 1

    # -- may it start ----------------------------------------------------------------------------

    def has_room(self, offset: int, *, count: bool) -> bool:
        """The map still fits if this record is done, in whatever company.

        `count`: it starts now, and takes its part of the room.
        """
        if offset < self.limit:
            return True
        if not self.counted:
            return False
        free = self._is_free(offset)
        if not free and (self.budget <= 0 or offset >= self.end):
            return False
        if count:
            self.opened += 1
            self.budget -= not free
            self.farthest = max(self.farthest, offset)
        return True

    def may_always(self, offset: int) -> bool:
        """It may start however little room there is."""
        return offset < self.limit or self._is_free(offset)

    def _is_free(self, offset: int) -> bool:
        """Beside a record that is done, below the top: done itself, it makes no run more."""
        undone = self._offsets.incomplete
        below = offset < self._offsets.top
        return below and (offset - 1 not in undone or offset + 1 not in undone)

    # -- measuring -------------------------------------------------------------------------------

    def worth_measuring(self, under_way: int, wanted: int) -> bool:
        """So much was done since the last time that there may be room, for `wanted` or others."""
        offsets = self._offsets
        if self.frontier not in offsets.incomplete or self.position != offsets.position:
            return True
        if wanted >= self.looked and (self.budget > 0 or not self.counted):
            return True
        if not self.counted:
            return offsets.top >= self.at_top or under_way < self.fewer
        ended = self.opened - under_way
        return ended >= self.after or (ended > 0 and not under_way)

    def measure(self, shot: Snapshot, under_way: int, wanted: int) -> None:
        """Say anew what may start, from the map as it is now; `wanted` asks first."""
        limit = self._commit.map_limit
        self.frontier, self.position = shot.frontier, self._offsets.position
        # The frontier itself may always start: only its end makes room again.
        near = shot.frontier + max(1, int(always_fits(limit) * PRESSURE))
        # Early enough that the room does not run out before it is measured.
        needless = near - 1 - (near - shot.frontier) // 4
        self.limit = self.looked = near
        self.at_top, self.budget, self.opened, self.fewer, self.taken = needless, 0, 0, 0, 0
        self.counted = max(shot.top, self.farthest) >= needless
        if self.counted or (wanted >= near and shot.frontier >= self.again):
            self._count_starts(shot, under_way, wanted)

    def _count_starts(self, shot: Snapshot, under_way: int, wanted: int) -> None:
        limit = self._commit.map_limit
        # As runs of 32 bits, which it takes once a run is long, whatever is shorter now.
        self.taken = taken = measure_runs(shot.frontier, shot.top, shot.not_done)
        allowed = (limit - taken) // CHARS_PER_DONE if taken <= limit * PRESSURE else 0
        end, gaps = self._end(shot, allowed, wanted)
        if not self.counted and (end <= wanted or under_way >= allowed - gaps):
            # The near ones go on without a count; when is it worth while to look again?
            self.looked, self.fewer = self.position, allowed - gaps if end > wanted else 0
            self.again = shot.frontier + (wanted - shot.frontier) // 64 if end <= wanted else -1
            return
        self.counted, self.limit, self.end = True, shot.frontier + 1, end
        self.budget = max(0, allowed - under_way - gaps)
        self.opened = under_way
        # Not at every step: a measurement walks over what is not done.
        self.after = max(1, allowed // 8)

    def _end(self, shot: Snapshot, allowed: int, wanted: int) -> tuple[int, int]:
        """Where starts end for now, and how many gaps of the log lie between the top and there.

        What the log does not have counts as done. Once something past such gaps is done the map has
        to tell each of them, so they take room like records. And it names only so many as not done:
        nothing behind more of them may be done.
        """
        undone = self._offsets.incomplete
        known = len(shot.not_done) + len(self._commit.claims)
        most = NOT_DONE_MAX + 1
        # Not the whole of a long backlog each time: further only where something may start there.
        offsets = list(islice(undone, min(known + allowed + 2, most)))
        if offsets and offsets[-1] < max(self.farthest, wanted + allowed):
            offsets = list(islice(undone, most))
        whole = len(offsets) in (most, len(undone))
        self.looked = self.position if whole else offsets[-1] + 1
        last = offsets[-1] if offsets and len(offsets) < len(undone) else self.position - 1
        past = offsets[bisect_right(offsets, shot.top) :]
        end, gaps = self._gaps(past, allowed // 2)
        return (max(last, shot.top) + 1 if end is None else end), gaps

    def _gaps(self, offsets: Sequence[int], most: int) -> tuple[int | None, int]:
        """The record behind one gap too many, if there is one, and how many lie before it."""
        gaps = 0
        if not offsets or offsets[-1] - offsets[0] == len(offsets) - 1:
            return None, gaps
        for before, after in pairwise(offsets):
            if after - before > 1:
                if gaps >= most and after > self.farthest:
                    return after, gaps
                gaps += 1
        return None, gaps
