"""`until="drained"`: what counts as the end, and what does not."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer
from tests.support.waiting import wait_for

import perkey
from perkey.runtime.run import drain


def counting(kafka, source, group=None, **options):
    app = kafka.app(group=group, kafka={"heartbeat.interval.ms": 200})
    seen = []

    @app.consume(source, **options)
    async def handler(record):
        seen.append(record.value)

    return app, seen


def in_transaction(kafka, source, value):
    """A producer whose transaction has this record and is open."""
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.name("x"), "log_level": 0}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(source, value)
    assert producer.flush(60) == 0
    return producer


def test_empty_topics_are_drained_immediately(kafka):
    """No records, no waiting."""
    app, _ = counting(kafka, [kafka.topic(partitions=3), kafka.topic()])
    report = kafka.drain(app)
    assert (report.exit_code, report.reason, report.done) == (0, "drained", 0)


def test_some_empty_partitions_do_not_hold_it_up(kafka):
    """Ends are compared partition by partition."""
    source = kafka.topic(partitions=4)
    kafka.fill(source, [b"x", b"y"], partition=2)
    app, seen = counting(kafka, source)
    assert kafka.drain(app).done == 2
    assert seen == [b"x", b"y"]


def test_a_second_run_has_nothing_to_do(kafka):
    """The group's commits say that everything is done."""
    source, group = kafka.topic(partitions=2), kafka.name("g")
    kafka.fill(source, [b"x"] * 5, partition=0)
    kafka.fill(source, [b"x"] * 5, partition=1)
    assert kafka.drain(counting(kafka, source, group)[0]).done == 10
    assert kafka.drain(counting(kafka, source, group)[0]).done == 0


@pytest.mark.broker
def test_records_behind_an_open_transaction_are_reported(kafka, caplog):
    """A drain ends before them with exit code 0, as they cannot be read yet: not silently."""
    source = kafka.topic()
    kafka.fill(source, [b"plain"])
    producer = in_transaction(kafka, source, b"open")
    kafka.fill(source, [b"behind"] * 3)
    app, seen = counting(kafka, source)
    assert kafka.drain(app).exit_code == 0
    assert seen == [b"plain"]
    (said,) = [text for text in caplog.messages if "open transaction" in text]
    assert f"partitions={source}[0] offsets=4" in said
    producer.abort_transaction(60)


@pytest.mark.broker
@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_transaction_markers_at_the_end_are_no_records(kafka, outcome):
    """The log's end is past the marker, which nobody ever receives."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"plain"])
    producer = in_transaction(kafka, source, b"in a transaction")
    (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)(60)
    # The marker is written after the answer: until then it is not part of the end.
    wait_for(lambda: kafka.count(source) == 3)
    app, seen = counting(kafka, source, group)
    assert kafka.drain(app).exit_code == 0
    assert seen == [b"plain", b"in a transaction"][: 2 if outcome == "commit" else 1]
    assert kafka.committed(group, source) == 3


def test_retries_are_waited_for(kafka):
    """A record that still has attempts is not finished with."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    app = kafka.app()

    @app.consume(source, retry=perkey.Retry(attempts=4, delay_s=0.1, multiplier=1))
    async def handler(record):
        if record.attempt < 4:
            raise ValueError

    report = kafka.drain(app)
    assert (report.exit_code, report.done, report.retried) == (0, 1, 3)


def test_records_that_come_later_are_not_waited_for(kafka):
    """The ends are taken once, at the start: it ends while the first of them lasts."""
    source = kafka.topic()
    kafka.fill(source, [b"1", b"2"])
    app = kafka.app()
    more = threading.Event()

    @app.consume(source, concurrency=1)
    def handler(record):
        if not more.is_set():
            more.set()
            kafka.fill(source, [b"later"] * 1000)
        if record.value == b"later":
            wait_for(lambda: app.snapshot()["state"] != "running")

    report = kafka.drain(app)
    assert 2 <= report.done <= 3


def test_partitions_of_other_members_count(kafka):
    """Having no partition is not drained; what another member does of them is heard of."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    begun, gate = threading.Event(), threading.Event()
    first = kafka.app(group=group, revoke_timeout_s=90.0)

    @first.consume(source, commit=perkey.Commit(interval_s=0.1))
    def handler(record):
        begun.set()
        gate.wait(100)

    holder = kafka.start(first)
    wait_for(begun.is_set)  # a call that is only granted ends with its partition
    app, seen = counting(kafka, source, group)
    run = kafka.start(app, until="drained")
    wait_for(lambda: app.snapshot()["state"] == "waiting")
    with pytest.raises(TimeoutError):
        run.wait(1.2)
    gate.set()
    report = run.wait(60)
    assert (report.exit_code, report.done, seen) == (0, 0, [])
    holder.stop()
    assert holder.wait(60).done == 1


def test_a_topic_emptied_by_retention_is_drained(kafka):
    """Its start has caught up with its end: nothing is there any more."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 3)
    kafka.delete_before(source, 3)
    app, seen = counting(kafka, source, group)
    assert (kafka.drain(app).exit_code, seen) == (0, [])


def test_latest_without_a_commit_starts_at_the_end_and_is_drained(kafka):
    """With auto.offset.reset=latest nothing of the past belongs to the group."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 3)
    app = kafka.app(group=group, kafka={"auto.offset.reset": "latest"})
    app.consume(source)(lambda _: None)
    assert kafka.drain(app).done == 0
    assert kafka.committed(group, source) == 3


def test_records_of_a_deleted_topic_are_not_waited_for(kafka, monkeypatch, caplog):
    """What is left of it cannot be read, and what is done of it cannot be committed."""
    monkeypatch.setattr(drain, "LOGS_EVERY_S", 0.1)
    source, begun, gate = kafka.topic(), threading.Event(), threading.Event()
    kafka.fill(source, [b"x"] * 3)
    app = kafka.app()

    @app.consume(source, ordering="partition")
    def handler(record):
        begun.set()
        gate.wait(100)

    run = kafka.start(app, until="drained")
    wait_for(begun.is_set)
    kafka.delete(source)
    wait_for(lambda: "records to drain no longer exist" in caplog.text)
    gate.set()
    report = run.wait(60)
    assert (report.exit_code, report.reason) == (0, "drained")


def test_a_stop_asks_the_brokers_nothing_more(kafka, monkeypatch):
    """An answer that does not come would be waited for after the drain's time."""
    looks, rounds = [], []
    look, finished = drain.Drain.look, drain.Drain.finished
    monkeypatch.setattr(
        drain.Drain, "look", lambda *arguments: (looks.append(1), look(*arguments))[1]
    )
    monkeypatch.setattr(
        drain.Drain, "finished", lambda *arguments: (rounds.append(1), finished(*arguments))[1]
    )
    source, begun, gate = kafka.topic(), threading.Event(), threading.Event()
    kafka.fill(source, [b"x"] * 3)
    app = kafka.app()

    @app.consume(source)
    def handler(record):
        begun.set()
        gate.wait(100)

    run = kafka.start(app, until="drained")
    wait_for(lambda: looks and begun.is_set())  # a stop withdraws calls that are only granted
    run.stop()
    wait_for(lambda: app.snapshot()["state"] != "running")
    so_far = len(rounds)
    wait_for(lambda: len(rounds) > so_far + 1)  # one may have begun before
    asked, so_far = len(looks), len(rounds)
    wait_for(lambda: len(rounds) > so_far + 1)
    gate.set()
    run.wait(60)
    assert len(looks) == asked
