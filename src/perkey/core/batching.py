"""Batches: records of one handler gathered into one call.

Theory of operation. Each group of a handler (`Batch(by=...)`) has at most one open batch::

    heads ──_join──► Gathering(due, room, works) ──_start──► Call ──► handler
                        ▲                                      │
    behind them ────────┘ _extend                              └ failed as one: halves, each of
                                                                 its own group (key, size)

- A head that may start joins the open batch of its group: it has left `ready` and is QUEUED.
- A batch starts when it is full, or `linger_s` after its first record was ready. Before it starts,
  the records behind its heads join too, so that it holds as many lanes as there are, in order.
- Records that may not start after all (paused, revoked, the map is full) go back: only the head of
  each lane, because what follows it never left the chain.
- A batch has one slot, from its start to the end of its call.

A failed batch with a common acknowledgement is tried again in halves: its records carry the maximum
size of their next batch, down to one, and only alone can a record be exhausted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from perkey.core import states
from perkey.core.work import Call

if TYPE_CHECKING:
    from perkey.core.endings import Endings
    from perkey.core.engine_state import EngineState
    from perkey.core.events import Ended
    from perkey.core.partition import Partition
    from perkey.core.scheduling import Handler
    from perkey.core.work import LaneKey, Work

_ALWAYS = float("inf")
Lane = tuple["Partition", "LaneKey"]


@dataclass(slots=True, eq=False)
class Gathering:
    """An open batch."""

    due: float
    room: int
    works: list[Work] = field(default_factory=list)


Groups = dict[Hashable, Gathering]


def _lane(work: Work) -> Lane:
    return (work.partition, work.partition.lanes.key_of(work.record))


def _order(works: Sequence[Work]) -> dict[Work, Work]:
    """Each record of a call that follows another one of its lane -> that one."""
    last: dict[Lane, Work] = {}
    order: dict[Work, Work] = {}
    for work in works:
        lane = _lane(work)
        if isinstance(lane[1], int):
            continue
        if lane in last:
            order[work] = last[lane]
        last[lane] = work
    return order


class Batching:
    """Gathers batches, starts them, and handles their ends."""

    def __init__(self, state: EngineState, endings: Endings) -> None:
        self._state = state
        self._endings = endings
        self._open: list[Groups] = state.open_batches
        #: the open batches by their latest start; entries of started ones are stale
        self._lingering: list[list[tuple[float, int, Hashable, Gathering]]] = [
            [] for _ in state.handlers
        ]
        self._order = count()  # equal times keep their order of arrival
        #: handlers that got records since their open batches were last checked
        self._grown: set[Handler] = set()

    # -- gathering -------------------------------------------------------------------------------

    def arrived(self, handler: Handler) -> None:
        """More records arrived: they may fill a batch that has their lanes."""
        if handler.batched:
            self._grown.add(handler)

    def fill(self, handler: Handler) -> None:
        """Start batches that have lingered, gather ready records, start batches that are full."""
        groups = self._open[handler.index]
        # The longest waiting ones first: otherwise records that fail without a delay would take
        # every slot before the others' linger is over.
        self._start_lingered(handler, groups)
        joined: dict[Hashable, None] = {}
        spec = handler.spec.batch
        assert spec is not None
        while handler.slots.free > 0 and handler.rotation:
            works = handler.take(self._state.now, spec.max_records)
            if not works:
                break
            for work in works:
                joined[self._join(handler, groups, work)] = None
        if handler in self._grown:
            self._grown.discard(handler)
            joined = dict.fromkeys(groups)
        for key in joined:  # start full batches, as far as there are slots
            while handler.slots.free > 0 and key in groups:
                self._extend(groups[key])
                if len(groups[key].works) < groups[key].room:
                    break
                self._start(handler, groups, key)
        self._start_lingered(handler, groups)

    def _start_lingered(self, handler: Handler, groups: Groups) -> None:
        """Start batches that waited long enough, the longest first; all of them during a stop."""
        heap = self._lingering[handler.index]
        now = self._state.now if self._state.stop_mode is None else _ALWAYS
        while heap and handler.slots.free > 0 and heap[0][0] <= now:
            entry = heappop(heap)
            key, gathering = entry[2], entry[3]
            if groups.get(key) is gathering:  # otherwise it started, or its epochs ended
                self._start(handler, groups, key)
                if groups.get(key) is gathering:
                    heappush(heap, entry)

    def _join(self, handler: Handler, groups: Groups, work: Work) -> Hashable:
        """Add a head to the open batch of its group; returns the group."""
        spec = handler.spec.batch
        assert spec is not None
        key, room, linger_s = self._group(work), spec.max_records, spec.linger_s
        if work.failure is not None and work.failure.batch_max:
            # A part of a failed batch: it waits for no others and mixes with no fresh ones.
            room, linger_s = work.failure.batch_max, 0.0
            key = (key, room)
        gathering = groups.get(key)
        if gathering is None:
            gathering = groups[key] = Gathering(self._state.now + linger_s, room)
            entry = (gathering.due, next(self._order), key, gathering)
            heappush(self._lingering[handler.index], entry)
        gathering.works.append(work)
        if len(gathering.works) >= room and handler.slots.free > 0:
            self._start(handler, groups, key)
        return key

    def _group(self, work: Work) -> Hashable:
        spec = work.partition.handler.spec.batch
        assert spec is not None
        if spec.by == "partition" or (work.partition.handler.exact and spec.by is None):
            # exactly_once: outputs are shared by the whole batch. If one of two partitions is
            # revoked they could neither be sent (the new owner repeats its half) nor left out.
            return work.partition
        if spec.by == "key":
            # Regardless of the ordering; records without a key share no group.
            key = work.record.key
            return _lane(work) if key is None else (work.partition, key)
        return None

    def _parts(self, work: Work, following: Work) -> bool:
        """Whether one lane (a whole partition) is split into several batches here: `by="key"`."""
        same = work.record.key == following.record.key
        return not same and self._group(work) != self._group(following)

    def _extend(self, gathering: Gathering) -> None:
        """Let the records behind the gathered ones join, lane by lane, while there is room."""
        if len(gathering.works) >= gathering.room:
            return
        joined = set(gathering.works)
        for work in list(gathering.works):
            following = work.next
            while following is not None and len(gathering.works) < gathering.room:
                if not following.partition.may_start(following, {}, spend=False):
                    break
                if self._parts(work, following):
                    break
                if following.partition.knows(following, self._state.now):
                    break  # its turn has to come first
                if following.state in (states.DONE, states.PENDING):  # before the record in front
                    following = following.next
                    continue
                if following.state != states.QUEUED:
                    break  # being sent or tried again: the records behind it wait
                if following not in joined:
                    joined.add(following)
                    gathering.works.append(following)
                following = following.next

    # -- starting --------------------------------------------------------------------------------

    def _start(self, handler: Handler, groups: Groups, key: Hashable) -> None:
        gathering = groups[key]
        self._extend(gathering)
        # No slot was free while more arrived: the rest forms the next batch.
        chosen, rest = gathering.works[: gathering.room], gathering.works[gathering.room :]
        works, went_back = self._still_startable(chosen)
        # Records behind a head that went back follow it.
        gathering.works = [w for w in rest if _lane(w) not in went_back] if went_back else rest
        if not gathering.works:
            del groups[key]
        if not works:
            return
        handler.slots.take()
        call = Call(_order(works))
        for work in works:
            work.call = call
        if handler.outages:
            self._state.outages.began(handler, works[0])
        self._state.deliveries[handler.index].start_together(handler, works)

    def _still_startable(self, chosen: list[Work]) -> tuple[list[Work], set[Lane]]:
        """Those that may still start: not of paused or revoked partitions, or of a full map."""
        works: list[Work] = []
        went_back: set[Lane] = set()
        started: set[Lane] = set()
        looked: dict[Partition, None] = {}
        for work in chosen:
            partition = work.partition
            if work.state != states.QUEUED:
                continue
            lane = _lane(work)
            may = not partition.gate.reasons and lane not in went_back
            if may and partition.may_start(work, looked, works):
                works.append(work)
                started.add(lane)
            elif lane not in went_back:  # the head goes back; what follows it never left
                went_back.add(lane)
                if lane in started:
                    continue
                if partition.gate.reasons:
                    partition.lanes.put_back([work])
                else:
                    partition.handler.put_far(work)
        return works, went_back

    def next_due(self, handler: Handler) -> float | None:
        """When the next open batch has lingered long enough, if a slot is free for it."""
        heap, groups = self._lingering[handler.index], self._open[handler.index]
        while heap and groups.get(heap[0][2]) is not heap[0][3]:
            heappop(heap)
        return heap[0][0] if heap and handler.slots.free > 0 else None

    def waiting(self) -> bool:
        """Whether an open batch has records."""
        return any(
            work.state == states.QUEUED and not work.partition.gate.reasons
            for groups in self._open
            for gathering in groups.values()
            for work in gathering.works
        )

    def take_out(self, work: Work) -> bool:
        """Remove a record, and those behind it in its lane, from its open batch, if any.

        True if it was the first of its lane: it is nowhere else now.
        """
        groups = self._open[work.partition.handler.index]
        for key, gathering in list(groups.items()):
            if work in gathering.works:
                mates = [mate for mate in gathering.works if _lane(mate) == _lane(work)]
                gone = set(mates[mates.index(work) :])
                gathering.works = [mate for mate in gathering.works if mate not in gone]
                if not gathering.works:
                    del groups[key]
                return work is mates[0]
        return False

    def forget(self, partition: Partition) -> None:
        """The epoch ended: its records leave the open batches."""
        groups = self._open[partition.handler.index]
        for key, gathering in list(groups.items()):
            gathering.works = [work for work in gathering.works if work.partition is not partition]
            if not gathering.works:
                del groups[key]

    # -- the end of a call -------------------------------------------------------------------------

    def ended(
        self,
        handler: Handler,
        done: Sequence[Work],
        ended: Sequence[Ended],
        *,
        whole: bool,
    ) -> None:
        """A batch call is over; `whole`: it failed as one and is tried in halves."""
        self._endings.done(done)
        handler.slots.give()
        handler.good_calls += not whole
        for ending in ended:
            self._endings.batch_member(ending, batch_failed=len(ended) if whole else 0)
        self._state.retries.batches_moved(self._state.now)
