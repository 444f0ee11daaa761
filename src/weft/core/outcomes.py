"""Records that are handed to a handler, and records that are finished with: counted and told."""

from __future__ import annotations

from typing import Any

from weft.core import effects as fx
from weft.core.engine import EngineState
from weft.core.handler import Handler
from weft.core.partition import begin
from weft.core.work import Work


def call(state: EngineState, handler: Handler, works: list[Work]) -> None:
    """Call the handler for each of these; each has a slot, and they are running."""
    handler.slots.time(works, state.now)
    state.emit(fx.Start(handler.index, works))


def call_together(state: EngineState, handler: Handler, works: list[Work]) -> None:
    """Call the handler once with these; the call has a slot, and they are running."""
    handler.slots.time(works[:1], state.now)
    state.emit(fx.Start(handler.index, works, together=True))


def run_together(state: EngineState, handler: Handler, works: list[Work]) -> None:
    """These were taken for a batch: they run from now on, in one call."""
    begin(works, state.now)
    call_together(state, handler, works)


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
    """The record is finished with for good."""
    handler, failure = work.partition.handler, work.failure
    error = None if failure is None else failure.error
    if failure is None or failure.given_up is None:
        handler.count_done()
        if report:
            state.report(work, "done", None, work.outputs or ())
    elif failure.given_up == "skipped":
        handler.skipped += 1
        state.trouble(work, "skipped")
        state.report(work, "skipped", error)
    else:
        handler.dead_lettered += 1
        state.trouble(work, "dead_lettered")
        state.report(work, "dead_lettered", error, work.outputs or ())
