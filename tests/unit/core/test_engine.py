"""Stopping, timing out, hearing late."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR

from weft.core import effects as fx
from weft.core import states
from weft.core.endings import Failed
from weft.core.partition import Partition
from weft.core.spec import HandlerSpec
from weft.core.work import Work
from weft.policies import Retry, Stop
from weft.types import Record


def test_stop_finishes_what_runs(make_desk):
    """`in_flight` starts nothing new and ends with the last call."""
    desk = make_desk(HandlerSpec("h", concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("stop", "in_flight")
    assert desk.take(fx.Drained) == []
    desk.do("calls_ended", [work])
    assert len(desk.effects) == 1
    assert desk.take(fx.Drained) == [fx.Drained()]


def test_stop_buffered_finishes_what_is_in_memory(make_desk):
    """`buffered` starts what is there, retries included."""
    desk = make_desk(HandlerSpec("h", concurrency=1, retry=Retry(delay_s=1.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("stop", "buffered")
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    desk.pass_time(2.0)
    desk.do("calls_ended", desk.started())
    desk.do("calls_ended", desk.started())
    assert (part.frontier, len(desk.take(fx.Drained))) == (2, 1)


@pytest.mark.parametrize("before", [None, "in_flight", "buffered"])
def test_stop_now_ends_at_once(make_desk, before):
    """`now` waits for nothing, whatever was asked for before."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    if before:
        desk.do("stop", before)
    desk.do("stop", "now")
    assert len(desk.take(fx.Drained)) == 1


def test_softer_stop_does_not_undo_a_harder_one(make_desk):
    """After `in_flight`, `buffered` changes nothing."""
    desk = make_desk(HandlerSpec("h", concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("stop", "in_flight")
    desk.do("stop", "buffered")
    desk.do("calls_ended", [work])
    assert len(desk.take(fx.Drained)) == 1


def test_stop_policy_ends_the_run_and_keeps_the_record(make_desk):
    """An exhausted record under Stop is fatal and stays not-done."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=Stop()))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    assert "exhausted" in desk.take(fx.Fatal)[0].reason
    assert part.frontier == 0


def test_overdue_attempt_is_cancelled_once(make_desk):
    """Past `timeout_s` the end of the attempt is asked for, one time."""
    desk = make_desk(HandlerSpec("h", timeout_s=1.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    assert desk.engine.next_deadline() <= 1.0
    desk.pass_time(1.0)
    desk.pass_time(1.0)
    assert desk.take(fx.Cancel) == [fx.Cancel(0, work)]


def test_all_slots_hung_for_ten_time_outs_is_fatal(make_desk):
    """Nothing would ever start again: the app says which handler hangs."""
    desk = make_desk(HandlerSpec("slow", concurrency=1, timeout_s=1.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.pass_time(1.0)
    desk.pass_time(9.9)
    assert desk.take(fx.Fatal) == []
    desk.pass_time(0.1)
    assert "slow" in desk.take(fx.Fatal)[0].reason


def test_late_completion_is_counted_and_dropped(make_desk):
    """What an ended epoch still brings does not touch the present one."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("closed", [part], lost=True)
    (again,) = desk.assign(0)
    desk.do("calls_ended", [work])
    handler = desk.engine.state.handlers[0]
    assert (handler.superseded, handler.done, again.frontier) == (1, 0, 0)


def test_records_of_a_closed_epoch_are_dropped(make_desk):
    """A poll that crossed the end of the epoch brings nothing in."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.do("closed", [part])
    desk.poll(part, 0)
    assert desk.started() == []


def test_reported_outcome_comes_with_the_record(make_desk):
    """While somebody reads results every finished record is told."""
    desk = make_desk()
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", desk.started())
    assert [effect.outcome for effect in desk.take(fx.Finished)] == ["done"]


def test_snapshot_is_plain_data(make_desk):
    """The engine shows itself in the words of the contract."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (row,) = desk.engine.snapshot()["partitions"]
    found = {name: row[name] for name in ("frontier", "highest_seen", "buffered", "in_flight")}
    assert found == {"frontier": 0, "highest_seen": 1, "buffered": 2, "in_flight": 1}


def test_forbidden_change_of_state_is_an_internal_error():
    """A change that is not in the table tells which record it was."""
    part = Partition.__new__(Partition)
    work = Work(Record("t", 0, 7, 0, None, b""), part, 1)
    with pytest.raises(states.InternalError, match="queued to done"):
        work.move(states.DONE)


def test_diagrams_are_made_of_the_tables():
    """Each table has a diagram that names every state it can lead to."""
    found = states.diagrams()
    assert set(found) == {"record", "epoch", "commit"}
    assert "queued --> running" in found["record"]
