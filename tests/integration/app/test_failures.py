"""Failing attempts: what is tried again, when, and how a record ends."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import pairwise

import pytest
from tests.support.waiting import wait_for

import perkey


class Hopeless(Exception):
    """An error no further attempt can cure."""


def attempts_of(kafka, handler, *, values=(b"x",), **options):
    """Drain these values through a handler; the report, and the results by value."""
    source = kafka.topic()
    kafka.fill(source, values, key=b"k")
    app = kafka.app()
    app.consume(source, **options)(handler)
    stream = app.results()
    run = kafka.start(app, until="drained")
    results = {result.record.value: result for result in stream}
    return run.wait(60), results


def test_the_second_attempt_knows_its_number_and_the_error_before(kafka):
    """`attempt` counts from 1; `last_error` is what the attempt before ended with."""
    seen = []

    def handler(record):
        seen.append((record.attempt, record.last_error and record.last_error[:2]))
        if record.attempt < 3:
            raise ValueError(f"no {record.attempt}")

    report, results = attempts_of(kafka, handler, retry=perkey.Retry(delay_s=0))
    assert seen == [(1, None), (2, ("ValueError", "no 1")), (3, ("ValueError", "no 2"))]
    assert (report.exit_code, report.done, report.failed_attempts, report.retried) == (0, 1, 2, 2)
    assert (results[b"x"].outcome, results[b"x"].attempts) == ("done", 3)


def test_a_failing_record_holds_up_its_own_lane_and_no_other(kafka):
    """Records of other keys are done while it waits; those of its key come after it, in order."""
    source = kafka.topic()
    kafka.fill(source, [{"value": b"bad", "key": b"a"}, {"value": b"after", "key": b"a"}])
    kafka.fill(source, [b"other"] * 5, key=b"b")
    app = kafka.app()
    order = []

    # It fails until the others are done: had they to wait for it, nobody would ever end.
    @app.consume(source, retry=perkey.Retry(attempts=None, delay_s=0.05, multiplier=1))
    async def handler(record):
        order.append(record.value)
        if record.value == b"bad" and (record.attempt == 1 or order.count(b"other") < 5):
            raise ValueError

    assert kafka.drain(app).done == 7
    assert order[-2:] == [b"bad", b"after"]
    assert [value for value in order if value != b"bad"] == [b"other"] * 5 + [b"after"]


def test_reject_and_the_types_in_final_are_final_immediately(kafka):
    """No second attempt; the reason stands in the result."""

    def handler(record):
        raise perkey.Reject("not ours") if record.value == b"rejected" else Hopeless("never")

    report, results = attempts_of(
        kafka,
        handler,
        values=[b"rejected", b"hopeless"],
        retry=perkey.Retry(attempts=5, final=(Hopeless,)),
        on_exhausted=perkey.Skip(),
    )
    assert (report.exit_code, report.skipped, report.failed_attempts) == (0, 2, 2)
    assert results[b"rejected"].error[:2] == ("Reject", "not ours")
    assert results[b"hopeless"].error[:2] == ("Hopeless", "never")
    assert "raise" in results[b"hopeless"].error.traceback


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_retry_after_chooses_the_delay(kafka, kind):
    """RetryAfter counts as a failed attempt, and its delay wins over the policy's."""
    calls = []

    def answer(record):
        calls.append(time.monotonic())
        if record.attempt == 1:
            raise perkey.RetryAfter(0.3)

    async def waits(record):
        answer(record)

    report, _ = attempts_of(
        kafka,
        waits if kind == "async" else answer,
        retry=perkey.Retry(attempts=2, delay_s=60),
    )
    assert (report.exit_code, report.failed_attempts) == (0, 1)
    assert 0.3 <= calls[1] - calls[0] < 50


def test_the_delay_may_be_a_callable_of_attempt_and_error(kafka):
    """It is asked before each retry, with the number of the attempt that failed."""
    asked = []

    def delay(attempt, error):
        asked.append((attempt, str(error)))
        return 0.01 * attempt

    def handler(record):
        if record.attempt < 3:
            raise ValueError(f"no {record.attempt}")

    report, _ = attempts_of(kafka, handler, retry=perkey.Retry(delay_s=delay))
    assert report.done == 1
    assert asked == [(1, "no 1"), (2, "no 2")]


def test_delays_grow_by_the_multiplier_up_to_their_maximum(kafka):
    """0.05, 0.2, then the maximum of 0.3 seconds; the last alone would be 51 s without it."""
    calls = []

    def handler(record):
        calls.append(time.monotonic())
        if record.attempt < 7:
            raise ValueError

    retry = perkey.Retry(attempts=7, delay_s=0.05, multiplier=4, delay_max_s=0.3, jitter=0)
    attempts_of(kafka, handler, retry=retry)
    waits = [later - sooner for sooner, later in pairwise(calls)]
    for waited, wanted in zip(waits, (0.05, 0.2, 0.3, 0.3, 0.3, 0.3), strict=True):
        assert waited >= wanted
    assert calls[-1] - calls[0] < 50


