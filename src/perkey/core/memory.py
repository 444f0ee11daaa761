"""What is kept of records that wait for long: in memory their offsets, in commits their attempts.

`Shelves`: parked and held lanes keep offsets, not bytes; what is released is fetched again. Theory
of operation. A lane whose head is parked, or held, is a chain and a shelf::

    head ──next──► work ──► …          shelf: 17, 23, 40, …   offsets only, behind the whole chain
      │
      └ bare: its value and headers are not kept either

- `put_away`: a record was parked or held. Its bytes are dropped, and all records behind it of which
  nothing is known go to the shelf, as does all that arrives for this lane later (`keep_off`).
- *Wanted* is a bare head that was released, *dry* a lane whose chain is done and whose shelf is not
  empty. Both are requested from the log (`effects.Refetch`), the lowest offsets first, one request
  per partition at a time, and no more than there is room for. The frontier's record is always
  requested: everything that waits for room in the map waits for it.
- Records that arrive join their lane like polled ones. An empty shelf is removed with the lane.

So a lane is in offset order all the time, and a record is handled once: on the shelf it is like a
record that is not fetched yet.

`Memory`: a commit has frontier and map, and behind the map, as its rider, what is known of the
first records that fail, are parked or held (perkey/codec/rider.py). The next owner of the partition
starts with that::

    assigned ─► `Remembered` ──fetched──► Work ──done──► forgotten (found out by `entries`)
                                            ▲
                a first failure, a hold ────┘ `keep`

Most epochs have no such entry, and then it costs nothing. Nothing is removed when a record is done:
`entries` skips it, and drops finished records once they are most of the entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from perkey.codec import Remembered
from perkey.codec.rider import least_bytes
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import DELAY_MAX_S, HOLD_MAX_S
from perkey.core.lanes import follows
from perkey.policies import PARKED_S_MAX, Stop

if TYPE_CHECKING:
    from perkey.core.endings import Endings
    from perkey.core.engine_state import EngineState
    from perkey.core.events import HandlerSpec
    from perkey.core.lanes import Lanes
    from perkey.core.partition import Partition
    from perkey.core.work import LaneKey, Work
    from perkey.types import Record

#: measured bytes of one offset on a shelf, including its share of the partition's tables
SHELVED_BYTES = 128
#: the largest part of a member's budgets that one request takes
SHARE = 1 / 16
RECORDS_MAX = 2_000


@dataclass(slots=True, eq=False)
class Shelf:
    """The records of one lane that are kept as offsets."""

    #: number of parked or held records when it was put there
    head: Work
    offsets: deque[int] = field(default_factory=deque)
    #: their bytes
    bytes: int = 0


class Asked(NamedTuple):
    """What one request asks for in one lane."""

    key: LaneKey
    #: the bare head, if its bytes are missing
    head: Work | None
    #: the first offsets of its shelf
    offsets: list[int]
    #: about their bytes
    bytes: float

    @property
    def every(self) -> list[int]:
        """All offsets, with the head."""
        return self.offsets if self.head is None else [self.head.offset, *self.offsets]


class Shelves:
    """Records of one partition epoch that are kept as offsets, or are being read again."""

    __slots__ = ("_lanes", "_partition", "asked", "bare", "number", "wanted")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._lanes: Lanes = partition.lanes
        #: heads whose bytes are not kept -> number of these bytes
        self.bare: dict[Work, int] = {}
        #: of these, those that were released
        self.wanted: dict[Work, None] = {}
        #: the pending request, and the number of the last one
        self.asked: list[Asked] = []
        self.number = 0

    def __bool__(self) -> bool:
        return bool(self._lanes.shelves or self.bare)

    # -- putting away ------------------------------------------------------------------------------

    def put_away(self, work: Work) -> None:
        """The head of a lane was parked or held: keep only offsets."""
        lanes, failure = self._lanes, work.failure
        assert failure is not None
        if failure.left_lane or work in self.bare or follows(work):
            return  # its lane has continued, or waits for another one of its batch
        record, key = work.record, lanes.key_of(work.record)
        freed = max(0, work.size - failure.counted_bytes - len(record.key or b""))
        work.record = record._replace(value=None, headers=(), prefetched=None)
        self.bare[work] = freed
        self._partition.resize(work, -freed)
        if isinstance(key, int):
            return  # without a key: it orders with nothing
        shelf = lanes.shelves.get(key)
        if shelf is None:
            shelf = lanes.shelves[key] = Shelf(work)
        shelf.head = work
        for behind in reversed(lanes.cut_behind(work, key)):  # in front of later ones
            self._put(shelf, behind)
            shelf.offsets.appendleft(behind.offset)

    def keep_off(self, work: Work) -> bool:
        """The arriving record goes to its lane's shelf, if there is one."""
        key = self._lanes.key_of(work.record)
        shelf = None if isinstance(key, int) else self._lanes.shelves.get(key)
        if shelf is None:
            return False
        self._put(shelf, work)
        shelf.offsets.append(work.offset)
        return True

    def _put(self, shelf: Shelf, work: Work) -> None:
        shelf.bytes += work.size
        self._partition.bytes -= work.size
        self._partition.offsets.put_on_shelf(work.offset)
        self._charge(1)

    def _charge(self, count: int) -> None:
        self._partition.offsets.shelved += count
        self._partition.bytes += count * SHELVED_BYTES
        self._lanes.blocked_bytes += count * SHELVED_BYTES

    # -- reading again -----------------------------------------------------------------------------

    def ask(self, records_max: int, bytes_max: float) -> list[int]:
        """The offsets to read now; none while a request is pending."""
        lanes = self._lanes
        if self.asked or not (self.wanted or lanes.dry):
            return []
        wanted: Iterable[Work] = self.wanted
        dry: Iterable[LaneKey] = lanes.dry
        if records_max <= 0:  # no room: only the record that all others may wait for
            first = self._partition.frontier
            wanted = [work for work in wanted if work.offset == first]
            dry = [key for key in dry if lanes.shelves[key].offsets[0] == first]
        ordered = sorted(
            [
                *((work.offset, lanes.key_of(work.record), work) for work in wanted),
                *((lanes.shelves[key].offsets[0], key, None) for key in dry),
            ],
            key=lambda lanece: lanece[0],
        )
        if not ordered:
            return []
        for _, key, head in ordered:
            asked = self._of_lane(key, head, max(1, records_max), max(1.0, bytes_max))
            self.asked.append(asked)
            records_max -= len(asked.offsets) + (head is not None)
            bytes_max -= asked.bytes
            if records_max <= 0 or bytes_max <= 0:
                break
        self.number += 1
        return sorted(offset for lanece in self.asked for offset in lanece.every)

    def _of_lane(
        self, key: LaneKey, head: Work | None, records_max: int, bytes_max: float
    ) -> Asked:
        """As much of a lane as there is room for, at least one record."""
        shelf = None if isinstance(key, int) else self._lanes.shelves.get(key)
        size = 0.0 if head is None else self.bare[head]
        if shelf is None or not shelf.offsets:
            return Asked(key, head, [], size)
        each = max(1.0, shelf.bytes / len(shelf.offsets))
        least, most = int(head is None), records_max - (head is not None)
        count = min(most, int((bytes_max - size) / each), len(shelf.offsets))
        count = max(least, count)
        return Asked(key, head, [shelf.offsets[at] for at in range(count)], size + count * each)

    def take_back(self, work: Work, record: Record) -> None:
        """The bytes of a bare head were read again."""
        work.record = work.record._replace(value=record.value, headers=record.headers)
        self._partition.resize(work, self.bare.pop(work))

    def drop(self, work: Work) -> None:
        """It is done without its bytes."""
        self.bare.pop(work, None)

    def is_put_off(self, key: LaneKey) -> bool:
        """Whether the lane has a shelf with a parked or held record in front."""
        shelf = self._lanes.shelves.get(key)
        return shelf is not None and shelf.head.put_off

    def take_off(self, key: LaneKey, offset: int) -> bool:
        """Remove the first offset of a lane's shelf; False if it is another one by now."""
        shelf = self._lanes.shelves.get(key)
        if shelf is None or not shelf.offsets or shelf.offsets[0] != offset:
            return False
        shelf.bytes -= shelf.bytes // len(shelf.offsets)
        shelf.offsets.popleft()
        self._charge(-1)
        return True

    # -- the view ----------------------------------------------------------------------------------

    def head_of(self, offset: int) -> Work | None:
        """The record that was parked or held in front of this one; None if it is on no shelf."""
        shelves = self._lanes.shelves.values()
        return next((shelf.head for shelf in shelves if offset in shelf.offsets), None)

    def stuck(self) -> set[int]:
        """The offsets on shelves behind parked records."""
        parked = [s for s in self._lanes.shelves.values() if s.head.state == states.PARKED]
        return {offset for shelf in parked for offset in shelf.offsets}


