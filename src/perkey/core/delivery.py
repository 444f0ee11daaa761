"""The delivery modes: the rules of each, which are nowhere else.

`AtLeastOnce` has every step of a record, from its start to its commit; the others override some. A
fifth would be one more class, and one line in engine_state.py (`_DELIVERIES`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.lanes import unfollow
from perkey.core.partition import begin

if TYPE_CHECKING:
    from perkey.core.engine_state import EngineState
    from perkey.core.partition import Partition
    from perkey.core.scheduling import Handler
    from perkey.core.work import Work

#: The largest plan whose map has room, and its claims; None if even no claim fits.
MostClaims = Callable[[], fx.PlanItem | None]


# -- steps that deliveries share -------------------------------------------------------------------


def call(
    state: EngineState, handler: Handler, works: list[Work], *, together: bool = False
) -> None:
    """Call the handler for each of these, or once with all: they have their slots and run."""
    state.emit(fx.Start(handler.index, works, together))


# -- at least once ---------------------------------------------------------------------------------


class AtLeastOnce:
    """The default: a record is done when its call has returned and its outputs are stored.

    Commits come after, by the interval; a crash repeats what finished since the last one. Calls
    without outputs take a short cut through `Endings.done`.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def start(self, handler: Handler, works: list[Work]) -> None:
        """These were taken, each with its own slot: call the handler, or prepare that."""
        state = self._state  # `call` inlined, as this is the hot path
        begin(works, state.now)
        state.emit(fx.Start(handler.index, works))

    def start_together(self, handler: Handler, works: list[Work]) -> None:
        """The same for a batch, which has one slot."""
        begin(works, self._state.now)
        call(self._state, handler, works, together=True)

    def given_back(self, work: Work) -> None:
        """It was passed to the executor and never started; it will be queued again."""

    def send(self, work: Work, outputs: Any) -> None:
        """The handler returned outputs: done when the broker has acknowledged all of them."""
        work.partition.send(work)
        work.since, work.outputs = self._state.now, outputs
        self._state.emit(fx.Send(work, outputs))

    def send_dead_letter(self, work: Work, letter: fx.SendDeadLetter) -> None:
        """Its attempts are used up, and its dead letter replaces it; its lane waits."""
        work.partition.lanes.block(work)
        work.partition.send(work)
        work.since, work.outputs = self._state.now, None
        self._state.emit(letter)

    def handled(self, work: Work, *, report: bool = True) -> None:
        """It was handled, and its outputs are stored, or go with the commit."""
        work.partition.record_done(work)
        self._state.complete(work, report=report)

    def refused(self, work: Work) -> bool:
        """Its call failed, or its outputs cannot be stored; whether it may be handled again."""
        return True

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """The commit that these records waited for is stored: each takes its next step."""

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """The map has no room for all claims, so `item` is cut; returns the plan to commit.

        Here the cut one: it costs repeats after a crash.
        """
        return item

    def dropped(self, work: Work) -> None:
        """Its epoch has ended; it was handled, and its outputs or its commit are on the way."""

    def closing(self, partitions: Iterable[Partition]) -> None:
        """Records of these partitions that have not started will not start in this epoch.

        Here those passed to the executor may, until the epoch closes; the runtime checks.
        """


class Each(AtLeastOnce):
    """Commit(each=True): a record keeps its slot and its lane until its own commit is stored.

    So a kill repeats at most what was in flight. Many records share one request.
    """

    def handled(self, work: Work, *, report: bool = True) -> None:
        """It waits for the next commit, which comes immediately, and keeps its slot meanwhile."""
        work.move(states.COMMITTING)
        self._state.claim(work)
        work.partition.handler.slots.take()

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """They are done, and their slots are free."""
        for work in claims:
            partition.record_done(work)
            if work in partition.commit.slotless:
                partition.commit.slotless.remove(work)
            else:
                partition.handler.slots.give()
            self._state.complete(work)

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """The cut map; claims without room keep their lane but free their slot.

        Otherwise they could hold every slot, and the record that makes room would never start.
        """
        waiting = set(partition.commit.claims) - set(item.claims) - partition.commit.slotless
        partition.commit.slotless |= waiting
        partition.handler.slots.give(len(waiting))
        return item

    def dropped(self, work: Work) -> None:
        """Its slot is free, unless it was before."""
        if work not in work.partition.commit.slotless:
            work.partition.handler.slots.give()


# -- at most once ----------------------------------------------------------------------------------


