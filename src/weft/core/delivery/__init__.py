"""The deliveries: what each decides, and nothing else does; at least once, and `Commit(each=True)`.

A fifth would be one class more, and one line in engine.py (`_DELIVERIES`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from weft.core import effects as fx
from weft.core import states
from weft.core.partition import begin

if TYPE_CHECKING:
    from weft.core.engine import EngineState
    from weft.core.handler import Handler
    from weft.core.partition import Partition
    from weft.core.work import Work

#: The largest plan whose map has room, and its claims; None where not even none of them fits.
MostClaims = Callable[[], fx.PlanItem | None]


class Delivery(Protocol):
    """One delivery of one engine: when a record starts, what follows its end, what is committed."""

    def start(self, handler: Handler, works: list[Work]) -> None:
        """These were taken, each with a slot of its own: call the handler, or see to it first."""

    def start_together(self, handler: Handler, works: list[Work]) -> None:
        """The same for a batch, which has one slot."""

    def given_back(self, work: Work) -> None:
        """It was handed over and never began; it will be queued again."""

    def send(self, work: Work, outputs: Any) -> None:
        """The handler returned outputs."""

    def send_dead_letter(self, work: Work, letter: fx.SendDeadLetter) -> None:
        """Its attempts are used up, and its dead letter stands for it."""

    def handled(self, work: Work, *, report: bool = True) -> None:
        """Handled, and what it had to send is stored, or goes with the commit."""

    def refused(self, work: Work) -> bool:
        """Its call failed, or its outputs cannot be stored; whether it may be handled again."""

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """The commit that these records waited for is stored: each takes its next step."""

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """The map has no room for all claims: `item` is cut; what is committed instead."""

    def closing(self, partitions: Iterable[Partition]) -> None:
        """Nothing of these that has not begun will begin in this epoch."""


# -- steps that deliveries share -------------------------------------------------------------------


def call(
    state: EngineState, handler: Handler, works: list[Work], *, together: bool = False
) -> None:
    """Call the handler for each of these, or once with all: they have their slots and run."""
    handler.slots.time(works[:1] if together else works, state.now)
    state.emit(fx.Start(handler.index, works, together))


def produce(state: EngineState, work: Work, outputs: Any) -> None:
    """The record waits until the broker has acknowledged all of these."""
    work.partition.send(work)
    work.since, work.outputs = state.now, outputs
    state.emit(fx.Send(work, outputs))


def produce_dead_letter(state: EngineState, work: Work, letter: fx.SendDeadLetter) -> None:
    """The same for its dead letter; its lane is one that failed."""
    work.partition.lanes.block(work)
    work.partition.send(work)
    work.since, work.outputs = state.now, None
    state.emit(letter)


def complete(state: EngineState, work: Work, *, report: bool = True) -> None:
    """The record is finished with for good: count and report it."""
    handler, failure = work.partition.handler, work.failure
    if failure is None or failure.given_up is None:
        handler.done += 1
        if report:
            state.report(work, "done", None, work.outputs or ())
    elif failure.given_up == "skipped":
        handler.skipped += 1
        state.trouble(work, "skipped")
        state.report(work, "skipped", failure.error)
    else:
        handler.dead_lettered += 1
        state.trouble(work, "dead_lettered")
        state.report(work, "dead_lettered", failure.error, work.outputs or ())


# -- at least once ---------------------------------------------------------------------------------


class AtLeastOnce:
    """The default: a record is done when its call has returned and its outputs are stored.

    Commits come after, by the interval; a crash repeats what finished since the last one. Calls
    without outputs take a short cut through `Endings.done`.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def start(self, handler: Handler, works: list[Work]) -> None:
        """Call the handler: `call` written out, for this is the hot path."""
        state = self._state
        begin(works, state.now)
        if handler.timed:
            handler.slots.time(works, state.now)
        state.emit(fx.Start(handler.index, works))

    def start_together(self, handler: Handler, works: list[Work]) -> None:
        """Call the batch handler."""
        begin(works, self._state.now)
        call(self._state, handler, works, together=True)

    def given_back(self, work: Work) -> None:
        """Nothing was committed of it yet."""

    def send(self, work: Work, outputs: Any) -> None:
        """The record is done when the broker has acknowledged all of it."""
        produce(self._state, work, outputs)

    def send_dead_letter(self, work: Work, letter: fx.SendDeadLetter) -> None:
        """So is this one; its lane waits."""
        produce_dead_letter(self._state, work, letter)

    def handled(self, work: Work, *, report: bool = True) -> None:
        """Done."""
        work.partition.record_done(work)
        complete(self._state, work, report=report)

    def refused(self, work: Work) -> bool:
        """By the retry policy."""
        return True

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """No record waits for a commit."""

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """The cut map: it costs repeats after a crash."""
        return item

    def closing(self, partitions: Iterable[Partition]) -> None:
        """What was handed over may begin until the epoch closes; the runtime asks."""


class Each(AtLeastOnce):
    """Commit(each=True): a record keeps its slot and its lane until its own commit is stored.

    So a kill repeats at most what was in flight. Many records share one request.
    """

    def handled(self, work: Work, *, report: bool = True) -> None:
        """It waits for the next commit, which comes at once, and holds a slot meanwhile."""
        work.move(states.COMMITTING)
        self._state.claim(work)
        work.partition.handler.slots.take()

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """Done, and their slots are free."""
        for work in claims:
            partition.record_done(work)
            if work in partition.commit.slotless:
                partition.commit.slotless.remove(work)
            else:
                partition.handler.slots.give()
            complete(self._state, work)

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """The cut map; claims without room keep their lane and give back their slot.

        Else they could hold every slot, and the record whose end makes room would never start.
        """
        waiting = set(partition.commit.claims) - set(item.claims) - partition.commit.slotless
        partition.commit.slotless |= waiting
        partition.handler.slots.give(len(waiting))
        return item
