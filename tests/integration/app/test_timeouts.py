"""`timeout_s`: what becomes of an attempt that takes too long."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.support.waiting import wait_for

import perkey

pytestmark = pytest.mark.push


def test_an_async_attempt_is_cancelled_and_failed(kafka):
    """The handler sees its cancellation; the next attempt comes in time."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    app = kafka.app()
    seen = []

    @app.consume(source, timeout_s=0.2, retry=perkey.Retry(delay_s=0))
    async def handler(record):
        if record.attempt == 1:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
        seen.append(record.last_error.type)

    report = kafka.drain(app)  # long before the handler would end by itself
    assert (report.done, report.failed_attempts) == (1, 1)
    assert seen == ["cancelled", "AttemptTimeout"]


def test_an_async_handler_that_swallows_its_cancellation_has_failed_all_the_same(kafka):
    """Whatever it returns after its time counts as a failed attempt."""
    source, out = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"x"])
    app = kafka.app()

    @app.consume(source, output=out, timeout_s=0.1, retry=perkey.Retry(delay_s=0))
    async def handler(record):
        if record.attempt == 1:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                return b"late"
        return b"in time"

    report = kafka.drain(app)
    assert (report.done, report.failed_attempts) == (1, 1)
    assert [m.value() for m in kafka.read(out, 1)] == [b"in time"]


def test_an_explicit_batch_that_acknowledged_all_and_hangs_is_ended_by_its_time(kafka):
    """It has the only slot; no record failed."""
    source = kafka.topic()
    kafka.fill(source, [b"first", b"next"])
    app = kafka.app()
    ended = []

    @app.consume(
        source, timeout_s=0.2, concurrency=1, batch=perkey.Batch(1, linger_s=0, ack="explicit")
    )
    async def handler(batch):
        for record in batch:
            batch.ack(record)
        if batch[0].value == b"first":
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(True)

    report = kafka.drain(app)
    assert (report.done, report.failed_attempts, ended) == (2, 0, [True])


def test_a_plain_call_past_its_time_keeps_slot_and_lane_until_it_returns(kafka):
    """Then it counts as failed, and its value is not sent."""
    source, out = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"slow", b"next"], key=b"k")
    app = kafka.app()
    order, go_on = [], threading.Event()

    @app.consume(source, output=out, timeout_s=0.2, concurrency=5, retry=perkey.Retry(delay_s=0))
    def handler(record):
        order.append((record.value, record.attempt))
        if record.value == b"slow" and record.attempt == 1:
            assert go_on.wait(60)
            threading.Event().wait(0.3)  # too long, however late its thread began
            return b"late"
        return b"in time"

    run = kafka.start(app, until="drained")
    row = wait_for(lambda: [h for h in app.snapshot()["handlers"].values() if h["overdue"] == 1])[0]
    assert (row["in_flight"], order) == (1, [(b"slow", 1)])
    go_on.set()
    report = run.wait(60)
    assert (report.done, report.failed_attempts) == (2, 1)
    assert order == [(b"slow", 1), (b"slow", 2), (b"next", 1)]
    assert [m.value() for m in kafka.read(out, 2)] == [b"in time"] * 2


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_all_slots_overdue_for_ten_times_the_limit_ends_the_run(kafka, kind):
    """Nothing could ever start again: exit 1, naming the handler, bounded."""
    source = kafka.topic()
    kafka.fill(source, [b"a", b"b", b"c"])
    app = kafka.app(drain_timeout_s=0.5)
    go_on = threading.Event()

    def hangs(record):
        go_on.wait(100)

    async def blocks(record):
        go_on.wait(100)

    # A loop that one handler blocks starts no second one.
    handler, slots = (hangs, 2) if kind == "threads" else (blocks, 1)
    app.consume(source, timeout_s=0.1, concurrency=slots)(handler)
    began = time.monotonic()
    report = kafka.start(app).wait(60)  # while they hang
    go_on.set()
    assert report.exit_code == 1
    assert f"handler {handler.__name__}: all {slots} slots" in report.reason
    assert time.monotonic() - began > 1.0


def test_an_attempt_that_is_quick_enough_is_left_alone(kafka):
    """A limit costs nothing to those within it."""
    source = kafka.topic()
    kafka.fill(source, [b""] * 200)
    app = kafka.app()

    @app.consume(source, timeout_s=20)
    async def handler(record):
        await asyncio.sleep(0.001)

    report = kafka.drain(app)
    assert (report.done, report.failed_attempts) == (200, 0)
