"""Stopping, timing out, hearing late."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR

from perkey.account.account import take
from perkey.account.snapshot import snapshot
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Failed, HandlerSpec, Returned
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.policies import Batch, Retry, Stop
from perkey.types import Record


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
def test_stop_now_ends_immediately(make_desk, before):
    """`now` waits for nothing, whatever was asked for before."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    if before:
        desk.do("stop", before)
    desk.do("stop", "now")
    assert len(desk.take(fx.Drained)) == 1


def drains(desk) -> int:
    """How often the end of the stop was told since the last look."""
    return len(desk.take(fx.Drained))


def test_stop_with_nothing_to_do_is_over_at_once_and_told_once(make_desk):
    """Later turns do not say it again."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.do("stop", "in_flight")
    assert drains(desk) == 1
    desk.poll(part, 0)
    desk.pass_time(1.0)
    assert drains(desk) == 0


def test_run_that_is_not_stopped_never_drains(make_desk):
    """An idle engine goes on."""
    desk = make_desk()
    desk.assign(0)
    desk.pass_time(1.0)
    assert (drains(desk), desk.engine.state.drained) == (0, False)


@pytest.mark.parametrize("mode", ["in_flight", "buffered"])
def test_stop_waits_for_outputs_on_their_way(make_desk, mode):
    """Handled is not done while the broker has not acknowledged what it sent."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("stop", mode)
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert drains(desk) == 0
    desk.do("outputs_answered", [(work, (), None)])
    assert drains(desk) == 1


@pytest.mark.parametrize("mode", ["in_flight", "buffered"])
def test_stop_waits_for_claims(make_desk, mode):
    """Outputs of exactly_once are stored with the transaction, and no sooner."""
    desk = make_desk(HandlerSpec("h", delivery="exactly_once"))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("stop", mode)
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert not any(isinstance(effect, fx.Drained) for effect in desk.effects)
    (sent,) = desk.take(fx.Transact)
    desk.do("transacted", sent.sequence, committed=True)
    assert drains(desk) == 1


@pytest.mark.parametrize(("mode", "told"), [("in_flight", 1), ("buffered", 0)])
def test_only_a_buffered_stop_waits_for_retries(make_desk, mode, told):
    """A delay that is not over is something in memory, nothing in flight."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=60.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    desk.do("stop", mode)
    assert drains(desk) == told


@pytest.mark.parametrize(("mode", "told"), [("in_flight", 1), ("buffered", 0)])
def test_only_a_buffered_stop_waits_for_open_batches(make_desk, mode, told):
    """A batch that lingers is something in memory; `buffered` starts it."""
    desk = make_desk(HandlerSpec("h", concurrency=1, batch=Batch(2, 60.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, key=None)
    (call,) = desk.take(fx.Start)
    desk.do("stop", mode)
    desk.do("batch_ended", 0, call.works, [])
    assert drains(desk) == told


def test_buffered_stop_does_not_wait_for_a_paused_topic(make_desk):
    """Nothing of it can start, so nothing of it will be finished."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.do("pause", "t", on=True)
    desk.poll(part, 0)
    desk.do("stop", "buffered")
    assert drains(desk) == 1


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
    desk.poll(part, 0, 1)
    assert desk.started() == []
    assert desk.engine.state.counts["records_of_closed_epochs"] == 2


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
    (row,) = snapshot(take(desk.engine, 0.0))["partitions"]
    found = {name: row[name] for name in ("frontier", "highest_seen", "buffered", "in_flight")}
    assert found == {"frontier": 0, "highest_seen": 1, "buffered": 2, "in_flight": 1}


def test_forbidden_change_of_state_is_an_internal_error():
    """A change that is not in the table tells which record it was."""
    part = Partition.__new__(Partition)
    work = Work.one(Record("t", 0, 7, 0, None, b""), 1, part)
    with pytest.raises(states.InternalError, match="queued to queued"):
        work.move(states.QUEUED)
