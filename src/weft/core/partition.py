"""One partition epoch: which offsets are done, and which records wait in which lane.

The ledger is one dictionary of the offsets that were received and are not done. Offsets come in
ascending order and a dictionary keeps that order, so its first key is the frontier, and a gap
(compaction, transaction markers) needs no thought: what was never received is never waited for.

A lane is a chain of records linked by `Work.next`; only its tail is in `lanes`. The head is in
`ready`, or in flight, or waiting for a retry: exactly one of these, which is the key order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from weft.core import charge, intake, states
from weft.core.intake import WHOLE
from weft.core.spec import KEY, UNORDERED
from weft.core.work import LaneKey, Work
from weft.types import Record

if TYPE_CHECKING:
    from weft.core.effects import PlanItem
    from weft.core.handler import Handler


class Snapshot(NamedTuple):
    """Frontier, top and holes of one partition, taken together."""

    frontier: int
    #: the highest offset that is done; frontier - 1 when nothing beyond the frontier is
    top: int
    #: ascending offsets in [frontier, top) that are not done
    not_done: list[int]


class Partition:
    """One assignment of one partition to this member. A new assignment is a new object."""

    __slots__ = (
        "blocked_bytes",
        "blocked_records",
        "bytes",
        "claims",
        "commit_at",
        "commit_sequence",
        "commit_state",
        "committed",
        "crowded",
        "dirty",
        "epoch",
        "expected",
        "far",
        "handler",
        "held",
        "in_flight",
        "incomplete",
        "intake_paused",
        "lag_end",
        "lanes",
        "listed",
        "map_chars",
        "map_limit",
        "map_stored",
        "measure_at_top",
        "measured_frontier",
        "number",
        "parked",
        "position",
        "predecessors",
        "ready",
        "restored_top",
        "retrying",
        "running_marked",
        "sending",
        "sent_plan",
        "slotless",
        "start_limit",
        "startable",
        "state",
        "top",
        "topic",
        "user_paused",
    )

    def __init__(
        self,
        topic: str,
        number: int,
        epoch: int,
        handler: Handler,
        start: int,
        restored_top: int | None = None,
        restored_not_done: Sequence[int] = (),
    ) -> None:
        self.topic = topic
        self.number = number
        #: counts the assignments of this member; the fence in every answer that comes back
        self.epoch = epoch
        self.handler = handler
        self.state = states.OPEN
        self._begin_ledger(start, restored_top, restored_not_done)
        self._begin_lanes()
        self._begin_counts()
        self._begin_commit(start)

    def _begin_ledger(self, start: int, restored_top: int | None, not_done: Sequence[int]) -> None:
        #: received and not done: offset -> Work; None for one the restored map says is not done
        #: and that has not been fetched again yet
        self.incomplete: dict[int, Work | None] = dict.fromkeys(not_done)
        #: those None entries, ascending; pruned as the polls pass them
        self.expected: deque[int] = deque(not_done)
        #: the highest offset that is done
        self.top = start - 1 if restored_top is None else restored_top
        #: up to here the restored map knows what is done
        self.restored_top = self.top
        #: the offset after the last one polled (or known to be a gap)
        self.position = start

    def _begin_lanes(self) -> None:
        #: lane key -> the last record of that lane
        self.lanes: dict[LaneKey, Work] = {}
        #: heads of lanes that may start, oldest first
        self.ready: deque[Work] = deque()
        #: ready, but past `start_limit`: a heap by offset
        self.far: list[tuple[int, Work]] = []
        #: lanes in which an attempt of an earlier epoch still runs -> their waiting head
        self.held: dict[LaneKey, Work | None] = {}
        #: running in one batch with the record before it in its lane -> that record
        self.predecessors: dict[Work, Work] = {}
        #: True while it stands in its handler's rotation
        self.listed = False
        #: False while nothing of it may start (revoking, closed, paused by the user)
        self.startable = True
        self.user_paused = False

    def _begin_counts(self) -> None:
        self.in_flight = 0
        self.sending = 0
        self.retrying = 0
        self.parked = 0
        self.bytes = 0
        #: held in lanes with a failing record; part of `bytes` and of `incomplete`
        self.blocked_records = 0
        self.blocked_bytes = 0
        self.intake_paused = False
        #: end of the log, as last heard of; -1 when not known
        self.lag_end = -1

    def _begin_commit(self, start: int) -> None:
        #: what the broker holds for the group, as far as we know
        self.committed = -1
        #: something was done since the last commit was built
        self.dirty = False
        self.commit_state = states.IDLE
        self.commit_sequence = 0
        #: not before this time
        self.commit_at = 0.0
        #: the plan on the way to the broker, or in doubt
        self.sent_plan: PlanItem | None = None
        #: finished records whose next step waits for the next commit: at_most_once, each,
        #: exactly_once
        self.claims: list[Work] = []
        #: the last plan had no room for all claims: the next one waits for something to change
        self.crowded = False
        #: Commit(each): claims the map has no room for; they hold their lane and no slot
        self.slotless: set[Work] = set()
        #: at_most_once: marked records, which the ledger has as done, that still run
        self.running_marked: dict[int, Work] = {}
        #: records at or past this offset do not start before the map has been measured again
        self.start_limit = start
        #: measuring again is worth while once this is done, or `top` gets to that
        self.measured_frontier = -1
        self.measure_at_top = -1
        self.map_chars = 0
        #: what the broker stores; lower when it refused a map of the usual size
        self.map_limit = -1
        #: characters of the map that the broker stored last
        self.map_stored = 0

    # -- intake ----------------------------------------------------------------------------------

    def admit(self, records: Sequence[Record], sizes: Sequence[int]) -> int:
        """Take in records of one poll, ascending; how many of them are new."""
        return intake.admit(self, records, sizes)

    def advance(self, position: int) -> None:
        """The log has nothing between the last record polled and `position` (markers, gaps)."""
        if position > self.position:
            intake.prune_expected(self, position)
            self.position = position
            self.dirty = True

    def lane_key(self, record: Record) -> LaneKey:
        """The lane of a record: its key, the whole partition, or its own offset."""
        ordering = self.handler.spec.ordering
        if ordering == KEY and record.key is not None:
            return record.key
        return record.offset if ordering in (UNORDERED, KEY) else WHOLE

    # -- done ------------------------------------------------------------------------------------

    def finish(self, work: Work) -> None:
        """The record is done: it leaves the ledger, and its lane goes on."""
        offset = work.record[2]
        del self.incomplete[offset]
        if offset > self.top:  # noqa: PLR1730 - once a record: max() costs five times as much
            self.top = offset
        self.dirty = True
        self.bytes -= work.size
        work.state = states.DONE
        self.release(work)

    def settle(self, work: Work) -> None:
        """The record is done, and its lane has gone on before (claims of exactly_once)."""
        offset = work.record[2]
        del self.incomplete[offset]
        if offset > self.top:  # noqa: PLR1730 - as in `finish`
            self.top = offset
        self.dirty = True
        self.bytes -= work.size
        work.state = states.DONE

    def mark(self, work: Work) -> None:
        """at_most_once: the started-mark is stored, so for the ledger the record is done."""
        offset = work.record[2]
        del self.incomplete[offset]
        self.top = max(self.top, offset)
        work.move(states.RUNNING)
        self.running_marked[offset] = work
        self.in_flight += 1

    def unmark(self, work: Work) -> None:
        """at_most_once: it was marked and never began, so the mark is taken back."""
        offset = work.record[2]
        del self.running_marked[offset]
        self.incomplete[offset] = work
        self.incomplete = dict(sorted(self.incomplete.items()))
        while self.top in self.incomplete:
            self.top -= 1
        self.dirty = True

    def rejoin(self, work: Work) -> None:
        """The lane has gone on past this record (exactly_once): it goes to the lane's end."""
        if work.charge is not None:
            charge.leave(self, work, work.charge)
            work.charge = None
        work.next = None
        key = self.lane_key(work.record)
        tail = None if isinstance(key, int) else self.lanes.get(key)
        if not isinstance(key, int):
            self.lanes[key] = work
        if tail is None:
            self.ready.append(work)
            return
        tail.next = work
        if tail.charge is not None:
            charge.join(self, work, tail.charge)

    def release(self, work: Work) -> None:
        """The record leaves the head of its lane; the next one of the lane is ready."""
        if work.charge is not None:
            charge.leave(self, work, work.charge)
        following = work.next
        if self.predecessors:
            if work in self.predecessors:
                return  # an earlier record of the same batch is not done: the lane waits for it
            work, following = self._skip_finished(work)
        if following is not None:
            if following.state == states.QUEUED:  # else it is in the same batch as this one
                self.ready.append(following)
                if not self.listed:
                    self.handler.enqueue(self)
            return
        lanes = self.lanes
        if lanes:
            key = work.record[4] if self.handler.spec.ordering == KEY else WHOLE
            # A null key has no lane to remove; with charge gone the lane is forgotten whole.
            if key is not None and lanes.get(key) is work:
                del lanes[key]

    def _skip_finished(self, work: Work) -> tuple[Work, Work | None]:
        """Past records of the same batch that were done before this one, their predecessor."""
        following = work.next
        while following is not None and following in self.predecessors:
            del self.predecessors[following]
            if following.state not in (states.DONE, states.PENDING):
                break
            work, following = following, following.next
        return work, following

    def mate_runs(self, work: Work) -> bool:
        """A later record of its lane is still in the batch call that this one was in."""
        following = work.next
        while following is not None and following in self.predecessors:
            if following.state == states.RUNNING:
                return True
            following = following.next
        return False

    # -- what is known ---------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Records held in memory that are not done."""
        return len(self.incomplete) - len(self.expected)

    @property
    def frontier(self) -> int:
        """The lowest offset not yet done."""
        first = next(iter(self.incomplete), None)
        return max(self.position, self.top + 1) if first is None else first

    def snapshot(self, claims: Sequence[Work] | None = None) -> Snapshot:
        """Frontier, top and holes together; these claims (or all) count as done."""
        claimed = {work.record[2] for work in (self.claims if claims is None else claims)}
        top = max(claimed, default=self.top)
        top = max(self.top, top)
        not_done = self._not_done_to(top)
        if claimed:
            not_done = [offset for offset in not_done if offset not in claimed]
        frontier = not_done[0] if not_done else max(self.position, top + 1)
        top = max(top, frontier - 1)
        del not_done[bisect_left(not_done, top) :]
        return Snapshot(frontier, top, not_done)

    def _not_done_to(self, top: int) -> list[int]:
        """Offsets not done, up to the first one past `top`, that one included.

        Past, not at: `top` itself is in the ledger while it is a claim, and the frontier must
        still find what comes after it.
        """
        # In chunks: most of the ledger is records behind `top` that have not started yet.
        offsets: list[int] = []
        following = iter(self.incomplete)
        while chunk := list(islice(following, 1024)):
            offsets += chunk
            if chunk[-1] > top:
                del offsets[bisect_right(offsets, top) + 1 :]
                break
        return offsets

    def __repr__(self) -> str:
        return f"<Partition {self.topic}[{self.number}] epoch {self.epoch}>"
