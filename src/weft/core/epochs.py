"""Partitions that come and go.

Every completion, acknowledgement and commit answer leads back to the `Partition` object it
belongs to. When an epoch ends its object is closed, and whatever still comes back for it is
counted and dropped: the broker itself accepts commits from a member that has just lost the
partition, so this fence is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.core import effects as fx
from weft.core import states
from weft.core.batching import Batching
from weft.core.commits import Commits, CommitState
from weft.core.engine import EngineState
from weft.core.events import Assignment
from weft.core.offsets import Offsets
from weft.core.partition import Partition
from weft.core.spec import EXACTLY_ONCE
from weft.core.work import LaneKey, Work


class Epochs:
    """Opens and closes partition epochs."""

    def __init__(self, state: EngineState, commits: Commits, batching: Batching) -> None:
        self._state = state
        self._commits = commits
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
            partition = state.partitions[where] = self._partition(new)
            if new.commit_start:
                self._commits.soon()
            partition.pause(on=state.is_paused(new.topic))
            opened.append(partition)
        return opened

    def _partition(self, new: Assignment) -> Partition:
        state = self._state
        offsets = Offsets(new.start, new.restored_top, new.restored_not_done)
        limit = state.limits.map_chars
        commit = CommitState(offsets, new.committed, state.now, limit, again=new.commit_start)
        handler = state.handlers[new.handler]
        held = state.orphans.get((new.topic, new.partition), ())
        return Partition(
            new.topic, new.partition, state.epochs, handler, offsets, commit, held, new.log_end
        )

    def revoking(self, partitions: Iterable[Partition]) -> None:
        """The partitions are being taken away: start nothing new of them."""
        going = [partition for partition in partitions if partition.state == states.OPEN]
        for partition in going:
            partition.move(states.REVOKING)
        self._state.closing(going)

    def last_commit(self, partitions: Iterable[Partition]) -> fx.CommitOffsets:
        """What to commit for partitions that are about to be closed; the caller sends it itself.

        A commit that is still on the way does not hold this one back; the caller has waited for it
        as long as it may.
        """
        partitions = list(partitions)
        self._state.closing(partitions)
        due = [
            partition
            for partition in partitions
            if partition.state != states.CLOSED
            and partition.handler.spec.delivery != EXACTLY_ONCE
            and (
                partition.commit.dirty
                or partition.commit.claims
                or partition.commit.state != states.IDLE
            )
        ]
        return self._commits.last(due)

    def running(self, partitions: Iterable[Partition]) -> list[Work]:
        """Records of these epochs that are with a handler now."""
        return [
            work
            for partition in partitions
            for work in partition.works()
            if work.state == states.RUNNING
        ]

    def closed(self, partitions: Iterable[Partition], *, lost: bool) -> None:
        """The epochs have ended."""
        state = self._state
        ending = [partition for partition in partitions if partition.state != states.CLOSED]
        self._state.closing(ending)
        for partition in ending:
            partition.move(states.CLOSED)
            where = (partition.topic, partition.number)
            if state.partitions.get(where) is partition:
                del state.partitions[where]
            self._drop(partition)
            state.flow.forget(partition)
            state.unclaim(partition)
            state.count("partitions_lost" if lost else "partitions_revoked")

    def _drop(self, partition: Partition) -> None:
        """Everything that waits is forgotten; what runs is fenced and holds its lane."""
        running: dict[LaneKey, Work] = {}
        for work in partition.works():
            if work.state == states.RUNNING:
                running[partition.lanes.key_of(work.record)] = work
            elif _holds_slot(partition, work):
                partition.handler.slots.give()
            if work.state in (states.SENDING, states.COMMITTING, states.PENDING):
                self._state.report(work, "superseded")
            work.move(states.SUPERSEDED)
        self._batching.forget(partition)
        self._state.retries.forget()
        self._state.hold_lanes((partition.topic, partition.number), running)
        partition.close()


def _holds_slot(partition: Partition, work: Work) -> bool:
    """Commit(each=True): it is handled, and its outputs or its commit are on the way."""
    if work.state == states.SENDING:
        return partition.handler.spec.commit_each
    return work.state == states.COMMITTING and work not in partition.commit.slotless
