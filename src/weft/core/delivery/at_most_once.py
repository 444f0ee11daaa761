"""At most once: a record is marked as started in a stored commit before the handler sees it.

For the offsets it is done from then on (`CommitState.marked` keeps it while it runs), so nothing is
ever handled twice. A mark whose record never began is taken back by a later commit. What the map
has no room for is not marked and waits, as records far out do.

The life of a record: taken (MARKING, a claim) -> its commit is stored (`stored`: RUNNING) -> its
call ends (`handled`: DONE). It has one attempt; a batch starts once all its marks are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weft.core import states
from weft.core.delivery import call, complete, produce, produce_dead_letter
from weft.core.lanes import unfollow

if TYPE_CHECKING:
    from weft.core import effects as fx
    from weft.core.delivery import MostClaims
    from weft.core.engine import EngineState
    from weft.core.handler import Handler
    from weft.core.partition import Partition
    from weft.core.work import Work


class AtMostOnce:
    """Marks, then calls."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    # -- before the call -------------------------------------------------------------------------

    def start(self, handler: Handler, works: list[Work]) -> None:
        """Mark them first: the next commit says so."""
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
        """Their marks are stored: they may begin."""
        works = [work for work in claims if work.state == states.MARKING]  # else withdrawn
        for work in works:
            partition.mark(work)
            work.since = self._state.now
        if works and partition.handler.spec.batch is not None:
            self._begin_batches(partition.handler, works)
        elif works:
            call(self._state, partition.handler, works)

    def _begin_batches(self, handler: Handler, works: Iterable[Work]) -> None:
        """Marks are stored or withdrawn: call the batches that wait for none any more."""
        for waiting in {id(work.call): work.call for work in works}.values():
            if waiting is None or not waiting.works:
                continue
            # Without those that were withdrawn, with whatever partition.
            waiting.works = [work for work in waiting.works if work.state != states.QUEUED]
            if any(work.state == states.MARKING for work in waiting.works):
                continue
            if waiting.works:
                begun, waiting.works = waiting.works, []
                waiting.first, waiting.left = begun[0], len(begun)
                call(self._state, handler, begun, together=True)
            else:
                handler.slots.give()

    # -- after the call --------------------------------------------------------------------------

    def send(self, work: Work, outputs: Any) -> None:
        """Produced once; what is refused is not tried again."""
        produce(self._state, work, outputs)

    def send_dead_letter(self, work: Work, letter: fx.SendDeadLetter) -> None:
        """It is done when the broker has its dead letter; its lane waits."""
        produce_dead_letter(self._state, work, letter)

    def handled(self, work: Work, *, report: bool = True) -> None:
        """Its offset is done since its mark; only the lane goes on."""
        work.partition.marked_done(work)
        complete(self._state, work, report=report)

    def refused(self, work: Work) -> bool:
        """It was handled: once is all there is."""
        return False

    # -- marks that are taken back -----------------------------------------------------------------

    def given_back(self, work: Work) -> None:
        """It never began: its offset is not done after all."""
        work.partition.unmark(work)

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """Marks without room are not made: a mark that was stored must never be forgotten."""
        best = most()
        inside = set() if best is None else set(map(id, best.claims))
        left = partition.commit.keep(inside)
        self._state.unclaim(partition)
        for work in left:
            work.move(states.QUEUED)
        for head in self._let_go(partition, left):
            partition.handler.put_far(head)
        return best

    def closing(self, partitions: Iterable[Partition]) -> None:
        """What is marked, or about to be, and has not begun will not begin here.

        A mark that is on the way may be stored nevertheless; the last commit of the epoch, behind
        it on the same connection, takes it back.
        """
        # All of them first: a batch whose other marks are withdrawn is complete, and starts.
        withdrawn = [(partition, self._withdraw(partition)) for partition in partitions]
        for partition, waiting in withdrawn:
            if waiting:
                partition.lanes.put_back(self._let_go(partition, waiting))
                partition.handler.enlist(partition)

    def _withdraw(self, partition: Partition) -> list[Work]:
        """The records whose marks are taken back, queued again."""
        waiting = [work for work in partition.commit.claims if work.state == states.MARKING]
        for work in list(partition.commit.marked.values()):
            if work.call is not None and work.call.works:  # its batch waits for other marks
                partition.unmark(work)
                partition.call_ended()
                waiting.append(work)
        for work in waiting:
            work.move(states.QUEUED)
        if waiting:
            partition.commit.again = True
            partition.commit.keep(())
            self._state.unclaim(partition)
        return waiting

    def _let_go(self, partition: Partition, works: list[Work]) -> list[Work]:
        """Give their slots back; which of them are the heads of their lanes."""
        heads = [work for work in works if not unfollow(work)]
        if partition.handler.spec.batch is None:
            partition.handler.slots.give(len(works))
        else:
            self._begin_batches(partition.handler, works)
        return heads
