"""Holds: a lane, or one record, that starts nothing until a time.

A held record waits like one that failed: RETRYING, with `Failure.held`, until the hold is over. In
a held lane that is the first record that has not started; later ones wait behind it, or are held
when they arrive (`hold_back`). So the hot paths do not know of holds. As for a parked lane, only
offsets are kept of a held one (memory.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.work import Failure, HeldBy

if TYPE_CHECKING:
    from weft.core.engine_state import EngineState
    from weft.core.partition import Partition
    from weft.core.work import Work
    from weft.types import Record


def hold_of(state: EngineState, partition: Partition, record: Record) -> HeldBy | None:
    """The hold of a record's lane; None if there is none, or it is over."""
    holds = partition.holds
    found = holds.get(partition.lanes.key_of(record)) if holds else None
    return None if found is None or found.until <= state.now else found


def hold_back(state: EngineState, work: Work) -> bool:
    """If the lane of a queued record is held, it waits for the end of the hold."""
    found = hold_of(state, work.partition, work.record)
    if found is not None:
        hold(state, work, found)
    return found is not None


def hold_behind(state: EngineState, work: Work) -> None:
    """The same for one behind a running record of its lane, before its turn comes."""
    found = hold_of(state, work.partition, work.record)
    if found is not None:
        work.partition.lanes.behind.add(work)
        hold(state, work, found)


def hold(state: EngineState, work: Work, by: HeldBy, *, own: bool = False) -> None:
    """Hold this queued record, which is in its chain and nowhere else, until the hold is over.

    `own`: the record itself is held, not its lane: a shorter hold of the lane does not end that.
    """
    failure = work.failure
    if failure is None:
        failure = work.failure = Failure(state.texts)
        work.partition.charge_failure(work, failure)
    if own:
        failure.held_until = by.until
    until = max(by.until, failure.own_due, failure.held_until)  # its own delay is not shortened
    if until == by.until or failure.held_by is None:
        failure.held_by = by
    failure.note(state.now, f"held for {until - state.now:.0f} s")
    state.retries.add(until, work)
    work.partition.retry(work, held=True)
    state.put_away(work)