def test_attempts_none_retries_for_ever(kafka):
    """Far more attempts than the default allows, and then it is done."""

    def handler(record):
        if record.attempt < 40:
            raise ValueError

    report, results = attempts_of(kafka, handler, retry=perkey.Retry(attempts=None, delay_s=0))
    assert (report.done, report.failed_attempts, results[b"x"].attempts) == (1, 39, 40)


def test_a_handler_that_raises_a_base_exception_fails_only_its_attempt(kafka):
    """SystemExit, KeyboardInterrupt and CancelledError from a handler are failures as others."""
    import asyncio

    kinds = {b"exit": SystemExit, b"interrupt": KeyboardInterrupt}

    def plain(record):
        if record.attempt == 1:
            raise kinds[record.value]

    async def waits(record):
        if record.attempt == 1:
            raise asyncio.CancelledError

    report, _ = attempts_of(kafka, plain, values=list(kinds), retry=perkey.Retry(delay_s=0))
    assert (report.exit_code, report.done, report.failed_attempts) == (0, 2, 2)
    report, _ = attempts_of(kafka, waits, retry=perkey.Retry(delay_s=0))
    assert (report.exit_code, report.done, report.failed_attempts) == (0, 1, 1)


@pytest.mark.parametrize("remember", [True, False])
def test_park_keeps_the_record_not_done(kafka, remember):
    """Drained with exit code 3; the rest is done. A restart tries it again only if it forgets.

    What is mended is released, here by a policy with a time.
    """
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [{"value": b"%d" % n, "key": b"%d" % (n % 3)} for n in range(9)])
    calls = defaultdict(int)
    broken = True

    def run(release_after_s=None):
        app = kafka.app(group=group)
        retry = perkey.Retry(attempts=2, delay_s=0, remember=remember)

        @app.consume(source, retry=retry, on_exhausted=perkey.Park(release_after_s))
        async def handler(record):
            calls[record.value] += 1
            if broken and record.value == b"4":
                raise ValueError

        return kafka.drain(app)

    report = run()
    assert (report.exit_code, report.parked, report.done) == (3, 1, 7)
    assert calls[b"4"] == 2
    assert b"7" not in calls  # it is behind the parked record in its lane
    assert kafka.committed(group, source) == 4
    broken = False
    if remember:
        report = run()
        assert (report.exit_code, report.done, calls[b"4"]) == (3, 0, 2)
        report = run(release_after_s=0)
    else:
        report = run()
    assert (report.exit_code, report.done) == (0, 2)
    assert calls == {b"%d" % n: 1 for n in range(9)} | {b"4": 3}
    assert kafka.committed(group, source) == 9


def test_a_parked_record_costs_no_worker(kafka):
    """With concurrency 1 and a parked record the others go on."""
    source = kafka.topic()
    kafka.fill(source, [{"value": b"%d" % n, "key": b"%d" % n} for n in range(20)])
    app = kafka.app()

    @app.consume(source, concurrency=1, retry=perkey.Retry(attempts=1))
    def handler(record):
        if record.value == b"3":
            raise ValueError

    report = kafka.drain(app)
    assert (report.exit_code, report.done, report.parked) == (3, 19, 1)


def test_skip_counts_the_record_and_continues(kafka):
    """Skipped records are committed as done."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"a", b"b", b"c"], key=b"k")
    app = kafka.app(group=group)

    @app.consume(source, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Skip())
    def handler(record):
        if record.value == b"b":
            raise ValueError

    report = kafka.drain(app)
    assert (report.exit_code, report.done, report.skipped) == (0, 2, 1)
    assert kafka.committed(group, source) == 3


def test_stop_drains_and_exits_with_1(kafka):
    """What runs is finished and committed; the exhausted record stays not-done."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [{"value": b"bad", "key": b"a"}, {"value": b"slow", "key": b"b"}])
    app = kafka.app(group=group)
    finished, began = [], threading.Event()

    @app.consume(source, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Stop())
    def handler(record):
        if record.value == b"bad":
            assert began.wait(60)
            raise ValueError("broken")
        began.set()
        wait_for(lambda: app.snapshot()["state"] != "running")
        finished.append(record.value)

    stream = app.results()
    run = kafka.start(app)
    outcomes = {result.record.value: result.outcome for result in stream}
    report = run.wait(60)
    assert (report.exit_code, report.ok) == (1, False)
    assert "policy is Stop" in report.reason
    assert report.error[:2] == ("ValueError", "broken")
    assert finished == [b"slow"]
    assert outcomes == {b"bad": "failed", b"slow": "done"}
    commit = kafka.commit_of(group, source)
    assert commit.offset == 0
    assert commit.metadata  # the map says that the slow one is done
