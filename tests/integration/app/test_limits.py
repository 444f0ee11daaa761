"""Budgets: records and bytes in memory, a full producer queue, and records larger than either."""

from __future__ import annotations

import threading

import pytest
from tests.support.waiting import wait_for

import perkey


def held(app):
    return sum(row["buffered"] for row in app.snapshot()["partitions"])


def paused(app):
    return any(row["paused"] for row in app.snapshot()["partitions"])


@pytest.mark.parametrize(("count", "full"), [(99, False), (100, True), (101, True)])
def test_intake_pauses_at_the_limit_of_records_and_continues(kafka, count, full):
    """One below the limit is not full; at it the partition pauses, and all is handled after."""
    source = kafka.topic()
    kafka.fill(source, [b"x"] * count)
    app = kafka.app(buffer_records=100, kafka={"queued.max.messages.kbytes": 1024})
    gate = threading.Event()

    @app.consume(source, concurrency=1)
    def handler(record):
        gate.wait(100)

    run = kafka.start(app, until="drained")
    wait_for(lambda: held(app) >= min(count, 100))
    if full:
        wait_for(lambda: paused(app))
    else:
        wait_for(lambda: app.snapshot()["partitions"][0]["lag"] == count)
        assert not paused(app)
    gate.set()
    assert run.wait(60).done == count


@pytest.mark.push
def test_many_partitions_keep_to_one_budget(kafka):
    """30,000 waiting in ten partitions, 1,000 allowed: all is handled, and never more held."""
    source = kafka.topic(partitions=10)
    for number in range(10):
        kafka.fill(source, [b"x" * 50] * 3_000, partition=number)
    app = kafka.app(buffer_records=1000)
    most = 0

    @app.consume(source, concurrency=50)
    async def handler(record):
        nonlocal most
        if record.offset % 100 == 0:
            most = max(most, held(app))

    assert kafka.drain(app, 60).done == 30_000
    assert most <= 1500


@pytest.mark.broker
def test_a_record_larger_than_the_budget_passes_alone(kafka):
    """2 MiB through a budget of 1 MiB, with small ones around it."""
    source = kafka.topic(max_message_bytes=4 * 2**20)
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 4 * 2**20, "log_level": 0}
    )
    for value in (b"small", b"x" * 2 * 2**20, b"small", b"y" * 2 * 2**20, b"small"):
        producer.produce(source, value)
    assert producer.flush(60) == 0
    app = kafka.app(buffer_bytes=2**20)
    sizes = []

    @app.consume(source, ordering="partition")
    async def handler(record):
        sizes.append(len(record.value))

    assert kafka.drain(app).done == 5
    assert sizes == [5, 2 * 2**20, 5, 2 * 2**20, 5]


def test_failing_lanes_never_stop_the_intake_of_the_others(kafka):
    """Ten keys fail for ever, and the healthy ones behind them are all done."""
    source = kafka.topic()
    kafka.fill(source, [{"value": b"", "key": b"%d" % (n % 20)} for n in range(4000)])
    app = kafka.app(buffer_records=1000)
    done = 0

    @app.consume(source, retry=perkey.Retry(attempts=None, delay_s=0.2))
    async def handler(record):
        nonlocal done
        if int(record.key) < 1:
            raise ValueError
        done += 1

    kafka.start(app)
    wait_for(lambda: done == 3800)


def test_a_full_producer_queue_slows_the_intake(kafka):
    """The producer takes ten messages at a time: nothing fails, nothing is lost."""
    source, out = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"%d" % n for n in range(1000)])
    app = kafka.app(producer={"queue.buffering.max.messages": 10, "linger.ms": 0})

    @app.consume(source, output=out)
    async def handler(record):
        return [perkey.Produce(record.value), perkey.Produce(record.value)]

    report = kafka.drain(app, 60)
    assert (report.exit_code, report.done, report.failed_attempts) == (0, 1000, 0)
    assert kafka.count(out) == 2000