class Returns:
    """Requests records to read again, and handles the answers."""

    def __init__(self, state: EngineState, endings: Endings) -> None:
        self._state = state
        self._endings = endings

    def ask(self) -> None:
        """For each partition with shelved records, request what is needed now, if there is room."""
        state, limits = self._state, self._state.limits
        for partition in list(state.shelving):
            lanes, shelves = partition.lanes, partition.shelves
            if not shelves:
                state.watch_shelves(partition, on=False)
            elif (shelves.wanted or lanes.dry) and not shelves.asked and not partition.gate.reasons:
                room = state.flow.room(state.partitions.values())
                most = min(RECORDS_MAX, int(limits.buffer_records * SHARE), room.records)
                most = max(1, most) if room.share > 0 else 0
                offsets = shelves.ask(most, limits.buffer_bytes * SHARE)
                if offsets:
                    state.emit(fx.Refetch(partition, shelves.number, offsets))

    def came(
        self, partition: Partition, number: int, records: Sequence[Record], sizes: Sequence[int]
    ) -> None:
        """A request is answered; requested records that are missing no longer exist in the log."""
        shelves, lanes = partition.shelves, partition.lanes
        if partition.state == states.CLOSED or number != shelves.number or not shelves.asked:
            self._state.count("late_refetches")
            return
        fetched = {record[2]: (record, size) for record, size in zip(records, sizes, strict=True)}
        asked, shelves.asked = shelves.asked, []
        gone = 0
        for key, head, offsets, _ in asked:
            if head is not None and head in shelves.bare:
                gone += self._head(partition, head, fetched.get(head.offset))
            for offset in offsets:
                known = fetched.get(offset)
                waits = known is not None and shelves.is_put_off(key)
                if waits or not shelves.take_off(key, offset):
                    break  # parked or held meanwhile: something is in front of it
                gone += known is None
                if known is None:
                    partition.offsets.gone(offset)
                else:
                    work = partition.offsets.back(*known, partition)
                    partition.bytes += work.size
                    lanes.join([work])
            lanes.dry.pop(key, None)
            lanes.look(key)
        partition.handler.enlist(partition)
        if gone:
            self._state.count("parked_records_gone", gone)
            self._state.note(
                "warning",
                "parked records are not in the log any more: retention or compaction deleted them",
                topic=partition.topic, partition=partition.number, records=gone,
            )  # fmt: skip

    def _head(self, partition: Partition, head: Work, known: tuple[Record, int] | None) -> bool:
        """A released head has its bytes again; True if the log does not have it any more."""
        if known is None and head.state != states.PARKED:
            self._endings.lost(head)
            return True
        if known is not None and head.state == states.BYTES:
            partition.shelves.take_back(head, known[0])
            partition.lift(head)
            self._endings.turn_comes(head)
        return False  # otherwise it was parked or held again: requested when it is released


