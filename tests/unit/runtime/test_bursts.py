"""A worker of async calls stays in its burst while they wait, and steps aside between two."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.support.bench import Bench
from tests.unit.runtime.test_calls import on_loop, until

from perkey.core.events import Assignment
from perkey.core.states import DONE
from perkey.runtime.calls.aio import SLICE_S, TOGETHER, AsyncExecutor
from perkey.types import Record


class Counted(AsyncExecutor):
    """Counts the bursts of its workers, and how often one of them steps aside."""

    bursts = asides = 0

    async def _burst(self, worker: Any) -> None:
        self.bursts += 1
        await super()._burst(worker)

    async def _step_aside(self) -> None:
        self.asides += 1
        await super()._step_aside()


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
