"""`timeout_s` counts from when a call starts, and the executor applies it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from tests.support.bench import Bench
from tests.support.waiting import wait_for
from tests.unit.runtime.test_calls import until

import perkey
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Steering, Tuning
from perkey.core.work import Work
from perkey.runtime.calls.aio import AsyncExecutor
from perkey.runtime.calls.batch_calls import BatchTasks, BatchThreads
from perkey.runtime.calls.deadlines import NEVER, Deadlines
from perkey.runtime.calls.threads import ThreadExecutor
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor, HandlerPlan

LATER = perkey.Retry(attempts=5, delay_s=600)
EXPLICIT = perkey.Batch(max_records=2, linger_s=0, ack="explicit")


class Hand(Executor):
    """An executor whose calls start and end as the test says."""

    def __init__(self, plan: HandlerPlan, door: Door) -> None:
        self.expired: list[Work] = []
        self.deadlines = Deadlines[Work](plan, door, self.expired.append)

    def start(self, works: Sequence[Work]) -> None:
        """They wait until the test starts them."""


def bench_at(make: Callable[..., Any] = Hand, **spec: Any) -> Bench:
    """A bench whose clock stands at 0."""
    bench = Bench(make, **{"timeout_s": 2.0, "retry": LATER, "ordering": "unordered", **spec})
    bench.pass_to(0.0)
    return bench


def fatal(bench: Bench) -> list[str]:
    """Why the run ended."""
    return [effect.reason for effect in bench.effects if isinstance(effect, fx.Fatal)]


# -- the deadlines of one handler ------------------------------------------------------------------


def test_a_call_that_has_not_started_is_never_overdue() -> None:
    """It waits for a thread, a worker or a prefetch: none of its time is used."""
    bench = bench_at()
    bench.poll(2)
    for now in range(1, 61):
        bench.pass_to(float(now))
    assert (bench.executor.expired, fatal(bench)) == ([], [])


def test_each_call_is_ended_once_in_the_order_of_their_starts() -> None:
    """What ended in time is not."""
    bench = bench_at()
    deadlines = bench.executor.deadlines
    first, second, third = bench.poll(3)
    deadlines.began(first)
    deadlines.began(second)
    bench.pass_to(0.5)
    deadlines.began(third)
    assert not deadlines.ended(second)
    assert deadlines.next_due(0.5) == 2.0
    bench.pass_to(1.9)
    assert bench.executor.expired == []
    bench.pass_to(2.0)
    assert bench.executor.expired == [first]
    assert deadlines.next_due(2.0) == 2.5
    bench.pass_to(2.5)
    bench.pass_to(9.0)
    assert bench.executor.expired == [first, third]
    assert [deadlines.ended(work) for work in (first, second, third)] == [True, False, True]


def test_the_polling_thread_looks_again_before_a_call_that_starts_now_is_due() -> None:
    """While calls are in flight; without any it does not wake."""
    bench = bench_at()
    assert bench.executor.deadlines.next_due(0.0) == NEVER
    bench.poll(1)
    assert bench.executor.deadlines.next_due(1.0) == 3.0


def test_a_call_that_ends_while_it_expires_is_in_time_and_leaves_nothing() -> None:
    """Its thread takes it off between the two steps of the thread in the door."""
    bench = bench_at()
    deadlines = bench.executor.deadlines
    (work,) = bench.poll(1)
    late: list[bool] = []

    class Ends(dict[Work, float]):
        def pop(self, call: Work, *default: Any) -> Any:
            if not late:
                late.append(True)
                late[0] = deadlines.ended(work)
            return super().pop(call, *default)

    deadlines._running = Ends()
    deadlines.began(work)
    bench.pass_to(5.0)
    assert (late, deadlines.overdue, bench.executor.expired) == ([False], {}, [])


@pytest.mark.parametrize(("seconds", "ends"), [(19.9, False), (20.0, True)])
def test_all_slots_overdue_for_ten_time_outs_end_the_run(seconds: float, ends: bool) -> None:
    """Since the last of them was: nothing will ever start again."""
    bench = bench_at(concurrency=2)
    first, second = bench.poll(2)
    bench.executor.deadlines.began(first)
    bench.pass_to(5.0)
    bench.executor.deadlines.began(second)
    bench.pass_to(7.0)
    assert bench.executor.expired == [first, second]
    bench.pass_to(7.0 + seconds)
    reason = "handler h: all 2 slots have been overdue for ten times timeout_s=2.0"
    assert fatal(bench) == [reason] * ends


def test_a_slot_that_is_free_again_hangs_no_run() -> None:
    """However long the others have been overdue."""
    bench = bench_at(concurrency=2)
    first, second = bench.poll(2)
    for work in (first, second):
        bench.executor.deadlines.began(work)
    bench.pass_to(2.0)
    assert bench.executor.deadlines.ended(first)
    bench.pass_to(90.0)
    assert fatal(bench) == []


def steered(bench: Bench, tuning: Tuning | None) -> None:
    """A command sets this from now on."""
    steering = Steering() if tuning is None else Steering((), {0: tuning})
    bench.door.call(lambda engine, now: engine.steer(now, steering))


def test_all_slots_that_a_command_left_may_hang() -> None:
    """Of two one was taken away: with the other one hanging nothing starts."""
    bench = bench_at(concurrency=2)
    steered(bench, Tuning(1))
    (work, _) = bench.poll(2)
    bench.executor.deadlines.began(work)
    bench.pass_to(2.0)
    bench.pass_to(22.0)
    assert "all 1 slots" in fatal(bench)[0]


@pytest.mark.parametrize("set_s", [1.0, 30.0])
def test_a_time_out_that_is_set_is_that_of_running_calls(set_s: float) -> None:
    """In place of the declared one, counted from their start."""
    bench = bench_at(timeout_s=10.0)
    (work,) = bench.poll(1)
    bench.executor.deadlines.began(work)
    bench.pass_to(0.5)
    steered(bench, Tuning(timeout_s=set_s))
    bench.pass_to(set_s - 0.1)
    assert bench.executor.expired == []
    bench.pass_to(set_s)
    assert bench.executor.expired == [work]


def test_a_time_out_that_ends_is_that_of_no_running_call() -> None:
    """Not when another one is set later, either."""
    bench = bench_at(timeout_s=None)
    steered(bench, Tuning(timeout_s=5.0))
    (work,) = bench.poll(1)
    bench.executor.deadlines.began(work)
    steered(bench, None)
    bench.pass_to(4.0)
    steered(bench, Tuning(timeout_s=5.0))
    bench.pass_to(90.0)
    assert bench.executor.expired == []


# -- threads ---------------------------------------------------------------------------------------


def gated(bench: Bench) -> tuple[threading.Event, threading.Event]:
    """The handler waits for the second event after it has set the first."""
    begun, gate = threading.Event(), threading.Event()

    def handler(_argument: Any) -> None:
        begun.set()
        assert gate.wait(60)

    bench.function = handler
    return begun, gate


@pytest.mark.parametrize("batched", [False, True])
def test_a_thread_past_its_time_out_keeps_its_slot_and_fails_when_it_returns(
    batched: bool,
) -> None:
    """It cannot be cancelled: overdue, reported so, and its late result counts for nothing."""
    batch = {"batch": perkey.Batch(max_records=1)} if batched else {}
    bench = bench_at(BatchThreads if batched else ThreadExecutor, concurrency=1, **batch)
    begun, gate = gated(bench)
    (work,) = bench.poll(1)
    assert begun.wait(60)
    handler = work.partition.handler
    bench.pass_to(1.9)
    assert not handler.overdue
    bench.pass_to(2.0)
    assert (len(handler.overdue), handler.in_flight, work.state) == (1, 1, states.RUNNING)
    gate.set()
    wait_for(lambda: work.attempts)
    assert work.failure is not None
    assert work.failure.error is not None
    assert work.failure.error.type == "AttemptTimeout"
    assert (handler.done, handler.in_flight, len(handler.overdue)) == (0, 0, 0)
    bench.executor.close()


def test_a_record_that_no_thread_has_taken_is_not_overdue() -> None:
    """The only thread is busy with another one, granted together with it."""
    bench = bench_at(ThreadExecutor, concurrency=1, ahead=1)
    begun, gate = gated(bench)
    first, second = bench.poll(2)
    assert begun.wait(60)
    bench.pass_to(2.0)
    assert list(bench.executor._deadlines.overdue) == [first]
    bench.pass_to(2.1)
    bench.door.call(lambda engine, now: engine.halt(now, "test", on=True))
    gate.set()
    wait_for(lambda: second.state == states.DONE)
    assert (first.attempts, second.attempts) == (1, 0)
    bench.executor.close()


def test_a_batch_that_acknowledged_all_and_runs_on_is_logged() -> None:
    """Its slot would be lost for ever, and no record of it can fail."""
    bench = bench_at(BatchThreads, concurrency=1, batch=EXPLICIT)
    begun, gate = threading.Event(), threading.Event()

    def handler(batch: perkey.RecordBatch) -> None:
        for record in batch:
            batch.ack(record)
        begun.set()
        assert gate.wait(60)

    bench.function = handler
    works = bench.poll(2)
    assert begun.wait(60)
    bench.executor.warn(None)  # what was acknowledged is reported
    assert [work.state for work in works] == [states.DONE] * 2
    bench.pass_to(2.0)
    notes = [effect.event for effect in bench.effects if isinstance(effect, fx.Note)]
    assert notes == ["batch call runs past its timeout_s, all its records are acknowledged"]
    handler_ = works[0].partition.handler
    assert len(handler_.overdue) == 1
    bench.pass_to(22.0)
    assert len(fatal(bench)) == 1
    gate.set()
    wait_for(lambda: not handler_.overdue)
    bench.executor.close()


# -- async -----------------------------------------------------------------------------------------


def on_loop(main: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop, for 60 s at most."""

    async def bounded() -> None:
        await asyncio.wait_for(main(asyncio.get_running_loop()), 60)

    asyncio.run(bounded())


