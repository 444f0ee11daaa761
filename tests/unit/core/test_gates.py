"""Gates: calls start if and only if no reason is in the gate of the member, handler and partition."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import offsets

from perkey.core.events import Pause, Steering
from perkey.core.gates import COMMAND, OUTPUTS, PAUSED, RESULTS, REVOKING, STOPPING, Gate

BY_COMMAND = Steering(pauses=(Pause("t"),))
#: reason -> the call of the engine that closes and opens a gate with it
REASONS = {
    OUTPUTS: lambda desk, on: desk.do("halt", OUTPUTS, on=on),
    RESULTS: lambda desk, on: desk.do("halt", RESULTS, on=on),
    PAUSED: lambda desk, on: desk.do("pause", "t", on=on),
    COMMAND: lambda desk, on: desk.do("steer", BY_COMMAND if on else Steering()),
}


@pytest.mark.parametrize("first", REASONS)
@pytest.mark.parametrize("second", REASONS)
def test_every_reason_has_to_be_lifted(make_desk, first, second):
    """Of two reasons, also of different gates, the second one still holds when the first is over."""
    desk = make_desk()
    (part,) = desk.assign(0)
    for why in (first, second):
        REASONS[why](desk, True)
    desk.poll(part, 0)
    assert desk.started() == []
    REASONS[first](desk, False)
    assert bool(desk.started()) == (first == second)
    REASONS[second](desk, False)
    assert first == second or offsets(desk.started()) == [0]


def test_a_resume_does_not_open_a_revoked_partition(make_desk):
    """Its epoch ends: another member is about to own it."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.do("pause", "t", on=True)
    desk.poll(part, 0)
    desk.do("revoking", [part])
    desk.do("pause", "t", on=False)
    assert (part.gate.reasons, desk.started()) == ({REVOKING}, [])


@pytest.mark.parametrize(("mode", "starts"), [("buffered", True), ("in_flight", False)])
def test_a_stop_that_waits_only_for_calls_closes_the_gate(make_desk, mode, starts):
    """`buffered` still starts what is here."""
    desk = make_desk()
    desk.do("stop", mode)
    assert (STOPPING in desk.engine.state.gate.reasons) != starts


def test_the_same_reason_again_changes_nothing():
    """A gate has each reason once."""
    gate = Gate()
    for why in (OUTPUTS, RESULTS, OUTPUTS):
        gate.close(why)
    for _ in range(2):
        gate.open(OUTPUTS)
        assert gate.reasons == {RESULTS}


def test_a_reader_on_another_thread_keeps_what_it_read():
    """The reasons are replaced, never changed in place."""
    gate = Gate()
    gate.close(PAUSED)
    reasons = gate.reasons
    gate.open(PAUSED)
    assert (reasons, gate.reasons) == ({PAUSED}, frozenset())
