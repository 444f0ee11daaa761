"""What an epoch remembers of single records that are not done: the rider of its commits.

Theory of operation. A commit has frontier and map, and behind the map what is known of the first
records that fail, are parked or held (weft/codec/rider.py). The next owner of the partition begins
them with that::

    assigned ─► `Remembered` ──fetched──► Work ──done──► forgotten (found out by `entries`)
                                            ▲
                a first failure, a hold ────┘ `keep`

An epoch has no such entry mostly, and then costs nothing. Nothing is removed when a record is done:
`entries` passes over it, and drops what is gone once that is most of what is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from math import ceil
from typing import TYPE_CHECKING

from weft.codec import Remembered
from weft.codec.rider import least_bytes
from weft.core import states
from weft.core.holds import HOLD_MAX_S
from weft.core.retries import DELAY_MAX_S
from weft.policies import PARKED_S_MAX

if TYPE_CHECKING:
    from weft.core.work import LaneKey, Work

#: More have no room in the 4,096 characters of a commit: an entry takes three bytes at least.
ENTRIES_MAX = 1_024
GONE = (states.DONE, states.SUPERSEDED)


class Memory:
    """What one epoch remembers."""

    __slots__ = (
        "_known", "_order", "_sorted", "barred", "changed", "on", "released", "shed", "unseen",
        "waiting",
    )  # fmt: skip

    def __init__(self, remembered: Sequence[Remembered] = (), *, on: bool = True) -> None:
        #: False: nothing is remembered (`Retry(remember=False)`, at_most_once)
        self.on = on
        kept = remembered if on else ()
        #: by offset: as it came with the commit, then the record
        self._known: dict[int, Remembered | Work] = {one.offset: one for one in kept}
        #: these offsets; ascending while `_sorted`, else sorted again by the next `entries`
        self._order = [one.offset for one in kept]
        self._sorted = True
        #: so many have not been fetched again
        self.waiting = len(self._known)
        #: a commit would contain something else of them
        self.changed = False
        #: so many the last plan had no room for
        self.shed = 0
        #: of these, so many at most that the last one did not look at
        self.unseen = 0
        #: the broker takes no more than the map
        self.barred = False
        #: lanes that were released while something was waited for: what comes of them is not held
        self.released: set[LaneKey] = set()

    def __bool__(self) -> bool:
        return bool(self._known)

    def keep(self, work: Work) -> None:
        """The record failed, or is held: the next commit contains it."""
        if not self.on:
            return
        offset = work.record[2]
        if offset not in self._known:
            self._sorted = self._sorted and (not self._order or self._order[-1] < offset)
            self._order.append(offset)
        self._known[offset] = work
        self.changed = True

    def forget(self, offset: int) -> None:
        """It starts over in the next epoch."""
        if self._known.pop(offset, None) is not None:
            self._sorted = False  # not removed one by one: thousands are released at once
            self.changed = True

    def expect(self, offset: int) -> Remembered | None:
        """A record that is kept as an offset is parked from now on; what was known of it before."""
        known = self._known.get(offset)
        before = known if isinstance(known, Remembered) else None
        if not self.on:
            return before
        if known is None:
            self._order.append(offset)
            self._sorted = False
        self.waiting += before is None
        one = before or Remembered(offset, 0)
        by = one.exhausted_by or "policy"
        self._known[offset] = one._replace(parked=True, held=False, exhausted_by=by, until_s=None)
        self.changed = True
        return before

    def unexpect(self, offset: int, before: Remembered | None) -> None:
        """It is not, after all."""
        if before is None:
            self.start_over(offset)
        elif isinstance(self._known.get(offset), Remembered):
            self._known[offset] = before
            self.changed = True

    def waits_for(self, offset: int) -> bool:
        """Whether something is known of a record that was not fetched yet."""
        return isinstance(self._known.get(offset), Remembered)

    def start_over(self, offset: int) -> bool:
        """A record that was not fetched yet begins as a new one; False: nothing was known of it."""
        known = self.waits_for(offset)
        if known:
            self.forget(offset)
            self.waiting -= 1
        return known

    def release(self, key: LaneKey) -> None:
        """Nothing of this lane that is still to come is held; an entry has no key to look for."""
        if self.waiting:
            self.released.add(key)

    def unless_released(self, known: Remembered, key: LaneKey) -> Remembered:
        """What is remembered of a record of this lane."""
        if known.held and key in self.released:
            return known._replace(held=False, until_s=None)
        return known

    def fetched(self, offset: int) -> Remembered | None:
        """What is remembered of the record that just came in; it is not waited for any more."""
        found = self._known.get(offset)
        if not isinstance(found, Remembered):
            return None
        self.waiting -= 1
        return found

    def entries(
        self,
        position: int,
        claimed: Collection[int],
        now: float,
        wall_s: float,
        away: Container[int] = (),
        bytes_max: int = ENTRIES_MAX * 16,
    ) -> list[Remembered]:
        """The entries of a commit, ascending; what is `claimed` is done in it.

        At most one more than `bytes_max` has room for: `unseen` is how many were not looked at.

        `position`: what is before it and was not fetched the log has no more, but what is `away`.
        """
        if not self._sorted:
            self._order = sorted(self._known)
            self._sorted = True
        found: list[Remembered] = []
        gone, taken, self.unseen = 0, 0, 0
        for place, offset in enumerate(self._order, 1):
            entry = self._known[offset]
            if isinstance(entry, Remembered):
                shown = entry if offset >= position or offset in away else None
                gone += shown is None
            elif entry.state in GONE:
                shown = None
                gone += 1
            else:
                shown = None if offset in claimed else _entry(entry, now, wall_s)
            if shown is None:
                continue
            found.append(shown)
            taken += least_bytes(shown)
            if taken > bytes_max or len(found) == ENTRIES_MAX:
                self.unseen = len(self._order) - place
                break
        if gone > len(found):
            live = {}
            for offset in self._order:
                entry = self._known[offset]
                if isinstance(entry, Remembered):
                    if offset < position and offset not in away:
                        self.waiting -= 1
                        continue
                elif entry.state in GONE:
                    continue
                live[offset] = entry
            self._known, self._order = live, list(live)
        return found


def _entry(work: Work, now: float, wall_s: float) -> Remembered | None:
    """What is remembered of one record; None while that is nothing."""
    failure = work.failure
    if failure is None:
        return None
    attempts, parked = failure.attempts - failure.shared, work.state == states.PARKED
    if not (attempts or parked or failure.held or failure.exhausted_by):
        return None
    waits = parked or work.state == states.RETRYING
    until_s = ceil(failure.due + wall_s) if waits and failure.due > now else None
    return Remembered(
        work.record[2], attempts, parked, failure.held and until_s is not None,
        failure.exhausted_by, until_s, failure.error_hash,
    )  # fmt: skip


def longest_s(work: Work, known: Remembered) -> float:
    """For how long a commit, which anyone may have written, may put a record off.

    As long as what put it off can: a park, a hold, or an attempt by its policy.
    """
    if known.parked:
        return PARKED_S_MAX  # where its policy is known, it says less (`Endings._released_at`)
    retry = work.retry
    return max(HOLD_MAX_S if known.held else DELAY_MAX_S, retry.delay_max_s * (1.0 + retry.jitter))
