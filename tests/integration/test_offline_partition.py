"""exactly_once: an output to a partition whose only replica is down, in a cluster of three."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker

WAIT_S = 60.0


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions
    return {number: one.leader for number, one in partitions.items()}


@pytest.mark.long
@pytest.mark.timeout(240)
def test_exactly_once_continues_without_what_goes_there(three_nodes: LocalBroker) -> None:
    """An output to the partition that is down is named by nobody; it ends alone, the others are done.

    Each transaction with it in it ran out of its time, for ever.
    """
    source, output, dead = "exact-source", "exact-output", "exact-dead"
    cluster = three_nodes
    cluster.create_topic(source, 1, 3)
    cluster.create_topic(output, 3, 1)
    cluster.create_topic(dead, 1, 3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    broker_of = leaders(admin, output)
    cluster.kill(broker_of[2] - 1)
    wait_for(lambda: leaders(admin, output)[2] == -1)
    kafka = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
    app = perkey.App(group=source, kafka=kafka)

    @app.consume(
        source,
        delivery="exactly_once",
        ordering="unordered",
        retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.DeadLetter(dead),
    )
    async def handler(record: perkey.Record) -> perkey.Produce:
        number = int(record.value)
        return perkey.Produce(
            record.value, topic=output, partition=2 if number == 5 else record.offset % 2
        )

    results = app.results()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for number in range(100):
        producer.produce(source, b"%d" % number)
    run = app.start()
    fed = 100

    def done_there() -> bool:
        nonlocal fed
        producer.produce(source, b"%d" % fed)
        producer.poll(0)
        fed += 1
        return app.snapshot()["handlers"].get("handler", {}).get("dead_lettered") == 1

    began = time.monotonic()
    try:
        wait_for(done_there, 180)
        print(f"given up after {time.monotonic() - began:.1f} s, {fed} records")
        assert producer.flush(60) == 0
        wait_for(lambda: app.snapshot()["handlers"]["handler"]["done"] == fed - 1)
    finally:
        run.stop()
        report = run.wait(60)
        cluster.restart(broker_of[2] - 1)
    assert (report.exit_code, report.failed_attempts) == (0, 1)
    (error,) = [one.error for one in results if one.error is not None]
    assert "TIMED_OUT" in error.type
