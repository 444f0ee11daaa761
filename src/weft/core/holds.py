"""Holds: a lane, or one record, that starts nothing until a time.

A held record waits like one that failed: RETRYING, with `Failure.held`, until the hold is over. Of
a held lane that is the first record that has not begun; what comes later stands behind it, or is
held when it comes (`hold_back`). So the hot paths know nothing of holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.work import Failure

if TYPE_CHECKING:
    from weft.core.engine_state import EngineState
    from weft.core.partition import Partition
    from weft.core.work import Work
    from weft.types import Record

HOLD_MAX_S = 30 * 86_400.0


def held_until(state: EngineState, partition: Partition, record: Record) -> float | None:
    """The end of the hold of a record's lane; None where there is none, or it is over."""
    holds = partition.holds
    until = holds.get(partition.lanes.key_of(record)) if holds else None
    return None if until is None or until <= state.now else until


def hold_back(state: EngineState, work: Work) -> bool:
    """Where the lane of a queued record is held, it waits for the end of that."""
    until = held_until(state, work.partition, work.record)
    if until is None:
        return False
    hold(state, work, until)
    return True


def hold_behind(state: EngineState, work: Work) -> None:
    """The same for one behind another record of its lane that is under way: before its turn."""
    until = held_until(state, work.partition, work.record)
    if until is not None:
        work.partition.lanes.behind.add(work)
        hold(state, work, until)


def hold(state: EngineState, work: Work, until: float, *, own: bool = False) -> None:
    """This queued record, which stands nowhere else, does not start before this time.

    `own`: the record itself is held, not its lane: a shorter hold of the lane does not end that.
    """
    failure = work.failure
    if failure is None:
        failure = work.failure = Failure(state.texts)
        work.partition.charge_failure(work, failure)
    if own:
        failure.held_until = until
    until = max(until, failure.own_due, failure.held_until)  # its own delay is not shortened
    failure.tell(state.now, f"held for {until - state.now:.0f} s")
    state.retries.add(until, work)
    work.partition.retry(work, held=True)
