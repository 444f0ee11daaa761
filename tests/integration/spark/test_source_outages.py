"""A streaming query outlives brokers that hang or are away; a start without any is told at once."""

from __future__ import annotations

import signal
import threading

import pytest
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

#: A question's time-out; the outage is longer, so that some question fails within it.
REQUEST_MS, OUTAGE_S = "1500", 6.0


@pytest.fixture
def kafka_broker(mortal_broker):
    """The fixtures of this folder write to and read from the one that may be stopped and killed."""
    return mortal_broker


@pytest.fixture
def start(spark, read_stream, tmp_path):
    """Start a query that counts rows into a memory table."""
    queries = []

    def begin(topic, **options):
        df = read_stream(
            topic, startingOffsets="earliest", kafka__request__timeout__ms=REQUEST_MS, **options
        )
        writer = df.writeStream.format("memory").queryName(f"seen{len(queries)}_{id(queries)}")
        queries.append(writer.option("checkpointLocation", str(tmp_path / "c")).start())
        return queries[-1]

    yield begin
    for query in queries:
        query.stop()


def seen(spark, query) -> int:
    return spark.table(query.name).count() if query.isActive else -1


def hang(broker):
    """The broker stands still, its connections open, as a paused machine does."""
    broker.kill(sig=signal.SIGSTOP)
    threading.Event().wait(OUTAGE_S)
    broker.kill(sig=signal.SIGCONT)


def die(broker):
    """The broker is killed and starts again a little later."""
    broker.kill()
    threading.Event().wait(OUTAGE_S)
    broker.restart()


@pytest.mark.parametrize("outage", [hang, pytest.param(die, marks=pytest.mark.long)])
def test_a_query_outlives_a_broker_that_is_away(spark, kafka_broker, topic, produce, start, outage):
    """Longer than a question's time-out, shorter than reconnectTimeout: it goes on by itself."""
    name = topic(2)
    produce(name, ["a", "b"])
    query = start(name)
    wait_for(lambda: seen(spark, query) == 2, 150)
    outage(kafka_broker)
    produce(name, ["c"], partition=1)
    wait_for(lambda: seen(spark, query) in (-1, 3), 150, query.exception)
    assert query.exception() is None, str(query.exception())[:3000]
    assert seen(spark, query) == 3


@pytest.mark.long
def test_patience_ends_with_one_line(spark, kafka_broker, topic, produce, start):
    """After `reconnectTimeout` the query ends, and the error names the brokers."""
    name = topic()
    produce(name, ["a"])
    # Longer than the machine stands still while the broker is there.
    query = start(name, reconnectTimeout="15s")
    wait_for(lambda: seen(spark, query) == 1, 100)
    kafka_broker.kill(sig=signal.SIGSTOP)
    try:
        wait_for(lambda: not query.isActive, 150)
    finally:
        kafka_broker.kill(sig=signal.SIGCONT)
    assert f"Kafka at {kafka_broker.bootstrap} did not answer" in str(query.exception())