@pytest.mark.parametrize("batched", [False, True])
def test_an_async_call_is_cancelled_at_its_time_out_from_its_start(batched: bool) -> None:
    """The loop had no time for it before: that uses none of its time."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        batch = {"batch": perkey.Batch(max_records=1)} if batched else {}
        make = BatchTasks if batched else AsyncExecutor
        bench = bench_at(lambda plan, door: make(plan, door, loop), concurrency=1, **batch)
        begun = []

        async def handler(argument: Any) -> None:
            begun.append(argument)
            await asyncio.sleep(600)

        bench.function = handler
        (work,) = bench.poll(1)
        bench.pass_to(50.0)  # the loop has not run since
        await until(lambda: begun)
        bench.pass_to(51.9)
        await asyncio.sleep(0)
        assert not work.attempts
        bench.pass_to(52.0)
        await until(lambda: work.attempts)
        assert work.failure.error.message == "no answer within timeout_s=2.0"
        assert not work.partition.handler.overdue
        assert fatal(bench) == []
        bench.executor.close()

    on_loop(main)


@pytest.mark.parametrize("batched", [False, True])
def test_an_async_call_that_swallows_its_cancellation_has_failed(batched: bool) -> None:
    """Its late result counts for nothing; it is overdue until then."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        batch = {"batch": perkey.Batch(max_records=1)} if batched else {}
        make = BatchTasks if batched else AsyncExecutor
        bench = bench_at(lambda plan, door: make(plan, door, loop), concurrency=1, **batch)
        begun, cancelled, gate = [], [], asyncio.Event()

        async def handler(argument: Any) -> None:
            begun.append(argument)
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                cancelled.append(argument)
            await gate.wait()

        bench.function = handler
        (work,) = bench.poll(1)
        await until(lambda: begun)
        bench.pass_to(2.0)
        await until(lambda: cancelled)
        assert len(work.partition.handler.overdue) == 1
        gate.set()
        await until(lambda: work.attempts)
        assert work.failure.error.type == "AttemptTimeout"
        assert work.partition.handler.done == 0
        bench.executor.close()

    on_loop(main)


def test_a_time_out_of_what_has_just_ended_cancels_no_other_attempt() -> None:
    """It was requested of the loop; meanwhile the record runs again."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = bench_at(lambda plan, door: AsyncExecutor(plan, door, loop), concurrency=1)
        begun, gate = [], asyncio.Event()

        async def handler(record: perkey.Record) -> None:
            begun.append(record)
            await gate.wait()

        bench.function = handler
        (work,) = bench.poll(1)
        await until(lambda: begun)
        bench.executor._expired(work)  # of an attempt before
        for _ in range(5):
            await asyncio.sleep(0)
        gate.set()
        await until(lambda: work.state == states.DONE)
        assert work.attempts == 0
        bench.executor.close()

    on_loop(main)