class AtMostOnce(AtLeastOnce):
    """A record is marked as started in a stored commit before the handler sees it.

    For the offsets it is done from then on (`CommitState.marked` keeps it while it runs), so
    nothing is ever handled twice. A mark whose record never started is withdrawn by a later commit.
    Records without room in the map are not marked and wait, as records far out do.

    A record's states: taken (MARKING, a claim) -> its commit is stored (`stored`: RUNNING) -> its
    call ends (`handled`: DONE). It has one attempt; a batch starts once all its marks are stored.
    Its outputs are sent once; refused ones are not tried again.
    """

    def start(self, handler: Handler, works: list[Work]) -> None:
        """Mark them first, in the next commit."""
        for work in works:
            work.state = states.MARKING
            work.since = self._state.now
            self._state.claim(work)

    def start_together(self, handler: Handler, works: list[Work]) -> None:
        """Mark them all; the call waits for that."""
        batch = works[0].call
        assert batch is not None
        batch.works = list(works)
        self.start(handler, works)

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """Their marks are stored: they may start."""
        works = [work for work in claims if work.state == states.MARKING]  # others were withdrawn
        for work in works:
            partition.mark(work)
            work.since = self._state.now
        if works and partition.handler.spec.batch is not None:
            self._begin_batches(partition.handler, works)
        elif works:
            call(self._state, partition.handler, works)

    def _begin_batches(self, handler: Handler, works: Iterable[Work]) -> None:
        """Marks are stored or withdrawn: call the batches that wait for none any more."""
        for waiting in dict.fromkeys(work.call for work in works):
            if waiting is None or not waiting.works:
                continue
            # Without withdrawn records, of whatever partition.
            waiting.works = [work for work in waiting.works if work.state != states.QUEUED]
            if any(work.state == states.MARKING for work in waiting.works):
                continue
            if waiting.works:
                begun, waiting.works = waiting.works, []
                call(self._state, handler, begun, together=True)
            else:
                handler.slots.give()

    def handled(self, work: Work, *, report: bool = True) -> None:
        """Its offset is done since its mark; only the lane continues."""
        work.partition.marked_done(work)
        self._state.complete(work, report=report)

    def refused(self, work: Work) -> bool:
        """It was handled, and is never handled twice."""
        return False

    def given_back(self, work: Work) -> None:
        """It never started, so its offset is not done after all."""
        work.partition.unmark(work)

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """Marks without room are not made: a stored mark must never be lost."""
        best = most()
        left = partition.commit.keep(set() if best is None else set(best.claims))
        self._state.unclaim(partition)
        for work in left:
            work.move(states.QUEUED)
        for head in self._free_slots(partition, left):
            if partition.held_by(head, self._state.now) is None:
                partition.handler.put_far(head)
            else:
                partition.lanes.turn(head)
        return best

    def closing(self, partitions: Iterable[Partition]) -> None:
        """Records that are marked, or about to be, and have not started will not start here.

        A mark in flight may be stored nevertheless; the last commit of the epoch, behind it on the
        same connection, withdraws it.
        """
        # All of them first: a batch whose other marks are withdrawn is complete, and starts.
        withdrawn = [(partition, self._withdraw(partition)) for partition in partitions]
        for partition, waiting in withdrawn:
            if waiting:
                partition.lanes.put_back(self._free_slots(partition, waiting))
                partition.handler.enlist(partition)

    def _withdraw(self, partition: Partition) -> list[Work]:
        """The records whose marks are withdrawn, queued again."""
        waiting = [work for work in partition.commit.claims if work.state == states.MARKING]
        for work in list(partition.commit.marked.values()):
            if work.call is not None and work.call.works:  # its batch waits for other marks
                partition.unmark(work)
                partition.call_ended()
                waiting.append(work)
        for work in waiting:
            work.move(states.QUEUED)
        if waiting:
            partition.commit.repeat = True
            partition.commit.keep(())
            self._state.unclaim(partition)
        return waiting

    def _free_slots(self, partition: Partition, works: list[Work]) -> list[Work]:
        """Free their slots; returns those that are heads of their lanes."""
        heads = [work for work in works if not unfollow(work)]
        if partition.handler.spec.batch is None:
            partition.handler.slots.give(len(works))
        else:
            self._begin_batches(partition.handler, works)
        return heads


# -- exactly once ----------------------------------------------------------------------------------


class ExactlyOnce(AtLeastOnce):
    """Outputs and offsets go into one transaction, and are seen together or not at all.

    Calls as at least once. A record that is handled is PENDING: a claim with its outputs. Its lane
    continues immediately; a transaction takes the claims since the last one (portions.py).
    """

    def send(self, work: Work, outputs: Any) -> None:
        """The outputs wait for the transaction, charged to the budget of outputs."""
        work.outputs = outputs
        size_bytes = self._state.size_of(outputs)
        if size_bytes:
            self._state.portions.hold(work, size_bytes)
        self._handled(work)

    def send_dead_letter(self, work: Work, letter: fx.SendDeadLetter) -> None:
        """So does a dead letter."""
        work.outputs = letter
        self._handled(work)

    def _handled(self, work: Work) -> None:
        self._state.finished_since_commit += 1
        self.handled(work)

    def handled(self, work: Work, *, report: bool = True) -> None:
        """It waits for a transaction, and its lane continues."""
        work.state = states.PENDING  # watched by the simulator: this is a hot path
        self._state.claim(work)
        if work.failure is None or not work.failure.left_lane:
            work.partition.release(work)
        else:
            work.partition.lanes.discharge(work)

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """The transaction is committed: they are done."""
        plain = 0
        for work in claims:
            partition.pending_done(work)
            if partition.outputs:
                self._state.portions.drop(work)
            if work.failure is None and not self._state.reporting:
                plain += 1
            else:
                self._state.complete(work)
        partition.handler.done += plain

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """Fewer claims: a committed output must never be lost."""
        return most()
