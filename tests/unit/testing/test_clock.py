"""The virtual clock: it skips dead time, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise

import perkey
from perkey.testing import VirtualClock, run


def app_with(**options: object) -> tuple[perkey.App, object]:
    """An app, and the decorator of its one handler."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"})
    return app, app.consume("orders", **options)


def test_retry_delays_take_no_real_time() -> None:
    """Four delays of 30 s pass in a moment, and each is as long as asked."""
    clock = VirtualClock()
    app, consume = app_with(retry=perkey.Retry(attempts=5, delay_s=30, multiplier=1, jitter=0))
    at: list[tuple[float, float]] = []

    @consume
    async def handle(record: perkey.Record) -> None:
        at.append((clock.now(), time.monotonic()))
        if record.attempt < 5:
            raise ValueError

    began = time.monotonic()
    (result,) = run(app, [b"1"], clock=clock)
    assert time.monotonic() - began < 60
    assert result.attempts == 5
    waits = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(at)]
    # What a busy machine takes comes on top; the clock skips no more than was asked.
    assert all(wait >= 30 > wait - real - 0.01 for wait, real in waits), waits
    assert clock.elapsed_s >= 120


def test_time_is_not_skipped_while_a_handler_runs() -> None:
    """A handler that takes 0.2 s of real time with a time-out of 60 s is not cut off."""
    clock = VirtualClock()
    app, consume = app_with(timeout_s=60)

    @consume
    async def handle(record: perkey.Record) -> None:
        await asyncio.sleep(0.2)

    (result,) = run(app, [b"1"], clock=clock)
    assert result.outcome == "done"
    assert clock.elapsed_s >= 0.2
    assert clock.skipped_s < 5


def test_a_time_out_comes_when_the_handler_waits_on_the_clock() -> None:
    """`await clock.sleep_async(600)` against `timeout_s=100`: cancelled, in no time."""
    clock = VirtualClock()
    app, consume = app_with(timeout_s=100, retry=perkey.Retry(attempts=1))

    @consume
    async def handle(record: perkey.Record) -> None:
        await clock.sleep_async(600)

    began = time.monotonic()
    (result,) = run(app, [b"1"], clock=clock)
    assert (result.outcome, result.error.type) == ("parked", "AttemptTimeout")
    assert 100 <= clock.elapsed_s < 600
    assert time.monotonic() - began < 60


def test_a_real_time_out_still_happens() -> None:
    """A handler that waits outside of the clock is timed out in real time."""
    app, consume = app_with(timeout_s=0.1, retry=perkey.Retry(attempts=1))

    @consume
    async def handle(record: perkey.Record) -> None:
        await asyncio.sleep(30)

    (result,) = run(app, [b"1"], clock=VirtualClock())
    assert result.error.type == "AttemptTimeout"


def test_plain_handlers_wait_on_it_too() -> None:
    """Ten calls of `clock.sleep(20)` on two threads: a hundred seconds, in a moment."""
    clock = VirtualClock()
    app, consume = app_with(concurrency=2, ordering="unordered")

    @consume
    def handle(record: perkey.Record) -> None:
        clock.sleep(20)

    began = time.monotonic()
    results = run(app, [b"%d" % number for number in range(10)], clock=clock)
    assert [result.outcome for result in results] == ["done"] * 10
    real_s = time.monotonic() - began
    assert 95 < clock.elapsed_s < 120 + real_s
    assert real_s < 60


def test_without_a_broker_it_is_a_plain_clock() -> None:
    """Nobody skips its time: a sleep takes as long as it says."""
    clock = VirtualClock()
    clock.sleep(0.05)
    asyncio.run(clock.sleep_async(0.05))
    assert clock.elapsed_s >= 0.1
    assert clock.skipped_s == 0


def test_the_first_sleeper_decides_how_far_it_skips() -> None:
    """It does not jump over anybody, and never back."""
    clock = VirtualClock()
    woken, before = threading.Event(), clock.now()

    def sleep() -> None:
        clock.sleep(5)
        woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    clock.watch(lambda: 1)
    while not clock.quiet():
        threading.Event().wait(0.001)
    clock.skip_to(clock.now() + 1_000)
    assert woken.wait(60)
    thread.join()
    assert clock.now() - before >= 5 >= clock.skipped_s
    clock.skip_to(before)
    assert clock.now() - before >= 5
    assert not clock.quiet()
