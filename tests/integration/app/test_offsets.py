"""Where a partition starts, and what is committed for it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from confluent_kafka import Producer
from tests.support.waiting import wait_for

import perkey


def collector(kafka, source, group, *, properties=None, **options):
    """An app that notes the offsets it handles."""
    app = kafka.app(group=group, kafka=properties, **options)
    seen = []

    @app.consume(source)
    async def handler(record):
        seen.append(record.offset)

    return app, seen


def test_a_group_starts_where_it_has_committed(kafka):
    """A plain offset of another client is enough."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 5)
    kafka.commit(group, source, 3)
    app, seen = collector(kafka, source, group)
    kafka.drain(app)
    assert seen == [3, 4]


def test_what_was_done_beyond_the_frontier_is_not_repeated(kafka):
    """The map in the commit's metadata says what was finished out of order."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [{"value": b"", "key": b"%d" % n} for n in range(10)])
    broken = True
    calls = []

    def make():
        app = kafka.app(group=group)

        @app.consume(source, retry=perkey.Retry(attempts=1, remember=False))
        async def handler(record):
            calls.append(record.offset)
            if broken and record.offset in (2, 5):
                raise ValueError

        return app

    assert kafka.drain(make()).exit_code == 3
    held = kafka.commit_of(group, source)
    assert held.offset == 2
    assert held.metadata
    calls.clear()
    broken = False
    assert kafka.drain(make()).exit_code == 0
    assert calls == [2, 5]
    assert kafka.commit_of(group, source).offset == 10


def test_metadata_of_another_user_is_ignored_with_one_warning(kafka, caplog):
    """It is never an exception into the rebalance: the plain offset counts."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 3)
    kafka.commit(group, source, 1, "committed by hand")
    app, seen = collector(kafka, source, group)
    with caplog.at_level(logging.WARNING, "perkey"):
        kafka.drain(app)
    assert seen == [1, 2]
    assert caplog.text.count("metadata ignored") == 1


def test_an_offset_past_the_end_stops_the_run_and_names_the_cure(kafka):
    """A truncated log, or a topic made again: nobody may guess."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 3)
    kafka.commit(group, source, 100)
    app, seen = collector(kafka, source, group)
    report = kafka.start(app).wait(60)
    assert report.exit_code == 1
    for word in (source, "100", "on_offset_lost", "perkey offsets set"):
        assert word in report.reason
    assert seen == []
    assert kafka.committed(group, source) == 100


@pytest.mark.parametrize(("choice", "expected"), [("earliest", [0, 1, 2]), ("latest", [])])
def test_an_offset_past_the_end_continues_where_it_is_reported(kafka, caplog, choice, expected):
    """With a warning; the new start is committed."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 3)
    kafka.commit(group, source, 100)
    app, seen = collector(kafka, source, group, on_offset_lost=choice)
    with caplog.at_level(logging.WARNING, "perkey"):
        assert kafka.drain(app).exit_code == 0
    assert seen == expected
    assert "past the end of the log" in caplog.text
    assert kafka.committed(group, source) == 3


def test_a_commit_below_the_start_of_the_log_continues_at_the_start(kafka, caplog):
    """Retention took what lay between; the run goes on with what is there."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 6)
    kafka.commit(group, source, 1)
    kafka.delete_before(source, 4)
    app, seen = collector(kafka, source, group)
    with caplog.at_level(logging.WARNING, "perkey"):
        assert kafka.drain(app).exit_code == 0
    assert seen == [4, 5]
    assert "retention deleted" in caplog.text


def test_latest_without_a_commit_commits_its_start_immediately(kafka):
    """Else a crash before the first commit would skip what came meanwhile."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 3)
    app, seen = collector(kafka, source, group, properties={"auto.offset.reset": "latest"})
    run = kafka.start(app)
    wait_for(lambda: kafka.committed(group, source) == 3)
    kafka.fill(source, [b"new"])
    wait_for(lambda: seen == [3])
    run.stop()
    run.wait(60)


def test_reset_to_error_without_a_commit_stops_the_run(kafka):
    """The message names the property and the cure."""
    source, group = kafka.topic(), kafka.name("g")
    app, _ = collector(kafka, source, group, properties={"auto.offset.reset": "error"})
    report = kafka.start(app).wait(60)
    assert (report.exit_code, "auto.offset.reset" in report.reason) == (1, True)


