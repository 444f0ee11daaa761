"""The pressure valve of `Park(export=...)`: parked lanes are dead-lettered before they cost more.

Theory of operation. A lane is taken, the oldest first, while the taken share of the map is at least
`at_map` (`Reach.taken_without`, which counts lanes being exported as done), or when its head has
been parked for `after_s`. The records in the lane at that time, and no later ones (`Export`), go to
the topic, one after the other::

    head PARKED ──its next one is parked──► bytes are here ──► SENDING ──► DONE
                                                 ▲                           │ the next one is head
      QUEUED, bare: read from the log again ─────┘     PARKED ◄──────────────┘

A record is sent only after the next one is parked, and so remembered by every commit from then on:
after a crash the next owner finds the rest of the lane parked, and handles none of it. A refused
letter ends the export of its lane, and none is taken for `REFUSED_S`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.commands import hold_of
from perkey.core.lanes import follows
from perkey.core.work import USED_UP, Failure
from perkey.types import ErrorInfo

if TYPE_CHECKING:
    from perkey.codec import Remembered
    from perkey.core.effects import ExportReason
    from perkey.core.endings import Endings
    from perkey.core.engine_state import EngineState
    from perkey.core.partition import Partition
    from perkey.core.work import LaneKey, Work

FINISHED = (states.DONE, states.PENDING, states.SUPERSEDED)


class Export:
    """One lane that is exported."""

    __slots__ = (
        "came", "expected", "first", "head", "key", "known", "left", "parked", "sent", "topic",
        "why",
    )  # fmt: skip

    def __init__(self, key: LaneKey, topic: str, why: str, head: Work, left: list[int]) -> None:
        self.key = key
        self.topic = topic
        #: as text, for views
        self.why = why
        self.first = left[0]
        #: the next record; None while only its offset is known, or none remains
        self.head: Work | None = head
        #: offsets that were not sent, in the order of the lane
        self.left = dict.fromkeys(left)
        #: the last record that was sent
        self.sent: Work | None = None
        #: the record that was parked only to be sent next
        self.parked: Work | None = None
        #: how its attempts had been used up, or ""; None: it was not restored as exhausted
        self.came: str | None = None
        #: the same for a record that is kept as an offset, and what was remembered of it before
        self.expected = -1
        self.known: Remembered | None = None

    def accept(self, work: Work) -> bool:
        """Take the record that arrived as the next to park and send; False: it is another one."""
        offset = work.offset
        head = self.head
        over = head is None or (head.state in FINISHED and behind(head) is None)
        if offset not in self.left or not (over or offset == self.expected):
            return False
        if over:
            self.head = work
        self.parked, self.came = work, None
        return True

    def has(self, offset: int) -> bool:
        """Whether it is exported with the lane, or being sent."""
        return offset in self.left or (self.sent is not None and self.sent.offset == offset)


def behind(work: Work) -> Work | None:
    """The next unfinished record of its lane."""
    if work.failure is not None and work.failure.left_lane:
        return None
    following = work.next
    while following is not None and following.state in FINISHED:
        following = following.next
    return following


def park_with_lane(state: EngineState, work: Work) -> None:
    """Park a queued record behind one that is exported."""
    failure = work.failure = work.failure or Failure(state.texts)
    failure.exhausted_by = failure.exhausted_by or "policy"
    failure.due = state.now
    work.partition.charge_failure(work, failure)
    work.partition.park(work)


def wait_with_lane(state: EngineState, work: Work, came: str) -> None:
    """It is not exported after all, and waits as it arrived, behind the parked record."""
    partition, failure = work.partition, work.failure
    assert failure is not None
    partition.unpark(work)
    failure.exhausted_by = came
    partition.retry(work, held=failure.held_until > state.now)
    state.retries.add(max(state.now, failure.own_due, failure.held_until), work)


def unpark_with_lane(work: Work) -> None:
    """It is not exported after all, and waits behind the parked record."""
    partition, failure = work.partition, work.failure
    assert failure is not None
    failure.exhausted_by = ""
    partition.unpark(work)
    partition.lanes.behind.discard(work)
    if failure.error is None:
        partition.resize(work, -failure.charged)
        partition.memory.forget(work.offset)
        work.failure = None


# -- taking and sending ----------------------------------------------------------------------------

LOOK_S = 0.1  # interval of checks of parked records
AGAIN_S = 1.0  # delay before a lane is tried again that could not be taken at its time
REFUSED_S = 30.0  # pause after a refused letter
#: most lanes of one partition that are exported together; no more behind this many records
LANES_MAX = 100
RECORDS_MAX = 10_000


class Valve:
    """Takes parked lanes and has them dead-lettered."""

    def __init__(self, state: EngineState, endings: Endings) -> None:
        self._state = state
        self._endings = endings
        self._look_at = 0.0

    def run(self) -> None:
        """At the end of a turn: send what can be sent, and take lanes to export."""
        state = self._state
        for partition in list(state.exporting):
            if partition.state == states.CLOSED:
                partition.exports.clear()
            for export in list(partition.exports.values()):
                self._advance(partition, export)
            if not partition.exports:
                del state.exporting[partition]
        overdue, state.overdue = state.overdue, []
        for work in overdue:
            if work.state == states.PARKED and not self._take(work, "time", 0.0):
                state.retries.add(state.now + AGAIN_S, work)
        if state.now >= self._look_at:
            self._look_at = state.now + LOOK_S
            for partition in state.partitions.values():
                if partition.handler.valve is not None and partition.parked:
                    self._relieve(partition, partition.handler.valve.at_map)

    # -- which lanes -------------------------------------------------------------------------------

    def _relieve(self, partition: Partition, at_map: float | None) -> None:
        """Take the oldest parked lanes, until without them less than the share is taken."""
        if at_map is None or not self._may_take(partition):
            return
        claimed = {work.offset for work in partition.commit.claims}
        for export in partition.exports.values():
            claimed.update(export.left)
            if export.sent is not None:
                claimed.add(export.sent.offset)
        share = partition.taken_without(claimed)
        if share < at_map:
            return
        for work in list(partition.offsets.incomplete.values()):
            if work is None or work.state != states.PARKED:
                continue
            taken = self._take(work, "map", share)
            if taken is None:
                continue
            claimed.update(taken)
            share = partition.taken_without(claimed)
            full = len(partition.exports) >= LANES_MAX or len(claimed) >= RECORDS_MAX
            if share < at_map or full:
                return

    def _may_take(self, partition: Partition) -> bool:
        return self._may_go(partition) and self._state.now >= self._state.refused_at + REFUSED_S

    def _may_go(self, partition: Partition) -> bool:
        return partition.startable and self._state.stop_mode is None

    def _take(self, work: Work, why: ExportReason, share: float) -> list[int] | None:
        """Start to export the lane of this parked record; its offsets, None if not possible now."""
        partition, policy = work.partition, work.parked_by
        if policy is None or policy.export is None or not self._may_take(partition):
            return None
        if why == "map" and (policy.at_map is None or share < policy.at_map):
            return None
        found = _lane(partition, work)
        if found is None or len(partition.exports) >= LANES_MAX:
            return None
        key, offsets = found
        if key in partition.exports or hold_of(self._state, partition, work.record) is not None:
            return None
        topic = policy.topic_for(partition.topic)
        because = (
            f"parked for after_s={policy.after_s:g}"
            if why == "time"
            else f"{share:.0%} of the reach of its offset map was taken (at_map={policy.at_map:g})"
        )
        export = partition.exports[key] = Export(key, topic, because, work, offsets)
        self._state.exporting[partition] = None
        self._state.emit(fx.Exported(partition, tuple(offsets), topic, why, share))
        self._advance(partition, export)
        return offsets

    # -- one lane ----------------------------------------------------------------------------------

    def _advance(self, partition: Partition, export: Export) -> None:
        """Send what can be sent of the lane."""
        sent = export.sent
        if sent is not None and sent.state == states.PARKED and not partition.handler.exact:
            self._refused(partition, export, sent)
            return
        while (head := export.head) is not None and self._send(partition, export, head):
            pass  # with exactly_once the lane has continued
        if export.head is not None:
            return
        self._expect_next(partition, export)  # the expected one may no longer exist in the log
        if next((one for one in export.left if one in partition.offsets.incomplete), None) is None:
            sent = export.sent
            if sent is None or sent.state in (states.DONE, states.SUPERSEDED, states.PARKED):
                del partition.exports[export.key]
                self._look_at = 0.0

    def _refused(self, partition: Partition, export: Export, sent: Work) -> None:
        """A letter was refused: its record is parked again, and those behind it wait as before."""
        del partition.exports[export.key]
        self._state.emit(fx.ExportEnded(partition, tuple(export.left)))
        parked = export.parked
        was_parked = export.known is not None and export.known.parked
        if parked is not None and parked in partition.lanes.behind and not was_parked:
            if export.came is None:
                unpark_with_lane(parked)
            else:
                wait_with_lane(self._state, parked, export.came)
        if partition.offsets.incomplete.get(export.expected, parked) is None:
            partition.memory.unexpect(export.expected, export.known)
        self._state.put_away(sent)

    def _send(self, partition: Partition, export: Export, head: Work) -> bool:
        """Send the head of the lane, if its turn has come and its bytes are here."""
        if head.state in FINISHED:  # it no longer exists in the log
            export.left.pop(head.offset, None)
            self._next(export, head)
            return True
        failure, bare = head.failure, head in partition.shelves.bare
        assert failure is not None
        failure.exhausted_by = failure.exhausted_by or "policy"  # so commits have it as given up
        if not self._may_go(partition):
            if head.state == states.QUEUED and not bare:
                partition.park(head)
            return False
        if head.state == states.PARKED:
            if head in partition.lanes.behind or follows(head):
                return False
            self._mark_next(partition, export, head)
            partition.unpark(head)
            if bare:
                partition.shelves.want(head)
                self._state.watch_shelves(partition, on=True)
        if bare:
            return False
        self._mark_next(partition, export, head)
        del export.left[head.offset]
        export.sent = head
        self._next(export, head)
        if failure.error is None:
            with_head = f"offset {export.first} of its key was parked: exported with it"
            first = head.offset == export.first
            failure.replace(USED_UP if first else ErrorInfo("Parked", with_head))
        self._state.count("parked_records_exported")
        self._endings.send_letter(head, failure, export.topic)
        return True

    def _next(self, export: Export, head: Work) -> None:
        following = behind(head)
        export.head = following if following and following.offset in export.left else None

    def _mark_next(self, partition: Partition, export: Export, head: Work) -> None:
        """Park the next record before the head is sent."""
        following = behind(head)
        if following is None:
            self._expect_next(partition, export)
            return
        waits = following.state in (states.QUEUED, states.RETRYING)
        if not waits or following.offset not in export.left:
            return
        export.came = None
        if following.state == states.RETRYING:  # it came from the shelf, and waits
            assert following.failure is not None
            export.came = following.failure.exhausted_by
            partition.retried(following)
        partition.lanes.behind.add(following)
        park_with_lane(self._state, following)
        export.parked, export.known = following, None

    def _expect_next(self, partition: Partition, export: Export) -> None:
        """The first record kept as an offset goes next: commits remember it as parked."""
        shelf = partition.lanes.shelves.get(export.key)
        first = shelf.offsets[0] if shelf is not None and shelf.offsets else -1
        if first in export.left and first != export.expected:
            export.expected, export.known = first, partition.memory.expect(first)


def _lane(partition: Partition, head: Work) -> tuple[LaneKey, list[int]] | None:
    """The offsets of a lane that only waits behind a parked head; None for any other lane."""
    lanes, failure = partition.lanes, head.failure
    if failure is not None and failure.left_lane:
        return head.offset, [head.offset]
    key = lanes.key_of(head.record)
    if head in lanes.behind or follows(head) or key in lanes.occupied:
        return None
    offsets = []
    work: Work | None = head
    while work is not None:
        if work.state not in (states.QUEUED, states.PARKED):
            return None
        offsets.append(work.offset)
        work = behind(work)
    shelf = lanes.shelves.get(key)
    return key, offsets if shelf is None else [*offsets, *shelf.offsets]
