"""Batches whose partitions are taken away, or whose app stops.

They are told in three forms, and what is acknowledged until the revoke deadline still counts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest
from tests.integration.app.conftest import Kafka
from tests.integration.delivery.test_batches import keyed
from tests.support.waiting import wait_for

import perkey

pytestmark = pytest.mark.push

REVOKE_S = 6.0  # in it half a batch is acknowledged, on a busy machine too


def test_a_stop_is_reported_in_three_forms(kafka: Kafka) -> None:
    """`cancelled`, `cancel_event` and `wait_cancelled`, none of them before the stop."""
    topic = kafka.topic(2)
    kafka.fill(topic, keyed(20, 20))
    app, told = kafka.app(), Counter[str]()

    @app.consume(topic, concurrency=1, batch=perkey.Batch(10))
    async def waits(batch: perkey.RecordBatch) -> None:
        told["early"] += batch.cancelled + batch.cancel_event.is_set()
        told["running"] += 1
        await asyncio.wait_for(batch.wait_cancelled(), 60)
        told["all"] += batch.cancelled and batch.cancel_event.is_set()

    run = kafka.start(app)
    wait_for(lambda: told["running"])
    run.stop()
    assert run.wait(60).exit_code == 0
    assert (told["early"], told["all"]) == (0, 1)


def test_a_plain_handler_waits_for_the_event(kafka: Kafka) -> None:
    """threads: `cancel_event.wait` wakes when the app stops; the batch is done by returning."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(5, 5))
    app, told = kafka.app(), []

    @app.consume(topic, batch=perkey.Batch(5))
    def waits(batch: perkey.RecordBatch) -> None:
        told.append("runs")
        told.append(batch.cancel_event.wait(60))

    run = kafka.start(app)
    wait_for(lambda: told)
    run.stop()
    assert run.wait(60).done == 5
    assert told == ["runs", True]


@pytest.mark.parametrize(
    "protocol",
    [
        "range",
        *(pytest.param(p, marks=pytest.mark.long) for p in ("cooperative-sticky", "consumer")),
    ],
)
def test_acknowledgements_count_until_the_revoke_deadline(kafka: Kafka, protocol: str) -> None:
    """A batch that is told of the loss acknowledges on.

    What it did acknowledge is not repeated, what it did not is handled by the next owner.
    """
    topic, group = kafka.topic(2), kafka.name("g")
    kafka.fill(topic, keyed(40, 40))
    config = (
        {"group.protocol": "consumer"}
        if protocol == "consumer"
        else {"partition.assignment.strategy": protocol, "heartbeat.interval.ms": 300}
    )
    done, told, late = Counter[int](), threading.Event(), []
    moved = threading.Event()

    def member(slow: bool) -> perkey.App:
        app = kafka.app(group=group, kafka=config, revoke_timeout_s=REVOKE_S)
        # One batch of all: it must hold a record of whatever partition moves.
        size = {"max_records": 40, "linger_s": 60.0} if slow else {"max_records": 100}

        @app.consume(topic, concurrency=1, batch=perkey.Batch(**size, ack="explicit"))
        def handler(batch: perkey.RecordBatch) -> None:
            if slow:
                started.set()
                batch.cancel_event.wait(60)
                told.set()
                for record in batch[: len(batch) // 2]:
                    time.sleep(0.01)  # its work
                    batch.ack(record)
                    done[int(record.value)] += 1
                moved.wait(60)  # so the deadline is over
                for record in batch[len(batch) // 2 :]:
                    late.append(int(record.value))
                    batch.ack(record)
                return
            for record in batch:
                batch.ack(record)
                done[int(record.value)] += 1

        return app

    started = threading.Event()
    slow = kafka.start(member(slow=True))
    assert started.wait(60)
    successor = member(slow=False)
    quick = kafka.start(successor)
    assert told.wait(60), "the batch was not told"
    wait_for(lambda: successor.snapshot()["partitions"])
    moved.set()
    wait_for(lambda: late)
    slow.stop("now")
    wait_for(lambda: done.keys() | set(late) == set(range(40)))
    wait_for(lambda: sum(kafka.committed(group, topic, p) for p in (0, 1)) == 40)
    quick.stop()
    assert quick.wait(60).exit_code == 0
    assert max(done.values()) == 1, "an acknowledged record was repeated"
    if protocol == "range":  # every partition moved, with what had not been acknowledged in time
        assert done == Counter(range(40))


def test_a_batch_of_a_partition_that_stays_is_left_alone(kafka: Kafka) -> None:
    """Cooperative: only batches that hold a record of the moving partition are told."""
    topic, group = kafka.topic(2), kafka.name("g")
    config = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 300}
    told: dict[int, bool] = {}
    release = threading.Event()
    first = kafka.app(group=group, kafka=config, revoke_timeout_s=1.0)

    @first.consume(topic, concurrency=2, batch=perkey.Batch(10, linger_s=0.1, by="partition"))
    def holds(batch: perkey.RecordBatch) -> None:
        told[batch[0].partition] = False
        while not release.wait(0.02):
            told[batch[0].partition] |= batch.cancelled

    second = kafka.app(group=group, kafka=config)

    @second.consume(topic, batch=perkey.Batch(10))
    def ends(batch: perkey.RecordBatch) -> None:
        """Nothing to do."""

    kafka.fill(topic, [b"0"], partition=0)
    kafka.fill(topic, [b"1"], partition=1)
    run = kafka.start(first)
    wait_for(lambda: len(told) == 2)
    other = kafka.start(second)
    wait_for(lambda: any(told.values()))
    assert sorted(told.values()) == [False, True]
    release.set()
    for one in (other, run):
        one.stop()
        assert one.wait(60).exit_code == 0
