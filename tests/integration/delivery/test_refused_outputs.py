"""exactly_once: what a broker never takes, or takes slowly, ends one record and holds up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclOperation
from tests.integration.app.conftest import Kafka
from tests.integration.conftest import Guarded
from tests.support.exactness import read_committed
from tests.support.matrix.faults import deny, permit, set_quota
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker

RECORDS, CULPRIT = 900, 450


@pytest.fixture
def guarded(rights_broker: Guarded) -> Iterator[Kafka]:
    """A broker that denies writing where an ACL says so."""
    kafka = Kafka(rights_broker.broker.bootstrap)
    yield kafka
    kafka.end_all()


@pytest.mark.parametrize(
    ("refusal", "ending"),
    [
        ("missing", "dead letter"),
        ("seen but denied", "park"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (
                ("missing", "park"),
                ("denied", "dead letter"),
                ("denied", "park"),
                ("seen but denied", "dead letter"),
            )
        ),
    ],
)
@pytest.mark.timeout(120)
def test_one_output_that_is_never_taken_ends_its_record_alone(
    guarded: Kafka, refusal: str, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All others are done in a moment; the culprit ends by its policy, with the real reason.

    It stood still: 0 of 900 in 48 s, and the log said nothing but "transaction aborted". A topic
    that may be seen and not written to is refused when its partition is added to the transaction:
    no message says so, and some that are not at fault fall with it.
    """
    topic, output, dead = guarded.topic(3), guarded.topic(), guarded.topic()
    bad = f"{topic}-nowhere" if refusal == "missing" else guarded.topic()
    if refusal == "denied":
        deny(guarded.admin, bad, AclOperation.WRITE)
    elif refusal == "seen but denied":
        permit(guarded.admin, bad, AclOperation.DESCRIBE)  # and nothing else, then
    guarded.fill(topic, [{"value": b"%d" % n, "key": b"%d" % (n % 90)} for n in range(RECORDS)])
    app = guarded.app(kafka={"auto.offset.reset": "earliest"})

    @app.consume(
        topic,
        delivery="exactly_once",
        retry=perkey.Retry(attempts=2, delay_s=0.01),
        on_exhausted=perkey.Park() if ending == "park" else perkey.DeadLetter(dead),
    )
    async def handler(record: perkey.Record) -> perkey.Produce:
        culprit = int(record.value) == CULPRIT
        return perkey.Produce(record.value, key=record.key, topic=bad if culprit else output)

    results = app.results()
    began = time.monotonic()
    report = guarded.drain(app, 60)
    print(f"{refusal}, {ending}: {time.monotonic() - began:.1f} s, {report}")
    assert report.done == RECORDS - 1  # its lane had gone on when the transaction was refused
    assert (report.dead_lettered, report.parked) == ((0, 1) if ending == "park" else (1, 0))
    values = [int(m.value()) for m in read_committed(guarded.bootstrap, output)]
    assert sorted(values) == [n for n in range(RECORDS) if n != CULPRIT]
    error = next(one.error for one in results if one.error is not None)
    wanted = "UNKNOWN_TOPIC" if refusal == "missing" else "TOPIC_AUTHORIZATION_FAILED"
    assert wanted in error.type
    assert refusal == "seen but denied" or bad in error.message
    aborted = [line for line in caplog.messages if line.startswith("transaction aborted")]
    assert aborted
    assert not [line for line in aborted if "reason=''" in line]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_outputs_get_through_where_the_broker_stores_small_maps_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As many as its map tells, while others hold the frontier; once these are done, all.

    The same transaction was refused and sent again for as long as they held it.
    """
    held, released = 40, threading.Event()
    with LocalBroker(config={"offset.metadata.max.bytes": 16}) as broker:
        kafka = Kafka(broker.bootstrap)
        topic, output = kafka.topic(), kafka.topic()
        kafka.fill(topic, [b"%d" % n for n in range(2 * held)])
        app = kafka.app(kafka={"auto.offset.reset": "earliest"})

        @app.consume(
            topic, delivery="exactly_once", ordering="unordered", output=output, concurrency=100
        )
        def handler(record: perkey.Record) -> bytes:
            if record.offset % 2 == 0:
                released.wait(100)
            return record.value

        running = app.start(until="drained")
        try:
            wait_for(lambda: len(read_committed(broker.bootstrap, output)) > 0, 60)
        finally:
            released.set()
        assert running.wait().done == 2 * held
        values = [int(m.value()) for m in read_committed(broker.bootstrap, output)]
        kafka.end_all()
    assert sorted(values) == list(range(2 * held))
    assert any(line.startswith("commit metadata refused as too large") for line in caplog.messages)


QUOTA_BYTES_S, OUTPUTS, OUTPUT_BYTES = 200_000, 1_500, 2_000


@pytest.mark.long
@pytest.mark.timeout(240)
def test_more_outputs_than_a_transactions_time_carries_get_through(guarded: Kafka) -> None:
    """3 MB under a quota of 200 KB/s: what ran out of its time goes in halves, each output once.

    The same transaction was repeated for ever: 2,339 of 6,000 were done, and no more.
    """
    topic, output, client = guarded.topic(), guarded.topic(), guarded.name("slow")
    guarded.fill(topic, [b"%d" % n for n in range(OUTPUTS)])
    set_quota(guarded.bootstrap, client, producer_byte_rate=QUOTA_BYTES_S)
    app = guarded.app(
        kafka={"auto.offset.reset": "earliest", "client.id": client},
        producer={"compression.type": "none"},
    )

    @app.consume(topic, delivery="exactly_once", output=output, concurrency=200)
    async def handler(record: perkey.Record) -> bytes:
        return record.value.ljust(OUTPUT_BYTES, b" ")

    began = time.monotonic()
    report = guarded.drain(app, 200)
    print(f"{time.monotonic() - began:.1f} s, {report}")
    assert (report.done, report.failed_attempts) == (OUTPUTS, 0)
    values = [int(m.value()) for m in read_committed(guarded.bootstrap, output)]
    assert sorted(values) == list(range(OUTPUTS))
