"""A head waits for one reason, its state: the worked example of docs/architecture.md."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import in_state, offsets

from perkey.account.account import PLACE_OF_STATE
from perkey.core import states
from perkey.core.events import HandlerSpec
from simulators.core.invariants import check

QUOTA = len(states.RECORD_NAMES)


@pytest.fixture
def with_quota(monkeypatch):
    """A reason that Perkey does not have: its name, its two edges, its place."""
    edges = {
        (states.QUEUED, QUOTA): "its turn comes, and its tenant has no quota",
        (QUOTA, states.QUEUED): "a new day",
    }
    monkeypatch.setattr(states, "RECORD_NAMES", (*states.RECORD_NAMES, "quota"))
    monkeypatch.setattr(states, "STALLED", (*states.STALLED, QUOTA))
    monkeypatch.setitem(PLACE_OF_STATE, QUOTA, "budget")
    for edge, why in edges.items():
        monkeypatch.setitem(states.RECORD_TABLE, edge, why)


def test_a_new_reason_keeps_one_lane_waiting_and_no_other(with_quota, make_desk):
    """Its owner needs `wait` and `readmit` alone; order, counts and invariants follow."""
    desk = make_desk(HandlerSpec("h", concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=b"a")
    desk.poll(part, 2, 3, key=b"b")
    (first,) = desk.started()
    head = part.offsets.incomplete[2]
    assert part.lanes.take_out(head)
    part.wait(head, QUOTA)
    check(desk.engine)
    desk.do("calls_ended", [first])
    (second,) = desk.started()
    desk.do("calls_ended", [second])
    assert (offsets([first, second]), desk.started()) == ([0, 1], [])
    assert (in_state(part, QUOTA), part.lanes.waiting[QUOTA]) == ([2], 1)
    part.readmit(head)
    desk.pass_time(0.1)
    assert offsets(desk.started()) == [2]


@pytest.mark.parametrize("why", states.STALLED)
def test_every_reason_is_lifted_to_the_queue_and_ends_with_its_epoch(why):
    """Its record can always continue, and never outlives its partition."""
    assert (why, states.QUEUED) in states.RECORD_TABLE
    assert (why, states.SUPERSEDED) in states.RECORD_TABLE


def test_a_reason_without_its_edge_is_refused(make_desk):
    """A change that is not in the table is a bug, and the error names it."""
    desk = make_desk(HandlerSpec("h", concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    with pytest.raises(states.InternalError, match="cannot go from running to room"):
        part.wait(part.offsets.incomplete[0], states.ROOM)
