"""Assignment and end of partition epochs.

Every completion, acknowledgement and commit answer refers to its `Partition` object. When an epoch
ends its object is closed, and whatever still comes for it is counted and dropped: the broker
accepts commits from a member that has just lost the partition, so Weft needs its own fence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.codec import OffsetMap, Remembered, UnreadableMap, decode
from weft.core import effects as fx
from weft.core import redo, states
from weft.core.commits import CommitState
from weft.core.memory import Memory
from weft.core.offsets import Offsets
from weft.core.partition import Partition
from weft.types import OnLost

if TYPE_CHECKING:
    from weft.core.batching import Batching
    from weft.core.commits import Commits
    from weft.core.engine_state import EngineState
    from weft.core.events import Assignment
    from weft.core.work import LaneKey, Work


class Epochs:
    """Opens and closes partition epochs."""

    def __init__(self, state: EngineState, commits: Commits, batching: Batching) -> None:
        self._state = state
        self._commits = commits
        self._batching = batching

    def opened(self, assignments: Sequence[Assignment]) -> list[Partition]:
        """Open an epoch for each; an epoch of the same partition that is still open is lost."""
        state = self._state
        opened = []
        for new in assignments:
            state.set_clock(new.unix_s)
            where = (new.topic, new.partition)
            if where in state.partitions:
                self.closed([state.partitions[where]], lost=True)
            state.epochs += 1
            offsets = Offsets(new.start, new.restored_top, new.restored_not_done)
            limit = state.limits.map_chars
            handler = state.handlers[new.handler]
            memory = Memory(new.remembered, on=handler.remembers)
            commit = CommitState(
                offsets, new.committed, state.now, limit, repeat=new.commit_start, memory=memory
            )
            occupied = state.orphans.get(where, ())
            partition = Partition(
                *where, state.epochs, handler, offsets, commit, occupied, new.log_end
            )
            for (topic, number, key), hold in state.holds.items():
                here = topic == new.topic and number in (None, new.partition)
                if here and hold.until > state.now:
                    partition.set_hold(key, hold)
            state.partitions[where] = partition
            if new.commit_start:
                self._commits.soon()
            state.pauses.apply(partition)
            opened.append(partition)
        state.divide_budgets()
        return opened

    def revoking(self, partitions: Iterable[Partition]) -> None:
        """The partitions are being revoked: start nothing new of them."""
        going = [partition for partition in partitions if partition.state == states.OPEN]
        for partition in going:
            partition.move(states.REVOKING)
        self._state.closing(going)

    def last_commit(self, partitions: Iterable[Partition]) -> fx.CommitOffsets:
        """The last commit of partitions that are about to be closed; the caller sends it.

        A commit in flight does not delay it; the caller has waited for that one as long as it may.
        """
        partitions = list(partitions)
        self._state.closing(partitions)
        due = [
            partition
            for partition in partitions
            if partition.state != states.CLOSED
            and not partition.handler.exact
            and not (partition.settled and not partition.commit.claims)
        ]
        return self._commits.last(due)

    def closed(self, partitions: Iterable[Partition], *, lost: bool) -> None:
        """The epochs have ended."""
        state = self._state
        ending = [partition for partition in partitions if partition.state != states.CLOSED]
        self._state.closing(ending)
        for partition in ending:
            partition.move(states.CLOSED)
            if state.partitions.get(partition.where) is partition:
                del state.partitions[partition.where]
            self._drop(partition)
            state.flow.forget(partition)
            state.unclaim(partition)
            state.watch_shelves(partition, on=False)
            state.count("partitions_lost" if lost else "partitions_revoked")
        state.divide_budgets()

    def _drop(self, partition: Partition) -> None:
        """Drop everything that waits; running records are fenced and hold their lanes."""
        running: dict[LaneKey, Work] = {}
        for work in partition.works():
            if work.state == states.RUNNING:
                running[partition.lanes.key_of(work.record)] = work
            elif (work.state == states.SENDING and partition.handler.spec.commit_each) or (
                work.state == states.COMMITTING and work not in partition.commit.slotless
            ):  # Commit(each=True): it is handled, and its outputs or its commit are on the way
                partition.handler.slots.give()
            if work.state in (states.SENDING, states.COMMITTING, states.PENDING):
                self._state.report(work, "superseded")
            work.move(states.SUPERSEDED)
        self._batching.forget(partition)
        self._state.retries.forget()
        self._state.orphan(partition.where, running)
        redo.lose(self._state, partition)
        for command, row in partition.commit.answers:
            lost = row._replace(outcome="lost", detail="the partition went away first: ask again")
            self._state.emit(fx.Answered(command, [lost]))
        partition.close()


@dataclass(frozen=True, slots=True)
class Found:
    """The broker's data about a partition when it is assigned."""

    #: the group's committed offset; None if there is none
    committed: int | None
    metadata: str
    log_start: int
    log_end: int
    #: the offset for auto.offset.reset, for a partition without a committed one; None: "error"
    reset_to: int | None
    #: more is known to be done than the group has committed: commit it
    uncommitted: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start, and what is done already."""

    offset: int
    restored_top: int | None = None
    restored_not_done: tuple[int, ...] = ()
    commit_start: bool = False
    remembered: tuple[Remembered, ...] = ()
    #: a warning for the log, if any
    warning: str = ""


@dataclass(frozen=True, slots=True)
class OffsetLost:
    """There is no offset to start from, and the policy is to stop."""

    reason: str


def resolve(found: Found, on_lost: OnLost) -> Start | OffsetLost:
    """Decide the start of one partition."""
    if found.committed is None:
        if found.reset_to is None:
            return OffsetLost(
                'the group has no committed offset and auto.offset.reset is "error": commit one '
                "with `weft offsets set`, or choose earliest or latest"
            )
        return Start(found.reset_to, commit_start=True)
    if found.committed > found.log_end:
        if on_lost == "stop":
            return OffsetLost(
                f"committed offset {found.committed} is past the end of the log {found.log_end} "
                '(a topic recreated, or a truncated log): set on_offset_lost="earliest" or '
                '"latest", or commit a valid offset with `weft offsets set`'
            )
        target = found.log_start if on_lost == "earliest" else found.log_end
        warning = f"committed offset {found.committed} is past the end of the log {found.log_end}: "
        warning += f"continuing at {on_lost}, {target}"
        return Start(target, commit_start=True, warning=warning)
    known = ""
    try:
        restored = decode(found.committed, found.metadata, log_end=found.log_end)
    except UnreadableMap as error:
        known = f"commit metadata ignored, finished records past the offset repeat: {error}"
        restored = OffsetMap("none", found.committed, found.committed - 1, ())
    problem = restored.rider.problem
    if found.committed < found.log_start:
        # Retention deleted records that were not done; the rest of the map is still valid
        start = found.log_start
        top = max(restored.highest_seen, start - 1)
        left = tuple(offset for offset in restored.not_done if offset >= start)
        kept = tuple(one for one in restored.rider.entries if one.offset >= start)
        gone = f"committed offset {found.committed} is before the start of the log {start}: "
        gone += "retention deleted what lay between"
        warning = f"{gone}; {known}" if known else gone
        return Start(start, top, left, commit_start=True, remembered=kept, warning=warning)
    known = known or (problem and f"what the commit remembers of records is ignored: {problem}")
    return Start(
        found.committed, restored.highest_seen, restored.not_done,
        commit_start=found.uncommitted, remembered=restored.rider.entries, warning=known,
    )  # fmt: skip