# -- what commits remember -------------------------------------------------------------------------

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
        self._known: dict[int, Remembered | Work] = {entry.offset: entry for entry in kept}
        #: these offsets; ascending while `_sorted`, otherwise the next `entries` sorts them
        self._order = [entry.offset for entry in kept]
        self._sorted = True
        #: of how many records the turn has not come yet
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

    def waits_for(self, offset: int) -> bool:
        """Whether something is known of a record whose turn has not come."""
        return isinstance(self._known.get(offset), Remembered)

    def puts_off(self, offset: int, spec: HandlerSpec) -> bool:
        """Whether a record whose turn has not come will have to wait then."""
        known = self._known.get(offset)
        if not isinstance(known, Remembered):
            return False
        return known.parked or known.until_s is not None or bool(used_up_by(known, spec))

    def let_go(self, offset: int, spec: HandlerSpec) -> None:
        """Such a record does not wait; one whose attempts were used up starts over."""
        known = self._known.get(offset)
        if not isinstance(known, Remembered):
            return
        if known.parked or used_up_by(known, spec):
            self.start_over(offset)
        else:
            self._known[offset] = known.without_wait()
            self.changed = True

    def start_over(self, offset: int) -> bool:
        """Forget the entry of such a record; False if there is none."""
        known = self.waits_for(offset)
        if known:
            self.forget(offset)
            self.waiting -= 1
        return known

    def hold_until(self, offset: int, until_s: float) -> bool:
        """A record whose turn has not come is held, in UNIX seconds; False if nothing is known."""
        known = self._known.get(offset)
        if not isinstance(known, Remembered):
            return False
        if not known.parked:
            until_s = max(ceil(until_s), known.until_s or 0)
            self._known[offset] = known._replace(held=True, until_s=until_s)
            self.changed = True
        return True

    def release(self, key: LaneKey) -> None:
        """End the holds of this lane's records that are still to come; entries have no keys."""
        if self.waiting:
            self.released.add(key)

    def unless_released(self, known: Remembered, key: LaneKey) -> Remembered:
        """The entry of a record of this lane, without a hold that was released."""
        if known.held and key in self.released:
            return known.without_wait()
        return known

    def recall(self, offset: int) -> Remembered | None:
        """The entry of a record whose turn has come; it is not waited for any more."""
        known = self._known.get(offset)
        if not isinstance(known, Remembered):
            return None
        self.waiting -= 1
        return known

    def entries(
        self,
        position: int,
        claimed: Collection[int],
        now: float,
        wall_s: float,
        fetched: Container[int] = (),
        bytes_max: int = ENTRIES_MAX * 16,
    ) -> list[Remembered]:
        """The entries of a commit, ascending, without records that are `claimed`: those are done.

        At most one more than fits into `bytes_max`: `unseen` is how many were not checked.

        `position`: entries before it that are not in `fetched` no longer exist in the log.
        """
        if not self._sorted:
            self._order = sorted(self._known)
            self._sorted = True

        def is_gone(offset: int, entry: Remembered | Work) -> bool:
            if isinstance(entry, Remembered):
                return offset < position and offset not in fetched
            return entry.state in GONE

        shown_entries: list[Remembered] = []
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
            shown_entries.append(entry)
            taken += least_bytes(entry)
            if taken > bytes_max or len(shown_entries) == ENTRIES_MAX:
                self.unseen = len(self._order) - place
                break
        if gone > len(shown_entries) or (gone and self.waiting):
            before, self._order = self._order, []
            for offset in before:
                if is_gone(offset, self._known[offset]):
                    self.waiting -= isinstance(self._known.pop(offset), Remembered)
                else:
                    self._order.append(offset)
        return shown_entries


