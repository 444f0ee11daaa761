"""Partitions that come and go.

Every completion, acknowledgement and commit answer leads back to the `Partition` object it
belongs to. When an epoch ends its object is closed, and whatever still comes back for it is
counted and dropped: the broker itself accepts commits from a member that has just lost the
partition, so this fence is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.core import effects as fx
from weft.core import states
from weft.core.batching import Batching
from weft.core.commits import Commits
from weft.core.partition import Partition
from weft.core.plans import Plans
from weft.core.spec import EXACTLY_ONCE
from weft.core.state import EngineState
from weft.core.work import LaneKey, Work


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition that was assigned, with the place it starts from (see `starting.py`)."""

    topic: str
    partition: int
    handler: int
    start: int
    restored_top: int | None = None
    restored_not_done: tuple[int, ...] = ()
    #: there was no committed offset: commit the start at once, so that a crash before the first
    #: commit does not skip (with "latest") what came meanwhile
    commit_start: bool = False


class Epochs:
    """Opens and closes partition epochs."""

    def __init__(
        self, state: EngineState, commits: Commits, plans: Plans, batching: Batching
    ) -> None:
        self._state = state
        self._commits = commits
        self._plans = plans
        self._batching = batching

    def opened(self, assignments: Sequence[Assignment]) -> list[Partition]:
        """Begin an epoch for each; an epoch of the same partition that is still open is lost."""
        state = self._state
        opened = []
        for new in assignments:
            where = (new.topic, new.partition)
            if where in state.partitions:
                self.closed([state.partitions[where]], lost=True)
            state.epochs += 1
            handler = state.handlers[new.handler]
            partition = Partition(
                new.topic,
                new.partition,
                state.epochs,
                handler,
                new.start,
                new.restored_top,
                new.restored_not_done,
            )
            partition.map_limit = state.limits.map_chars
            partition.dirty = new.commit_start
            if new.commit_start:
                self._commits.soon()
            partition.user_paused = state.is_paused(new.topic)
            partition.startable = not partition.user_paused
            partition.held = dict.fromkeys(state.orphans.get(where, ()))
            state.partitions[where] = partition
            opened.append(partition)
        return opened

    def revoking(self, partitions: Iterable[Partition]) -> None:
        """The partitions are being taken away: start nothing new of them."""
        going = [partition for partition in partitions if partition.state == states.OPEN]
        for partition in going:
            partition.state = states.REVOKING
            partition.startable = False
        self._plans.withdraw_marks(going)

    def last_commit(self, partitions: Iterable[Partition]) -> fx.CommitOffsets:
        """What to commit for partitions that are about to be closed; the caller sends it itself.

        A commit that is still on the way does not hold this one back: both come from this epoch,
        and the broker applies requests of one connection in order.
        """
        partitions = list(partitions)
        self._plans.withdraw_marks(partitions)
        due = [
            partition
            for partition in partitions
            if partition.state != states.CLOSED
            and partition.handler.spec.delivery != EXACTLY_ONCE
            and (partition.dirty or partition.claims or partition.commit_state != states.IDLE)
        ]
        return self._commits.last(due)

    def running(self, partitions: Iterable[Partition]) -> list[Work]:
        """Records of these epochs that are with a handler now."""
        return [
            work
            for partition in partitions
            for work in self._members(partition)
            if work.state == states.RUNNING
        ]

    def closed(self, partitions: Iterable[Partition], *, lost: bool = False) -> None:
        """The epochs have ended."""
        state = self._state
        ending = [partition for partition in partitions if partition.state != states.CLOSED]
        self._plans.withdraw_marks(ending)
        for partition in ending:
            partition.state = states.CLOSED
            partition.startable = False
            partition.commit_state = states.IDLE  # an answer that still comes is late
            where = (partition.topic, partition.number)
            if state.partitions.get(where) is partition:
                del state.partitions[where]
            self._drop(partition)
            state.flow.forget(partition)
            state.claiming.pop(partition, None)
            state.counts["partitions_lost" if lost else "partitions_revoked"] += 1

    def _drop(self, partition: Partition) -> None:
        """Everything that waits is forgotten; what runs is fenced and holds its lane."""
        running: dict[LaneKey, Work] = {}
        for work in self._members(partition):
            if work.state == states.RUNNING:
                running[partition.lane_key(work.record)] = work
            elif work.state == states.COMMITTING and work not in partition.slotless:
                partition.handler.free += 1
            if work.state in (states.SENDING, states.COMMITTING, states.PENDING):
                self._state.report(work, "superseded")
            work.move(states.SUPERSEDED)
        self._batching.forget(partition)
        self._state.retries.forget()
        if running:
            where = (partition.topic, partition.number)
            # Held lanes of still older epochs stay held by the attempt that runs there.
            self._state.orphans.setdefault(where, {}).update(running)
        partition.incomplete.clear()
        partition.lanes.clear()
        partition.ready.clear()
        partition.far.clear()
        partition.handler.crowded.pop(partition, None)
        partition.claims.clear()
        partition.running_marked.clear()
        partition.held.clear()
        partition.predecessors.clear()
        partition.slotless.clear()

    def _members(self, partition: Partition) -> list[Work]:
        """Every record of the epoch that is not finished with."""
        works = [work for work in partition.incomplete.values() if work is not None]
        return works + list(partition.running_marked.values())
