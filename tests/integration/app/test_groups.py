"""Membership: static, cooperative and KIP-848 members, by the kafka dictionary alone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from tests.support.waiting import wait_for

# A member hears of a rebalance with its next heartbeat: often, so that the tests are quick.
QUICK = {"heartbeat.interval.ms": 200}
PROTOCOLS = {
    "eager": QUICK,
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", **QUICK},
    "kip848": {"group.protocol": "consumer"},
}


@pytest.mark.broker
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_the_work_in_every_protocol(kafka, protocol):
    """A second member joins, both handle, the first leaves: every record once."""
    source, group = kafka.topic(partitions=4), kafka.name("g")
    seen = Counter()
    kafka.keep_members(group)

    def make(name):
        app = kafka.app(group=group, kafka=PROTOCOLS[protocol])

        @app.consume(source)
        async def handler(record):
            seen[name, record.value] += 1

        return app

    first, second = make("first"), make("second")
    run = kafka.start(first)
    wait_for(lambda: len(first.snapshot()["partitions"]) == 4)
    fill = lambda word: [  # noqa: E731  # a name for what follows
        kafka.fill(source, [b"%s%d" % (word, n)], partition=n) for n in range(4)
    ]
    fill(b"a")
    other = kafka.start(second)
    wait_for(
        lambda: len(first.snapshot()["partitions"]) == len(second.snapshot()["partitions"]) == 2
    )
    fill(b"b")
    wait_for(lambda: len({value for _, value in seen}) == 8)
    run.stop()
    assert run.wait(60).exit_code == 0
    wait_for(lambda: len(second.snapshot()["partitions"]) == 4)
    fill(b"c")
    wait_for(lambda: len({value for _, value in seen}) == 12)
    other.stop()
    assert other.wait(60).exit_code == 0
    assert {name for name, _ in seen} == {"first", "second"}
    assert set(seen.values()) == {1}
    assert [kafka.committed(group, source, n) for n in range(4)] == [3] * 4


@pytest.mark.broker
def test_a_fenced_static_member_exits_with_1_naming_its_id(kafka):
    """Two members under one group.instance.id: one of them ends, and does not join again."""
    source, group = kafka.topic(), kafka.name("g")

    def make():
        app = kafka.app(group=group, kafka={"group.instance.id": "twin", **QUICK})
        app.consume(source)(lambda _: None)
        return app

    first = make()
    runs = [kafka.start(first)]
    wait_for(lambda: first.snapshot()["partitions"])
    runs.append(kafka.start(make()))
    wait_for(lambda: any(run.over for run in runs))
    ended = next(run for run in runs if run.over)
    report = ended.wait(60)
    assert report.exit_code == 1
    assert "twin" in report.reason
    assert "group.instance.id" in report.reason


def test_what_runs_is_finished_and_committed_before_a_partition_goes(kafka):
    """The new owner gets nothing of what the old one finished in the callback."""
    source, group = kafka.topic(partitions=2), kafka.name("g")
    gate, seen = threading.Event(), Counter()
    for number in range(2):
        kafka.fill(source, [b"%d" % number], partition=number)

    def make():
        app = kafka.app(group=group, kafka=QUICK, revoke_timeout_s=90.0)

        @app.consume(source)
        def handler(record):
            seen[record.value] += 1
            gate.wait(100)

        return app

    first = make()
    kafka.start(first)
    wait_for(lambda: len(seen) == 2)
    second = make()
    kafka.start(second)
    wait_for(lambda: {p["state"] for p in first.snapshot()["partitions"]} == {"revoking"})
    gate.set()
    wait_for(lambda: len(second.snapshot()["partitions"]) == 1)
    wait_for(lambda: len(first.snapshot()["partitions"]) == 1)
    assert seen == {b"0": 1, b"1": 1}
    assert [kafka.committed(group, source, n) for n in range(2)] == [1, 1]


def test_an_async_attempt_that_outlasts_the_revoke_is_cancelled_and_the_next_owner_gets_it(kafka):
    """It is no failed attempt; the record is handled once more, by the other member."""
    source, group = kafka.topic(partitions=2), kafka.name("g")
    for number in range(2):
        kafka.fill(source, [b"%d" % number], partition=number)
    started, cancelled, done = [], [], []

    def make(name):
        app = kafka.app(group=group, kafka=QUICK, revoke_timeout_s=0.3)

        @app.consume(source)
        async def handler(record):
            started.append((name, record.value))
            if name == "first":
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    cancelled.append(record.value)
                    raise
            done.append((record.value, record.attempt))

        return app

    first, second = make("first"), make("second")
    run = kafka.start(first)
    wait_for(lambda: len(started) == 2)
    kafka.start(second)
    wait_for(lambda: len(done) == 1)
    run.stop("now")
    report = run.wait(60)
    assert report.failed_attempts == 0
    wait_for(lambda: len(done) == 2)
    assert sorted(done) == [(b"0", 1), (b"1", 1)]
    assert {b"0", b"1"} <= set(cancelled)


def test_a_partition_that_comes_back_waits_for_the_old_attempt_of_a_lane(kafka):
    """A thread cannot be cancelled: its record is not handled twice at the same time."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [{"value": b"slow", "key": b"a"}, {"value": b"other", "key": b"b"}])
    gate, lock, running, most, calls = threading.Event(), threading.Lock(), 0, 0, []
    app = kafka.app(
        group=group,
        kafka={"topic.metadata.refresh.interval.ms": 400, **QUICK},
        revoke_timeout_s=0.2,
    )

    @app.consume(source)
    def handler(record):
        nonlocal running, most
        with lock:
            calls.append(record.value)
            if record.key != b"a":
                return
            running += 1
            most = max(most, running)
        gate.wait(100)
        with lock:
            running -= 1

    kafka.start(app)
    wait_for(lambda: sorted(calls) == [b"other", b"slow"])
    # Another partition: every member gives all of its own back and is assigned anew.
    kafka.grow(source, 2)
    wait_for(lambda: len(app.snapshot()["partitions"]) == 2)
    kafka.fill(source, [{"value": b"behind", "key": b"c", "partition": 0}])
    wait_for(lambda: b"behind" in calls)
    assert calls.count(b"slow") == 1
    gate.set()
    wait_for(lambda: calls.count(b"slow") == 2)
    wait_for(lambda: kafka.committed(group, source) == 3)
    assert most == 1
    assert calls.count(b"other") == 1
    assert app.snapshot()["handlers"]["handler"]["superseded"] == 1