def _entry(work: Work, now: float, wall_s: float) -> Remembered | None:
    """The entry of one record; None while there is nothing to remember."""
    failure = work.failure
    if failure is None:
        return None
    attempts, parked = failure.attempts - failure.shared, work.state == states.PARKED
    waits, held, due = work.state in states.REMEMBERED, work.state == states.HELD, failure.due
    if work.state == states.QUEUED and (by := work.partition.held_by(work, now)) is not None:
        waits, held, due = True, True, by.until  # from when its turn comes
    # The time of a parked record that is over is kept: without one it would begin again.
    has_end = due > now or (parked and failure.ticket >= 0)
    until_s = ceil(due + wall_s) if waits and has_end else None
    # A failed batch costs its records no attempt, but has the time of the next one.
    if not (attempts or parked or held or failure.exhausted_by or until_s is not None):
        return None
    return Remembered(
        work.offset, attempts, parked, held and until_s is not None,
        failure.exhausted_by, until_s, failure.error_hash,
    )  # fmt: skip


def used_up_by(known: Remembered, spec: HandlerSpec) -> str:
    """How the attempts of a remembered record were used up (`codec.rider.EXHAUSTED_BY`), or ""."""
    if known.parked:
        return known.exhausted_by
    if isinstance(spec.on_exhausted, Stop):
        return ""  # after a fix and a restart it must be tried again
    allowed = spec.retry.attempts
    used_up = allowed is not None and known.attempts >= allowed
    return known.exhausted_by or ("attempts" if used_up else "")


def longest_s(work: Work, known: Remembered) -> float:
    """For how long a commit, which any client may have written, may delay a record.

    At most as long as its cause could: a park, a hold, or a retry by its policy.
    """
    if known.parked:
        return PARKED_S_MAX  # its policy, once known, may be shorter (`Endings._released_at`)
    retry = work.retry
    return max(HOLD_MAX_S if known.held else DELAY_MAX_S, retry.delay_max_s * (1.0 + retry.jitter))
