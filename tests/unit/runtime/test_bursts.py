"""A worker of async calls stays in its burst while they wait, and steps aside between two."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.bench import Bench
from tests.unit.runtime.test_calls import on_loop, until

from perkey.core.events import Assignment
from perkey.core.states import DONE, RUNNING
from perkey.runtime.calls import aio, pace
from perkey.runtime.calls.aio import SLICE_S, TOGETHER, AsyncExecutor
from perkey.types import Record


class Counted(AsyncExecutor):
    """Counts the bursts of its workers, and how often one of them steps aside."""

    bursts = asides = 0

    async def _burst(self, worker: Any) -> None:
        self.bursts += 1
        await super()._burst(worker)

    @property
    def _away(self) -> int:
        return self._workers_away

    @_away.setter
    def _away(self, count: int) -> None:
        self.asides += count > self.__dict__.get("_workers_away", 0)
        self._workers_away = count


def counted_bench(loop: asyncio.AbstractEventLoop, **spec: Any) -> Bench:
    """A bench whose executor counts."""
    return Bench(lambda plan, door: Counted(plan, door, loop), **spec)


async def waves(bench: Bench, keys: int, count: int) -> None:
    """Calls of `keys` keys that end together, one wave after the other."""
    release, begun = [asyncio.Event() for _ in range(count)], [0] * count

    async def handler(record: Record) -> None:
        wave = record.offset // keys
        begun[wave] += 1
        await release[wave].wait()

    bench.function = handler
    held = bench.door.call(lambda engine, now: engine.assigned(now, [Assignment("t", 0, 0, 0)]))
    records = [Record("t", 0, n, 0, b"k%d" % (n % keys), b"") for n in range(keys * count)]
    sizes = [100] * len(records)
    bench.door.call(lambda engine, now: engine.polled(now, [(held[0], records, sizes)]))
    for wave in range(count):
        await until(lambda wave=wave: begun[wave] == keys)
        await asyncio.sleep(2 * SLICE_S)
        release[wave].set()
    await until(lambda: held[0].in_flight == 0)


def test_a_worker_whose_call_has_waited_continues_its_burst() -> None:
    """Many that end together: most take their next record without another pass of the loop."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        keys, count = 2 * TOGETHER, 4
        bench = counted_bench(loop, concurrency=keys)
        await waves(bench, keys, count)
        assert len(bench.executor._workers) == keys
        assert bench.executor.bursts == keys
        # In each wave until enough have ended; in the last one both halves find no next record.
        assert bench.executor.asides == (count + 1) * (TOGETHER - 1)

    on_loop(main)


def test_a_few_calls_that_waited_are_reported_after_the_pass() -> None:
    """Each worker steps aside once a call, and no further worker is woken for its next record."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        keys, count = 3, 4
        bench = counted_bench(loop, concurrency=100)
        await waves(bench, keys, count)
        assert bench.executor.asides == keys * count
        assert len(bench.executor._workers) == keys

    on_loop(main)


def test_a_worker_whose_calls_never_wait_does_not_step_aside() -> None:
    """Its calls are reported when none is left; after a slice its burst ends."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = counted_bench(loop, concurrency=100)

        async def handler(_record: Record) -> None:
            time.sleep(SLICE_S / 4)  # noqa: ASYNC251  # it blocks the loop

        bench.function = handler
        works = bench.poll(20)
        await until(lambda: all(work.partition.in_flight == 0 for work in works))
        assert bench.executor.asides == 0
        assert bench.executor.bursts > 1

    on_loop(main)