def test_commits_come_by_interval_and_by_number(kafka):
    """`Commit(interval_s, max_records)`: whichever comes first."""
    source = kafka.topic()
    slow, quick = kafka.name("g"), kafka.name("g")
    kafka.fill(source, [b"x"] * 10)
    for group, policy in (
        (slow, perkey.Commit(interval_s=0.2)),
        (quick, perkey.Commit(interval_s=600, max_records=5)),
    ):
        app = kafka.app(group=group)
        app.consume(source, ordering="partition", commit=policy)(lambda _: None)
        run = kafka.start(app)
        wait_for(lambda group=group: (kafka.committed(group, source) or 0) >= 6)
        run.stop("now")
        run.wait(60)


def test_partitions_added_while_it_runs_are_read_from_their_start(kafka):
    """Without a restart."""
    source, group = kafka.topic(), kafka.name("g")
    app = kafka.app(group=group, kafka={"topic.metadata.refresh.interval.ms": 400})
    seen = []

    @app.consume(source)
    async def handler(record):
        seen.append((record.partition, record.offset))

    kafka.start(app)
    wait_for(lambda: app.snapshot()["partitions"])
    kafka.grow(source, 3)
    kafka.fill(source, [b"a", b"b"], partition=2)
    wait_for(lambda: sorted(seen) == [(2, 0), (2, 1)])
    # Each begins when its start has been read: the one that has records may be the first.
    wait_for(lambda: {row["partition"] for row in app.snapshot()["partitions"]} == {0, 1, 2})


@pytest.mark.parametrize("count", [3, 7], ids=["shorter", "longer"])
@pytest.mark.parametrize("properties", [{}, {"topic.metadata.refresh.interval.ms": 400}])
def test_a_topic_recreated_is_another_topic(kafka, properties, count):
    """Its records are read from the start; nothing of the old one's progress is used."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"old"] * 5)
    app = kafka.app(group=group, kafka=properties)
    seen = []

    @app.consume(source, commit=perkey.Commit(interval_s=0.1))
    async def handler(record):
        seen.append((record.value, record.offset))

    kafka.start(app)
    wait_for(lambda: kafka.committed(group, source) == 5)
    kafka.delete(source)
    kafka.topic(name=source)
    kafka.fill(source, [b"new"] * count)
    # What librdkafka fetched before the id was looked at may come twice: nothing may be missing.
    wait_for(lambda: {(b"new", n) for n in range(count)} <= set(seen))
    assert seen[:5] == [(b"old", n) for n in range(5)]
    wait_for(lambda: kafka.committed(group, source) == count)


@pytest.mark.broker
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_was_fetched_is_handled_though_retention_overtook_it(kafka, caplog, protocol):
    """The epoch stays: nothing in flight is cancelled, and it goes on at the log's new start."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x" * 1000] * 3000)
    app = kafka.app(group=group, kafka={"group.protocol": protocol}, buffer_records=500)
    gate, seen, cancelled = asyncio.Event(), [], []
    loops = []

    @app.consume(source, concurrency=10)
    async def handler(record):
        loops.append(asyncio.get_running_loop())
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled.append(record.offset)
            raise
        seen.append(record.offset)

    kafka.start(app)
    wait_for(lambda: app.snapshot()["handlers"]["handler"]["in_flight"] == 10)
    wait_for(lambda: sum(row["buffered"] for row in app.snapshot()["partitions"]) >= 500)
    kafka.delete_before(source, 2900)
    loops[0].call_soon_threadsafe(gate.set)
    wait_for(lambda: set(range(2900, 3000)) <= set(seen))
    early = [offset for offset in seen if offset < 2900]
    assert sorted(early) == list(range(len(early)))
    assert len(early) >= 500
    assert cancelled == []
    assert len(seen) == len(set(seen))
    wait_for(lambda: kafka.committed(group, source) == 3000)
    assert any("deleted before they were read" in one.getMessage() for one in caplog.records)


@pytest.mark.broker
def test_a_commit_past_an_open_transaction_is_no_lost_log(kafka):
    """A group that comes from a read_uncommitted client has it: the log reaches further."""
    source, group = kafka.topic(), kafka.name("g")
    writer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": group, "log_level": 0}
    )
    writer.init_transactions(60)
    writer.begin_transaction()
    for _ in range(5):
        writer.produce(source, b"aborted")
    assert writer.flush(60) == 0
    kafka.commit(group, source, 5)
    app, seen = collector(kafka, source, group)
    run = kafka.start(app)
    wait_for(lambda: app.snapshot()["partitions"])
    writer.abort_transaction(60)
    kafka.fill(source, [b"new"])
    wait_for(lambda: seen)
    assert seen in ([5], [6])  # the abort's marker comes before it or after
    assert not run.over
