"""Which offsets of one partition epoch are done.

One dictionary holds the offsets that were received and are not done. Offsets arrive in ascending
order and a dictionary keeps that order, so its first key is the frontier, and a gap (compaction,
transaction markers) needs no special case: an offset that never arrives is never waited for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from weft.core.work import Work
from weft.types import Record


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
        #: how many were received and are kept as offsets only (shelves.py)
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
