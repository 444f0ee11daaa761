"""Membership: static, cooperative and KIP-848 members, by the kafka dictionary alone."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from tests.integration.app.conftest import wait_for

# A member hears of a rebalance with its next heartbeat: often, so that the tests are quick.
QUICK = {"heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
PROTOCOLS = {
    "eager": QUICK,
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", **QUICK},
    "kip848": {"group.protocol": "consumer"},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_the_work_in_every_protocol(kafka, protocol):
    """A second member joins, both handle, the first leaves: every record once."""
    source, group = kafka.topic(partitions=4), kafka.name("g")
    seen = Counter()

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
    assert run.wait(20).exit_code == 0
    wait_for(lambda: len(second.snapshot()["partitions"]) == 4)
    fill(b"c")
    wait_for(lambda: len({value for _, value in seen}) == 12)
    other.stop()
    assert other.wait(20).exit_code == 0
    assert {name for name, _ in seen} == {"first", "second"}
    assert set(seen.values()) == {1}
    assert [kafka.committed(group, source, n) for n in range(4)] == [3] * 4


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
    report = ended.wait(20)
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
        app = kafka.app(group=group, kafka=QUICK)

        @app.consume(source)
        def handler(record):
            seen[record.value] += 1
            gate.wait(20)

        return app

    first = make()
    kafka.start(first)
    wait_for(lambda: len(seen) == 2)
    second = make()
    kafka.start(second)
    threading.Timer(0.5, gate.set).start()
    wait_for(lambda: len(second.snapshot()["partitions"]) == 1)
    wait_for(lambda: len(first.snapshot()["partitions"]) == 1)
    assert seen == {b"0": 1, b"1": 1}
    assert [kafka.committed(group, source, n) for n in range(2)] == [1, 1]
