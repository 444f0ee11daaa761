"""Each granted call ends exactly once, whatever its handler does and whenever it is cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.support.bench import BENCHES, Bench
from tests.support.waiting import wait_for

import perkey
import perkey.testing
from perkey.core.states import DONE
from perkey.runtime.calls import pace
from perkey.runtime.calls.aio import SLICE_S, AsyncExecutor
from perkey.runtime.calls.batch_calls import BatchTasks, BatchThreads
from perkey.runtime.calls.threads import LOOK_S, ThreadExecutor
from perkey.runtime.door import Reports
from perkey.runtime.suspension import SUSPENDED_S, since_boot
from perkey.testing import run
from perkey.types import Record

WAIT_S = 60.0


def app_of(handler: Any, **options: Any) -> perkey.App:
    """An app with this handler."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})
    app.consume("t", **{"retry": perkey.Retry(attempts=2, delay_s=0), **options})(handler)
    return app


def exits_sync(record: Record) -> Iterator[perkey.Produce]:
    """A generator handler that ends the process, as it thinks."""
    yield perkey.Produce(b"", topic="out")
    raise SystemExit(3)


async def exits_async(record: Record) -> Iterator[perkey.Produce]:
    """The same of an async handler."""
    return exits_sync(record)


def exits_batch(records: perkey.RecordBatch) -> Iterator[perkey.Produce]:
    """The same of a batch handler."""
    return exits_sync(records[0])


@pytest.mark.parametrize("handler", [exits_sync, exits_async, exits_batch])
def test_sys_exit_in_a_generator_fails_the_attempt(handler: Any) -> None:
    """The slot is given back each time: more records than slots are all exhausted."""
    batched = {"batch": perkey.Batch(max_records=1)} if handler is exits_batch else {}
    app = app_of(handler, concurrency=2, on_exhausted=perkey.Skip(), **batched)
    results = run(app, [(f"k{n}", b"") for n in range(6)], timeout_s=20)
    assert [result.outcome for result in results] == ["skipped"] * 6
    assert {r.error.type for r in results if r.error is not None} == {"SystemExit"}


