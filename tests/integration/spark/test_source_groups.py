"""A query's progress as a consumer group's offsets, and reads that start from a group's."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def group():
    return f"g-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def offsets(kafka_broker, group):
    """The group's committed offsets by (topic, partition)."""

    def read(topic, partitions=2):
        consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": group})
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        found = consumer.committed(asked, 60)
        consumer.close()
        return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    return read


@pytest.fixture
def commit(kafka_broker, group):
    """Commit offsets of a topic for the group, from outside."""

    def write(topic, *of_partition):
        consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": group})
        marks = [TopicPartition(topic, n, offset) for n, offset in enumerate(of_partition)]
        refused = [mark.error for mark in consumer.commit(offsets=marks, asynchronous=False)]
        consumer.close()
        assert refused == [None] * len(marks)

    return write


def writer(df, folder):
    return df.writeStream.format("noop").option("checkpointLocation", str(folder / "c"))


def test_a_group_shows_how_far_a_query_is(topic, produce, read_stream, tmp_path, group, offsets):
    """The last batch too, while the query waits and after availableNow; a restart goes on."""
    name = topic(2)
    produce(name, map(str, range(30)))
    produce(name, ["a"], partition=1)

    def read():
        return read_stream(
            name, startingOffsets="earliest", maxOffsetsPerTrigger=10, commitGroup=group
        )

    once = writer(read(), tmp_path).trigger(availableNow=True).start()
    assert once.awaitTermination(120)
    wait_for(lambda: offsets(name) == {(name, 0): 30, (name, 1): 1}, 60, lambda: offsets(name))
    query = writer(read(), tmp_path).start()
    try:
        produce(name, ["b", "c"], partition=1)
        wait_for(lambda: offsets(name).get((name, 1)) == 3, 60, lambda: offsets(name))
    finally:
        query.stop()
    assert query.exception() is None


def test_a_new_query_shows_its_start_immediately(
    topic, produce, read_stream, tmp_path, group, offsets
):
    """Before anything has come, so that lag counts from there."""
    name = topic()
    produce(name, ["a", "b"])
    query = writer(read_stream(name, startingOffsets="latest", commitGroup=group), tmp_path).start()
    try:
        wait_for(
            lambda: offsets(name, 1) == {(name, 0): 2}, 120,
            lambda: (offsets(name, 1), query.exception(), query.status),
        )  # fmt: skip
    finally:
        query.stop()


def test_the_group_of_living_consumers_is_refused(
    kafka_broker, topic, read_stream, tmp_path, group
):
    """Their offsets are theirs: one line that says so."""
    name = topic()
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": group})
    with contextlib.closing(consumer):
        consumer.subscribe([name])
        wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), 60)
        query = writer(read_stream(name, commitGroup=group), tmp_path).start()
        with pytest.raises(Exception, match=f"commitGroup={group}: the group has living members"):
            query.awaitTermination(120)


def test_a_read_starts_at_a_groups_offsets(
    topic, produce, read, read_stream, tmp_path, group, commit, spark
):
    """Batch and stream; a partition the group has not committed is read from its start."""
    name = topic(3)
    for partition in (0, 1, 2):
        produce(name, [f"{partition}-{n}" for n in range(5)], partition=partition)
    commit(name, 3, 5)
    wanted = {"0-3", "0-4", *(f"2-{n}" for n in range(5))}
    rows = read(name, startingGroup=group).selectExpr("cast(value as string) as v").collect()
    assert {row.v for row in rows} == wanted
    df = read_stream(name, startingGroup=group).selectExpr("cast(value as string) as v")
    query = df.writeStream.format("memory").queryName(f"s{uuid.uuid4().hex}")
    query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    done = query.start()
    assert done.awaitTermination(240), done.status
    assert {row.v for row in spark.table(done.name).collect()} == wanted


def test_offsets_of_a_group_that_are_gone_are_reported(topic, produce, read, group, commit):
    """A committed offset outside the log is a loss, as with any other written start."""
    name = topic()
    produce(name, ["a"])
    commit(name, 7)
    with pytest.raises(Exception, match="failOnDataLoss=false"):
        read(name, startingGroup=group).count()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingGroup": "g", "startingOffsets": "earliest"}, "contradict each other"),
        ({"startingGroup": " "}, "startingGroup is empty"),
    ],
)
def test_contradictions_are_reported(read, options, says):
    """One start, and a name that is one."""
    with pytest.raises(Exception, match=says):
        read("t", **options)
