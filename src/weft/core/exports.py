"""A parked lane that goes to the topic of `Park(export=...)`; valve.py decides which and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core import states
from weft.core.work import Failure

if TYPE_CHECKING:
    from weft.codec import Remembered
    from weft.core.engine_state import EngineState
    from weft.core.partition import Partition
    from weft.core.work import LaneKey, Work


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


def under_export(partition: Partition, key: LaneKey | None, offset: int | None) -> bool:
    """Whether a lane, or a record, is being exported."""
    if offset is None:
        return key in partition.exports
    return any(export.has(offset) for export in partition.exports.values())


def is_exported(work: Work) -> bool:
    """Whether the record is being exported."""
    exports = work.partition.exports
    return bool(exports) and under_export(work.partition, None, work.offset)


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