def on_loop(main: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop."""

    async def bounded() -> None:
        try:
            await asyncio.wait_for(main(asyncio.get_running_loop()), WAIT_S)
        finally:
            while BENCHES:
                BENCHES.pop().executor.close()

    asyncio.run(bounded())


async def until(true: Callable[[], Any]) -> None:
    """Let the loop go on until this is so."""
    while not true():  # noqa: ASYNC110  # bounded by on_loop
        await asyncio.sleep(0.001)


def async_bench(loop: asyncio.AbstractEventLoop, **spec: Any) -> Bench:
    """A bench whose handler runs on this loop; a batch handler with `batch=`."""
    kind = BatchTasks if "batch" in spec else AsyncExecutor
    return Bench(lambda plan, door: kind(plan, door, loop), **spec)


class Watched(Reports):
    """Calls that have ended, as another thread may find them: with what its results would say."""

    def __init__(self, plan: Any) -> None:
        super().__init__()
        self.plan, self.said = plan, []

    def append(self, ended: Any) -> None:
        """Look at once."""
        call = self.plan.calls.get(getattr(ended, "work", ended))
        self.said.append(call and (call.returned, call.finished_at >= call.started_at))
        super().append(ended)


@pytest.mark.parametrize("kind", ["async", "threads"])
@pytest.mark.parametrize("value", [None, b"out", ValueError()])
def test_what_a_call_returned_is_known_before_its_end(kind: str, value: Any) -> None:
    """Else a result which another thread reports in that moment had no value and the wrong times."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        spec: Any = {"retry": perkey.Retry(attempts=1)}
        bench = Bench(ThreadExecutor, **spec) if kind == "threads" else async_bench(loop, **spec)
        bench.plan.output, bench.plan.calls = "out", {}
        bench.door.done = bench.door.ended = watched = Watched(bench.plan)

        def handler(_record: Record) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        async def waited(record: Record) -> Any:
            return handler(record)

        bench.function = handler if kind == "threads" else waited
        bench.poll(1)
        await until(lambda: watched.said)
        assert watched.said == [(None if isinstance(value, Exception) else value, True)]

    on_loop(main)


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_a_record_that_its_batch_acknowledged_is_noted_once(kind: str) -> None:
    """Before its end is reported, and not again when the call returns: nobody would take that away."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        spec: Any = {"batch": perkey.Batch(max_records=2, linger_s=0.001, ack="explicit")}
        make = async_bench if kind == "async" else lambda _loop, **own: Bench(BatchThreads, **own)
        bench = make(loop, **spec)
        bench.plan.calls = calls = {}
        taken: list[Any] = []

        def handler(records: perkey.RecordBatch) -> None:
            records.ack(records[0])
            bench.executor.warn(None)  # reports what is acknowledged
            taken.append(calls.pop(first))
            records.ack(records[1])

        async def waited(records: perkey.RecordBatch) -> None:
            handler(records)

        bench.function = waited if kind == "async" else handler
        first, second = bench.poll(2)
        await until(lambda: bench.ticked() or second.state == DONE)
        assert (len(taken), list(calls)) == (1, [second])

    on_loop(main)


def test_a_swallowed_cancellation_is_not_the_next_records() -> None:
    """What fails next on the same worker has failed: it is not given back and called again."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = async_bench(loop, concurrency=1, retry=perkey.Retry(attempts=1))
        begun, cancelling = [], []

        async def handler(record: Record) -> None:
            begun.append(record.value)
            cancelling.append(asyncio.current_task().cancelling())
            if record.value == b"0":
                try:
                    await asyncio.sleep(WAIT_S)
                except asyncio.CancelledError:
                    return
            raise ValueError

        bench.function = handler
        first, second = bench.poll(2)
        await until(lambda: begun)
        bench.executor.cancel(first)
        await until(lambda: second.attempts)
        assert (begun, cancelling) == ([b"0", b"1"], [0, 0])

    on_loop(main)


@pytest.mark.parametrize("burst_first", [False, True])
def test_a_call_destroyed_after_its_loop_raises_nothing(burst_first: bool) -> None:
    """Python destroys the burst and its worker in either order, and no task runs then."""
    loop = asyncio.new_event_loop()
    bench, begun, closed = async_bench(loop), threading.Event(), []

    async def handler(_record: Record) -> None:
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            closed.append(True)

    bench.function = handler
    bench.poll(1)
    loop.run_until_complete(until(begun.is_set))
    bench.executor.close()
    (worker,) = bench.executor._workers
    loop.close()
    BENCHES.clear()
    worker.task._log_destroy_pending = False
    for coroutine in (worker.calls, worker.task.get_coro())[not burst_first :]:
        coroutine.close()
    assert closed == [True]


@pytest.mark.parametrize("batched", [False, True])
def test_a_call_that_never_lets_itself_be_cancelled_is_named(batched: bool, caplog: Any) -> None:
    """In one line before the run has ended, and not by asyncio after it."""
    caplog.set_level("INFO")
    begun = threading.Event()
    with perkey.testing.MemoryKafka() as kafka:
        kafka.create_topic("t", 1)
        kafka.produce("t", b"x")
        servers = {"bootstrap.servers": kafka.bootstrap}
        app = perkey.App(group="g", kafka=servers, drain_timeout_s=0.1)

        async def handler(_record: Any) -> None:
            begun.set()
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(WAIT_S)

        batch = {"batch": perkey.Batch(max_records=1)} if batched else {}
        app.consume("t", timeout_s=0.05, **batch)(handler)
        running = threading.Thread(target=app.run)
        running.start()
        assert begun.wait(WAIT_S)
        app.stop()
        running.join(WAIT_S)
    del app
    gc.collect()
    lines = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert sum("tasks have not ended when cancelled" in line for line in lines) == 1
    assert not any("destroyed" in line for line in lines)


def test_a_batch_that_is_dropped_before_it_began_is_given_back() -> None:
    """Cancelled before its first step a task would never run: its slot was gone for ever."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = async_bench(loop, concurrency=1, batch=perkey.Batch(max_records=1))
        begun = []

        async def handler(records: perkey.RecordBatch) -> None:
            begun.append(records[0].value)

        bench.function = handler
        (work,) = bench.poll(1)
        bench.executor.cancel(work)
        await until(lambda: work.partition.in_flight == 0 and begun)
        assert (begun, work.attempts) == ([b"0"], 0)

    on_loop(main)


@pytest.mark.parametrize("both", [False, True])
def test_a_batch_continues_for_what_stays(both: bool) -> None:
    """S6: one of its two partitions goes away: nothing of the other is handled again."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = async_bench(loop, batch=perkey.Batch(max_records=4, linger_s=0.001))
        calls, go_on = [], asyncio.Event()

        async def handler(records: perkey.RecordBatch) -> None:
            calls.append(len(records))
            await go_on.wait()

        bench.function = handler
        works = bench.poll(4, partitions=2)
        await until(lambda: bench.ticked() or calls)
        gone = [work for work in works if both or work.record.partition == 1]
        held = list({work.partition for work in gone})
        bench.door.call(lambda engine, now: engine.revoking(now, held))
        bench.executor.warn(held)
        for work in gone:
            bench.executor.cancel(work)
        for _ in range(5):
            await asyncio.sleep(0)
        bench.door.call(lambda engine, now: engine.closed(now, held))
        go_on.set()
        await until(lambda: not bench.executor._calls.all())
        assert calls == [4]
        stay = [work.partition.frontier for work in works if work not in gone]
        assert stay == ([] if both else [2, 2])

    on_loop(main)


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("kind", ["async", "waiting", "threads", "batch"])
def test_nothing_begins_after_a_standstill(kind: str, delivery: str) -> None:
    """While its first call lasts the process stands still: what waits behind it does not begin."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        begun: list[bytes] = []

        def stand_still(argument: Any) -> None:
            record = argument if isinstance(argument, Record) else argument[0]
            begun.append(record.value)
            time.sleep(2 * LOOK_S)  # standing still takes time, too
            bench.door.round_at = since_boot() - SUSPENDED_S - 0.1

        async def handler(argument: Any) -> None:
            stand_still(argument)
            if kind == "waiting":
                await asyncio.sleep(0)

        batch = {"batch": perkey.Batch(max_records=1)} if kind == "batch" else {}
        spec = {"delivery": delivery, "concurrency": 4, **batch}
        if kind == "threads":
            bench = Bench(OneThread, **spec)
            bench.function = stand_still
        else:
            bench = async_bench(loop, **spec)
            bench.function = handler
        bench.door.round_at = float("inf")
        works = bench.poll(4)
        await until(
            lambda: (
                bench.ticked() or (begun and all(work.partition.in_flight == 0 for work in works))
            )
        )
        assert begun == [b"0"]
        assert [work.attempts for work in works] == [0] * 4

    on_loop(main)


class OneThread(ThreadExecutor):
    """Its four records are all for one thread, one after another."""

    def _wake_one(self) -> None:
        if self._idle or not self._threads:
            super()._wake_one()


def bench_after(monkeypatch: pytest.MonkeyPatch, calls: int, **spec: Any) -> Bench:
    """Threads that have just ended so many calls, where any number per second is a fast pace."""
    monkeypatch.setattr(pace, "PACE_S", 0.0)
    monkeypatch.setattr(pace, "PACE_PER_S", 0.0)
    monkeypatch.setattr(pace, "AHEAD_S", 1e9)  # however long the machine took for them
    bench = Bench(ThreadExecutor, **spec)
    bench.function = lambda _record: None
    works = bench.poll(calls)
    wait_for(lambda: bench.ticked() or all(work.state == DONE for work in works))
    return bench


@pytest.mark.parametrize("how", ["pace", "warn"])
def test_what_is_granted_ahead_is_given_back(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Once calls are no longer fast, or its partition goes: it waits for none that runs."""
    bench = bench_after(monkeypatch, 4, concurrency=2)
    assert bench.executor.keeps_pace()
    begun, go_on = [], threading.Event()

    def handler(record: Record) -> None:
        begun.append(record.value)
        go_on.wait(WAIT_S)

    bench.function = handler
    (partition,) = {work.partition for work in bench.poll(5)}
    assert partition.in_flight == 5
    wait_for(lambda: len(begun) == 2)
    if how == "pace":
        assert not bench.executor.keeps_pace()
    else:
        bench.door.call(lambda engine, now: engine.revoking(now, [partition]))
        bench.executor.warn([partition])
    assert (partition.in_flight, sorted(begun)) == (2, [b"0", b"1"])
    go_on.set()
    left = 0 if how == "pace" else 3
    wait_for(lambda: bench.ticked() or (partition.buffered, partition.in_flight) == (left, 0))
    assert sorted(begun) == [b"0", b"1", b"2", b"3", b"4"][: 5 - left]
    bench.executor.close()


def test_slow_calls_are_not_granted_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that has ended one call since the last look may hold the next one for long."""
    bench = bench_after(monkeypatch, 3, concurrency=2)
    assert not bench.executor.keeps_pace()
    bench.executor.close()


def test_pace_of_many_slots_is_measured_until_each_has_ended_two_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand slots may need longer than PACE_S for that, and end many calls in it."""
    monkeypatch.setattr(pace, "MEASURED_S", float("inf"))
    bench = bench_after(monkeypatch, 3, concurrency=2)
    assert not bench.executor.keeps_pace()
    (work,) = bench.poll(1)
    wait_for(lambda: bench.ticked() or work.state == DONE)
    assert bench.executor.keeps_pace()
    bench.executor.close()


def test_calls_are_granted_ahead_while_every_second_slot_ends_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Starting needs two of each slot; so calls of an even pace do not switch it on and off."""
    bench = bench_after(monkeypatch, 4, concurrency=2)
    assert bench.executor.keeps_pace()
    (work,) = bench.poll(1)
    wait_for(lambda: bench.ticked() or work.state == DONE)
    assert bench.executor.keeps_pace()
    assert not bench.executor.keeps_pace()
    bench.executor.close()


@pytest.mark.parametrize(
    "spec", [{"timeout_s": 9.0}, {"delivery": "at_most_once"}, {"commit_each": True}]
)
def test_no_call_is_granted_ahead_where_a_grant_counts(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    """Time runs from the grant, or the record is marked, or its slot is kept."""
    bench = bench_after(monkeypatch, 4, concurrency=1, **spec)
    assert not bench.executor.keeps_pace()
    bench.executor.close()


class OneWorker(AsyncExecutor):
    """Its two records are both for one worker, as where the second came behind the first."""

    def _wake(self, _most: int) -> None:
        super()._wake(0 if self._workers else 1)


@pytest.mark.parametrize("how", ["done", "output", "fails"])
def test_what_ended_does_not_wait_for_a_call_that_waits(how: str) -> None:
    """However a call ended, the engine hears of it when its worker's next call first waits."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = Bench(lambda plan, door: OneWorker(plan, door, loop))
        begun = []

        async def handler(record: Record) -> perkey.Produce | None:
            begun.append(record.value)
            if record.value == b"1":
                await asyncio.sleep(WAIT_S)
            if how == "fails":
                raise ValueError
            return perkey.Produce(b"", topic="out") if how == "output" else None

        bench.function = handler
        bench.poll(2)
        await until(lambda: len(begun) == 2 and not (bench.door.done or bench.door.ended))

    on_loop(main)


def test_calls_that_do_not_wait_wake_one_worker() -> None:
    """It takes all of them: a hundred others would each be woken only to find nothing."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = async_bench(loop, concurrency=100)

        async def handler(_record: Record) -> None:
            return

        bench.function = handler
        works = bench.poll(100)
        await until(lambda: all(work.partition.in_flight == 0 for work in works))
        assert len(bench.executor._workers) == 1

    on_loop(main)


def test_calls_that_end_together_are_reported_in_one_turn() -> None:
    """A hundred calls that waited for longer than a slice end at once: not a hundred turns."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = async_bench(loop, concurrency=100)
        release, begun, turns = asyncio.Event(), [], []
        turn = bench.door.turn

        def counted() -> None:
            turns.append(len(bench.door.done))
            turn()

        bench.door.turn = counted  # type: ignore[method-assign]  # turns are counted

        async def handler(record: Record) -> None:
            begun.append(record)
            await release.wait()

        bench.function = handler
        works = bench.poll(100)
        await until(lambda: len(begun) == 100)
        await asyncio.sleep(2 * SLICE_S)
        turns.clear()
        release.set()
        await until(lambda: all(work.partition.in_flight == 0 for work in works))
        assert sum(1 for done in turns if done) <= 3, turns

    on_loop(main)


def test_every_call_on_threads_is_in_the_latency() -> None:
    """Also a short one behind another: if only the slow ones were, they would look common."""

    async def main(_loop: asyncio.AbstractEventLoop) -> None:
        bench = Bench(OneThread, concurrency=40)
        bench.function = lambda _record: None
        bench.door.round_at = float("inf")
        works = bench.poll(40)
        await until(lambda: bench.ticked() or all(work.partition.in_flight == 0 for work in works))
        await until(lambda: len(bench.plan.latency.samples()) == 40)

    on_loop(main)