def test_a_late_cancellation_ends_no_worker_that_stepped_aside() -> None:
    """It was meant for the handler that had just ended: the worker takes its next record."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = counted_bench(loop, concurrency=1)
        begun: list[Record] = []

        async def handler(record: Record) -> None:
            begun.append(record)
            await asyncio.sleep(0)
            asyncio.current_task().cancel()

        bench.function = handler
        works = bench.poll(3)
        await until(lambda: all(work.partition.in_flight == 0 for work in works))
        assert [record.offset for record in begun] == [0, 1, 2]
        assert {work.state for work in works} == {DONE}
        assert bench.executor._away == 0
        assert bench.executor.bursts == 1

    on_loop(main)


async def bench_at_pace(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, calls: int, **spec: Any
) -> Bench:
    """Async calls, of which so many have just ended; any number per second is a fast pace."""
    monkeypatch.setattr(pace, "PACE_S", 0.0)
    monkeypatch.setattr(pace, "PACE_PER_S", 0.0)
    monkeypatch.setattr(pace, "AHEAD_S", 1e9)  # however long the machine took for them
    bench = counted_bench(loop, **spec)
    bench.function = waits_once
    works = bench.poll(calls)
    await until(lambda: bench.ticked() or all(work.state == DONE for work in works))
    assert not bench.executor.keeps_pace()  # the loop reports them itself
    return bench


async def waits_once(_record: Record) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["pace", "warn"])
def test_what_is_granted_ahead_is_given_back(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Once calls are no longer fast, or its partition goes: it waits for none that runs."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = await bench_at_pace(loop, monkeypatch, 4, concurrency=2)
        begun, go_on = [], asyncio.Event()

        async def handler(record: Record) -> None:
            begun.append(record.value)
            await go_on.wait()

        bench.function = handler
        (partition,) = {work.partition for work in bench.poll(5)}
        assert partition.in_flight == 5
        await until(lambda: len(begun) == 2)
        if how == "pace":
            bench.executor.keeps_pace()
        else:
            bench.door.call(lambda engine, now: engine.revoking(now, [partition]))
            bench.executor.warn([partition])
        await until(lambda: partition.in_flight == 2)
        assert sorted(begun) == [b"0", b"1"]
        go_on.set()
        left = 0 if how == "pace" else 3
        await until(
            lambda: bench.ticked() or (partition.buffered, partition.in_flight) == (left, 0)
        )
        assert sorted(begun) == [b"0", b"1", b"2", b"3", b"4"][: 5 - left]

    on_loop(main)


def test_a_worker_with_a_record_granted_ahead_does_not_step_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It calls for that one in the same pass, and never more calls run than declared."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = await bench_at_pace(loop, monkeypatch, 8, concurrency=2)
        bench.executor.asides = running = running_max = 0

        async def handler(_record: Record) -> None:
            nonlocal running, running_max
            running += 1
            running_max = max(running_max, running)
            await asyncio.sleep(0)
            running -= 1

        bench.function = handler
        works = bench.poll(10)
        assert all(work.state == RUNNING for work in works)
        await until(lambda: bench.ticked() or all(work.state == DONE for work in works))
        assert running_max == 2
        assert bench.executor.asides <= 2  # where none is left

    on_loop(main)


def test_slow_calls_are_not_granted_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that has ended one call since the last look may hold the next one for long."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = await bench_at_pace(loop, monkeypatch, 3, concurrency=2)
        (partition,) = {work.partition for work in bench.poll(5)}
        assert partition.in_flight == 2
        await until(lambda: partition.in_flight == 0)

    on_loop(main)


def test_whether_calls_may_start_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all workers in LOOK_S, and again after it."""

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        bench = counted_bench(loop, concurrency=20)
        looks: list[bool] = []

        def trusted() -> bool:
            looks.append(True)
            return True

        monkeypatch.setattr(bench.door, "trusted", trusted)
        monkeypatch.setattr(aio, "LOOK_S", 3_600.0)
        bench.function = waits_once
        works = bench.poll(60)
        await until(lambda: all(work.state == DONE for work in works))
        assert len(looks) == 1
        bench.executor._trusted_until = -1.0
        (work,) = bench.poll(1)
        await until(lambda: work.state == DONE)
        assert len(looks) == 2

    on_loop(main)
