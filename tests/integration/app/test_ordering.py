"""Lanes: what is handled one at a time, and what at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict

import pytest


class Watch:
    """Notes who runs at the same time as whom."""

    def __init__(self, lane):
        self._lane = lane
        self.running = defaultdict(int)
        self.most = defaultdict(int)
        self.together = 0
        self.order = defaultdict(list)

    def enter(self, record):
        lane = self._lane(record)
        self.running[lane] += 1
        self.most[lane] = max(self.most[lane], self.running[lane])
        self.together = max(self.together, sum(self.running.values()))
        self.order[lane].append(record.offset)

    def leave(self, record):
        self.running[self._lane(record)] -= 1

    async def until(self, most):
        """A call goes on once so many have run at the same time, however slow their start is."""
        deadline = time.monotonic() + 60
        while self.together < most and time.monotonic() < deadline:  # noqa: ASYNC110  # has a limit
            await asyncio.sleep(0.001)  # between two looks


LANES = {
    "key": lambda record: (record.topic, record.partition, record.key),
    "partition": lambda record: (record.topic, record.partition),
}


@pytest.mark.parametrize("kind", ["async", "threads"])
@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_a_lane_is_handled_one_at_a_time_in_offset_order(kafka, ordering, kind):
    """Nothing of one lane overlaps; several lanes run at once, up to the concurrency."""
    dice = random.Random(3)
    source = kafka.topic(partitions=4)
    kafka.fill(
        source,
        [{"value": b"", "key": b"%d" % dice.randrange(8), "partition": n % 4} for n in range(400)],
    )
    watch = Watch(LANES[ordering])
    app = kafka.app()

    async def waits(record):
        watch.enter(record)
        await asyncio.sleep(dice.random() * 0.004)
        watch.leave(record)

    def blocks(record):
        watch.enter(record)
        time.sleep(dice.random() * 0.004)  # the handler's work
        watch.leave(record)

    handler = waits if kind == "async" else blocks
    app.consume(source, ordering=ordering, concurrency=10)(handler)
    assert kafka.drain(app).done == 400
    assert set(watch.most.values()) == {1}
    assert all(offsets == sorted(offsets) for offsets in watch.order.values())
    assert 2 <= watch.together <= 10


def test_unordered_records_run_at_once_even_under_one_key(kafka):
    """Each record is a lane of its own."""
    source = kafka.topic()
    kafka.fill(source, [b""] * 50, key=b"k")
    watch = Watch(lambda record: record.key)
    app = kafka.app()

    @app.consume(source, ordering="unordered", concurrency=20)
    async def handler(record):
        watch.enter(record)
        await watch.until(20)
        watch.leave(record)

    assert kafka.drain(app).done == 50
    assert watch.together == 20


def test_null_keys_order_with_nothing_and_the_empty_key_is_a_key(kafka):
    """Records without a key run at once; those under b"" one after another."""
    source = kafka.topic()
    kafka.fill(source, [b""] * 20)
    kafka.fill(source, [b""] * 20, key=b"")
    watch = Watch(lambda record: record.key)
    app = kafka.app()

    @app.consume(source)
    async def handler(record):
        watch.enter(record)
        await watch.until(7)
        await asyncio.sleep(0.001)
        watch.leave(record)

    assert kafka.drain(app).done == 40
    assert watch.most[b""] == 1
    assert watch.most[None] > 5


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_bounds_the_calls_in_flight(kafka, concurrency):
    """Never more than asked for, whatever waits."""
    source = kafka.topic()
    kafka.fill(source, [b""] * 60)
    watch = Watch(lambda _: None)
    app = kafka.app()

    @app.consume(source, concurrency=concurrency)
    async def handler(record):
        watch.enter(record)
        await watch.until(concurrency)
        await asyncio.sleep(0.001)
        watch.leave(record)

    kafka.drain(app)
    assert watch.together == concurrency


def test_a_rate_limit_spreads_the_starts(kafka):
    """30 records at 60 a second take about half a second, however quick the handler is."""
    source = kafka.topic()
    kafka.fill(source, [b""] * 30)
    app = kafka.app()
    starts = []

    # One at a time: no call that was granted in time begins late, together with the next.
    @app.consume(source, rate_limit_per_s=60, concurrency=1)
    async def handler(record):
        starts.append(time.monotonic())

    kafka.drain(app)
    assert starts[-1] - starts[0] >= 0.3
    burst = sum(1 for start in starts if start - starts[0] < 0.02)
    assert burst <= 60 * 0.1 + 3
