"""What an epoch remembers of single records that are not done: the rider of its commits.

Theory of operation. A commit has frontier and map, and behind the map what is known of the first
records that fail, are parked or held (weft/codec/rider.py). The next owner of the partition starts
with that::

    assigned ─► `Remembered` ──fetched──► Work ──done──► forgotten (found out by `entries`)
                                            ▲
                a first failure, a hold ────┘ `keep`

Most epochs have no such entry, and then it costs nothing. Nothing is removed when a record is done:
`entries` skips it, and drops finished records once they are most of the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from math import ceil
from typing import TYPE_CHECKING

from weft.codec import Remembered
from weft.codec.rider import least_bytes
from weft.core import states
from weft.core.events import DELAY_MAX_S, HOLD_MAX_S
from weft.policies import PARKED_S_MAX

if TYPE_CHECKING:
    from weft.core.work import LaneKey, Work

#: More never fit into the 4,096 characters of a commit: an entry takes at least three bytes.
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
        #: by offset: first the entry from the commit, later the record
        self._known: dict[int, Remembered | Work] = {one.offset: one for one in kept}
        #: these offsets; ascending while `_sorted`, otherwise the next `entries` sorts them
        self._order = [one.offset for one in kept]
        self._sorted = True
        #: how many have not been fetched again
        self.waiting = len(self._known)
        #: a commit would have different entries
        self.changed = False
        #: entries that the last plan had no room for
        self.shed = 0
        #: of these, at most this many that the last plan did not check
        self.unseen = 0
        #: the broker stores no more than the map
        self.barred = False
        #: lanes that were released before all their records were fetched: later ones are not held
        self.released: set[LaneKey] = set()

    def __bool__(self) -> bool:
        return bool(self._known)

    def keep(self, work: Work) -> None:
        """The record failed, or is held: the next commit contains it."""
        if not self.on:
            return
        offset = work.offset
        if offset not in self._known:
            self._sorted = self._sorted and (not self._order or self._order[-1] < offset)
            self._order.append(offset)
        self._known[offset] = work
        self.changed = True

    def forget(self, offset: int) -> None:
        """The record starts over in the next epoch."""
        if self._known.pop(offset, None) is not None:
            self._sorted = False  # not removed one by one: thousands may be released together
            self.changed = True

    def expect(self, offset: int) -> Remembered | None:
        """Remember a record that is kept as an offset as parked; returns the entry it replaces."""
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
        """Undo `expect`."""
        if before is None:
            self.start_over(offset)
        elif isinstance(self._known.get(offset), Remembered):
            self._known[offset] = before
            self.changed = True

    def waits_for(self, offset: int) -> bool:
        """Whether something is known of a record that was not fetched yet."""
        return isinstance(self._known.get(offset), Remembered)

    def start_over(self, offset: int) -> bool:
        """Forget an entry of a record that was not fetched yet; False if there is none."""
        known = self.waits_for(offset)
        if known:
            self.forget(offset)
            self.waiting -= 1
        return known

    def release(self, key: LaneKey) -> None:
        """End the holds of this lane's records that are not fetched yet; entries have no keys."""
        if self.waiting:
            self.released.add(key)

    def unless_released(self, known: Remembered, key: LaneKey) -> Remembered:
        """The entry of a record of this lane, without a hold that was released."""
        if known.held and key in self.released:
            return known._replace(held=False, until_s=None)
        return known

    def fetched(self, offset: int) -> Remembered | None:
        """The entry of the record that was just fetched; it is not waited for any more."""
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
        """The entries of a commit, ascending, without records that are `claimed`: those are done.

        At most one more than fits into `bytes_max`: `unseen` is how many were not checked.

        `position`: unfetched entries before it no longer exist in the log, except those in `away`.
        """
        if not self._sorted:
            self._order = sorted(self._known)
            self._sorted = True

        def is_gone(offset: int, entry: Remembered | Work) -> bool:
            if isinstance(entry, Remembered):
                return offset < position and offset not in away
            return entry.state in GONE

        found: list[Remembered] = []
        gone, taken, self.unseen = 0, 0, 0
        for place, offset in enumerate(self._order, 1):
            entry = self._known[offset]
            if is_gone(offset, entry):
                gone += 1
                continue
            if not isinstance(entry, Remembered):
                shown = None if offset in claimed else _entry(entry, now, wall_s)
                if shown is None:
                    continue
                entry = shown
            found.append(entry)
            taken += least_bytes(entry)
            if taken > bytes_max or len(found) == ENTRIES_MAX:
                self.unseen = len(self._order) - place
                break
        if gone > len(found):
            before, self._order = self._order, []
            for offset in before:
                if is_gone(offset, self._known[offset]):
                    self.waiting -= isinstance(self._known.pop(offset), Remembered)
                else:
                    self._order.append(offset)
        return found


def _entry(work: Work, now: float, wall_s: float) -> Remembered | None:
    """The entry of one record; None while there is nothing to remember."""
    failure = work.failure
    if failure is None:
        return None
    attempts, parked = failure.attempts - failure.shared, work.state == states.PARKED
    if not (attempts or parked or failure.held or failure.exhausted_by):
        return None
    waits = parked or work.state == states.RETRYING
    until_s = ceil(failure.due + wall_s) if waits and failure.due > now else None
    return Remembered(
        work.offset, attempts, parked, failure.held and until_s is not None,
        failure.exhausted_by, until_s, failure.error_hash,
    )  # fmt: skip


def longest_s(work: Work, known: Remembered) -> float:
    """For how long a commit, which any client may have written, may delay a record.

    At most as long as its cause could: a park, a hold, or a retry by its policy.
    """
    if known.parked:
        return PARKED_S_MAX  # its policy, once known, may be shorter (`Endings._released_at`)
    retry = work.retry
    return max(HOLD_MAX_S if known.held else DELAY_MAX_S, retry.delay_max_s * (1.0 + retry.jitter))
