"""At least once: a record is done when its call has returned and its outputs are stored.

Commits come after, by the interval. A crash repeats what finished since the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.core import effects as fx
from weft.core.delivery import MostClaims, complete, produce, produce_dead_letter, run_together
from weft.core.engine import EngineState
from weft.core.handler import Handler
from weft.core.partition import Partition, begin
from weft.core.work import Work


class AtLeastOnce:
    """The default. Calls without outputs take a short cut through `Endings.done`."""

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
        run_together(self._state, handler, works)

    def given_back(self, work: Work) -> None:
        """Nothing was said of it yet."""

    def send(self, work: Work, outputs: Any) -> None:
        """The record is done when the broker has acknowledged all of it."""
        produce(self._state, work, outputs)

    def send_dead_letter(self, work: Work, letter: fx.SendDeadLetter) -> None:
        """So is this one; its lane waits."""
        produce_dead_letter(self._state, work, letter)

    def returned(self, work: Work, *, report: bool = True) -> None:
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
