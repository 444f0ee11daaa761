"""The time of a call in a worker process counts from when the worker began it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.unit.runtime.test_process_executor import office, states_of

import perkey
from perkey.account.begun import waits
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Steering, Tuning
from perkey.runtime.calls.deadlines import NEVER
from perkey.runtime.calls.processes.executor import REPORT_S
from perkey.runtime.calls.processes.protocol import Reply

__all__ = ["office"]


def test_a_call_killed_for_its_time_out_reports_it(office: Any) -> None:
    """It is a failed attempt like any other, and kills no record for good."""
    desk = office(timeout_s=5.0, retry=perkey.Retry(attempts=5, delay_s=60))
    (work,) = desk.poll(1)
    desk.begin(work)
    desk.child.began_at = time.monotonic() - 5.0
    desk.bench.ticked()
    assert desk.child.killed
    desk.executor._died(desk.child)
    assert (work.state, work.failure.error.type) == (states.RETRYING, "AttemptTimeout")
    assert work.failure.error.message == "no answer within timeout_s=5.0"


def test_a_batch_is_killed_for_its_time_out_though_its_first_record_is_done(office: Any) -> None:
    """The first record stands for the call, also once it is acknowledged (found by a seed)."""
    batch = perkey.Batch(max_records=2, linger_s=0, ack="explicit")
    desk = office(batch=batch, ahead=0, timeout_s=5.0, retry=perkey.Retry(attempts=5, delay_s=60))
    works = desk.poll(2)
    desk.begin(works[0])
    desk.hear(desk.child, Reply(next(iter(desk.child.given)), "acked"))
    desk.child.began_at = time.monotonic() - 5.0
    desk.bench.ticked()
    assert desk.child.killed
    desk.executor._died(desk.child)
    assert states_of(works) == [states.DONE, states.RETRYING]
    assert works[1].failure.error.type == "AttemptTimeout"


def test_a_time_out_of_what_has_just_ended_kills_no_one(office: Any) -> None:
    """Its answer came in that very moment; the next call has nothing to do with it."""
    desk = office(timeout_s=5.0)
    first, second = desk.poll(2)
    desk.begin(first)
    desk.hear(desk.child, Reply(next(iter(desk.child.given)), "done"))
    desk.bench.ticked()
    assert not desk.child.killed
    desk.begin(second)
    desk.bench.ticked()
    assert desk.child.killed


def test_what_has_not_begun_is_not_overdue(office: Any) -> None:
    """Workers that open slowly (found in production): all slots were overdue, and the run ended."""
    desk = office(concurrency=1, ahead=1, timeout_s=1.0)
    desk.child.opened = False
    desk.bench.pass_to(0.0)
    works = desk.poll(2)
    for now in range(1, 61):
        desk.bench.pass_to(float(now))
    assert not [effect for effect in desk.bench.effects if isinstance(effect, fx.Fatal)]
    assert not desk.child.killed
    assert not works[0].partition.handler.overdue


@pytest.mark.parametrize(("ran_s", "killed"), [(4.0, False), (5.0, True), (9.0, True)])
def test_a_call_has_all_its_time_from_when_its_worker_began_it(
    office: Any, ran_s: float, killed: bool
) -> None:
    """However long ago the engine requested it; and only the worker that runs it is killed."""
    desk = office(concurrency=1, ahead=0, timeout_s=5.0)
    desk.bench.pass_to(0.0)
    (work,) = desk.poll(1)
    desk.begin(work)
    desk.child.began_at = time.monotonic() - ran_s
    desk.bench.pass_to(100.0)
    assert desk.child.killed is killed
    due = desk.executor.next_due(100.0)
    assert due == pytest.approx(105.0 if killed else 101.0, abs=0.5)


def test_nothing_is_due_without_a_time_out_or_a_call(office: Any) -> None:
    """The polling thread wakes for neither."""
    assert office(timeout_s=5.0).executor.next_due(0.0) == NEVER
    desk = office()
    desk.begin(*desk.poll(1))
    assert desk.executor.next_due(0.0) == NEVER


def test_the_engine_hears_which_calls_wait_for_a_worker(office: Any) -> None:
    """Also without a time-out; and since when those run that waited the last time."""
    desk = office(concurrency=1, ahead=2)
    desk.bench.pass_to(0.0)
    works = desk.poll(3)
    desk.begin(works[0])
    desk.executor._report_waiting()
    assert [waits(work) for work in works] == [False, True, True]
    desk.hear(desk.child, Reply(next(iter(desk.child.given)), "done"))
    desk.bench.pass_to(50.0)
    desk.begin(works[1])
    desk.child.began_at = time.monotonic() - 10.0
    desk.executor._report_waiting()
    assert [waits(work) for work in works] == [False, False, True]
    assert [work.since for work in works] == [0.0, pytest.approx(40.0, abs=1.0), 0.0]


def test_a_worker_that_opens_is_looked_at_again(office: Any) -> None:
    """One call, and nothing behind it: no other event would report that it has not begun."""
    desk = office(concurrency=1, ahead=0)
    assert desk.executor._look_in_s() is None
    (work,) = desk.poll(1)
    assert desk.executor._look_in_s() == REPORT_S
    desk.executor._report_waiting()
    assert waits(work)
    desk.begin(work)
    assert desk.executor._look_in_s() == REPORT_S  # the engine does not know that it began
    desk.executor._report_waiting()
    assert not waits(work)
    assert desk.executor._look_in_s() is None


def test_a_call_that_no_worker_may_have_yet_wakes_the_dispatcher(office: Any) -> None:
    """All workers open: what waits was reported only once one had opened (found by hand)."""
    desk = office(concurrency=1, ahead=0)
    desk.child.opened = False
    desk.executor._sleeps = True
    desk.poll(1)
    assert not desk.executor._tokens.empty()
    assert desk.executor._look_in_s() == REPORT_S


def test_a_partition_that_goes_kills_no_worker(office: Any) -> None:
    """Only a time-out does."""
    desk = office(timeout_s=5.0)
    (work,) = desk.poll(1)
    desk.begin(work)
    desk.executor.cancel(work)
    assert not desk.child.killed


@pytest.mark.parametrize(("ran_s", "killed"), [(60.0, False), (6.0, True)])
def test_a_time_out_that_is_set_is_of_later_calls(office: Any, ran_s: float, killed: bool) -> None:
    """A call that ran before a command set the first time-out has none."""
    desk = office(concurrency=1, ahead=0)
    desk.bench.pass_to(0.0)
    desk.begin(*desk.poll(1))
    desk.bench.pass_to(90.0)
    steering = Steering((), {0: Tuning(timeout_s=5.0)})
    desk.bench.door.call(lambda engine, now: engine.steer(now, steering))
    desk.child.began_at = time.monotonic() - ran_s
    desk.bench.pass_to(100.0)
    assert desk.child.killed is killed
