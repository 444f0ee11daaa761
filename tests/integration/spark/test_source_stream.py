"""Streaming reads of the source from a real broker: limits, restarts, and topics that change."""

from __future__ import annotations

import json
import uuid

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.support.waiting import wait_for

pytestmark = pytest.mark.spark


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last)]


class Pipeline:
    """One streaming query into Parquet files (exactly once), which can be run again and again."""

    def __init__(self, spark, folder, load):
        self.spark, self.folder, self.load = spark, folder, load
        self.query = None

    def writer(self, topic=None, **options):
        df = self.load(topic, **options).selectExpr(
            "cast(value as string) as value", "topic", "partition", "offset"
        )
        return df.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))

    def start(self, topic=None, **options):
        """Run until stopped."""
        writer = self.writer(topic, **options).format("parquet")
        self.query = writer.start(str(self.folder / "out"))
        return self.query

    def run(self, topic=None, **options):
        """Read what there is now; returns the progress of the batches that had rows."""
        writer = self.writer(topic, **options).format("parquet").trigger(availableNow=True)
        query = writer.start(str(self.folder / "out"))
        assert query.awaitTermination(250)
        return [p for p in query.recentProgress if p["numInputRows"]]

    def rows(self):
        """Everything written so far, in order of topic, partition and offset."""
        found = self.spark.read.schema(
            "value string, topic string, partition int, offset long"
        ).parquet(str(self.folder / "out"))
        return found.orderBy("topic", "partition", "offset").collect()

    def values(self):
        return [row.value for row in self.rows()]

    def wait_for(self, count: int) -> None:
        """Wait until so many rows have been written; the assertion that follows tells the rest."""
        wait_for(lambda: len(self.values()) >= count or not self.query.isActive, 200, self.values)
        assert len(self.values()) >= count, (self.values(), self.query.exception())

    def logged(self, batch: int):
        """The end offset in the write-ahead log."""
        lines = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
        return json.loads(lines[2])


@pytest.fixture
def pipeline(spark, tmp_path, read_stream):
    return Pipeline(spark, tmp_path, read_stream)


@pytest.fixture
def running():
    """Queries to be stopped at the end, whatever happened."""
    queries = []
    yield queries.append
    for query in queries:
        query.stop()


def admin(broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def delete_before(broker, topic: str, offset: int) -> None:
    client = admin(broker)
    for future in client.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(60)


def test_available_now_reads_what_there_is_in_limited_batches(topic, produce, pipeline):
    """`maxOffsetsPerTrigger` cuts batches; the progress shows rows and offsets; then it ends."""
    name = topic(2)
    produce(name, numbers(0, 30), 0)
    produce(name, numbers(30, 40), 1)
    progress = pipeline.run(name, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    assert [p["numInputRows"] for p in progress] == [20, 20]
    first = progress[0]["sources"][0]
    assert json.loads(first["endOffset"])[name] == {"0": 15, "1": 5}
    assert json.loads(first["latestOffset"]) == {name: {"0": 30, "1": 10}, "$lag": {name: 20}}
    assert json.loads(progress[1]["sources"][0]["latestOffset"])["$lag"] == {name: 0}
    assert pipeline.values() == numbers(0, 40)
    assert pipeline.run(name, startingOffsets="earliest") == []


@pytest.mark.long
def test_a_restart_continues_exactly(topic, produce, pipeline):
    """What came between two runs is read once; options about the start no longer matter."""
    name = topic(2)
    produce(name, numbers(0, 10), 0)
    pipeline.run(name, startingOffsets="earliest")
    produce(name, numbers(10, 15), 0)
    produce(name, numbers(15, 20), 1)
    pipeline.run(name, startingOffsets="latest")
    assert pipeline.values() == numbers(0, 20)
    assert pipeline.logged(1)["$first"] == {name: {"0": 0, "1": 0}}


@pytest.mark.long
def test_latest_is_pinned_when_the_query_starts(topic, produce, pipeline):
    """What comes while a query is down is not skipped, although it starts at latest."""
    name = topic()
    produce(name, numbers(0, 5))
    assert pipeline.run(name) == []
    produce(name, numbers(5, 8))
    pipeline.run(name)
    assert pipeline.values() == numbers(5, 8)
    assert pipeline.logged(0)["$first"] == {name: {"0": 5}}


def test_a_first_batch_that_failed_is_repeated_from_the_log(topic, produce, read_stream, tmp_path):
    """The start is the one in the write-ahead log, wherever the option points by then."""
    name = topic()
    produce(name, numbers(0, 3), timestamp=1_000)
    seen: list[list[str]] = []

    def run(fail: bool, **start) -> None:
        def sink(df, batch):
            seen.append(sorted(bytes(row.value).decode() for row in df.collect()))
            if fail:
                raise RuntimeError("the sink is down")

        writer = read_stream(name, **start).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        writer.trigger(availableNow=True).start().awaitTermination(120)

    with pytest.raises(Exception, match="the sink is down"):
        run(fail=True, startingOffsets="earliest")
    produce(name, numbers(3, 5), timestamp=1_000)
    run(fail=False, startingOffsets="latest")
    assert seen == [numbers(0, 3), numbers(0, 3), numbers(3, 5)]


@pytest.mark.long
def test_partitions_added_while_running(kafka_broker, topic, produce, pipeline, running):
    """A partition that comes later is read from its start, and that start is in the log."""
    name = topic()
    produce(name, numbers(0, 3))
    query = pipeline.start(name, startingOffsets="earliest")
    running(query)
    query.processAllAvailable()
    client = admin(kafka_broker)  # Kept: a client that is collected answers nothing.
    for future in client.create_partitions([NewPartitions(name, 2)]).values():
        future.result(60)
    produce(name, numbers(3, 6), 1)
    pipeline.wait_for(6)
    assert pipeline.values() == numbers(0, 6)


@pytest.mark.long
def test_topics_that_a_pattern_finds_later(topic, produce, pipeline, running):
    """A new topic that matches is read from its start, although the query starts at latest."""
    prefix = f"late{uuid.uuid4().hex[:8]}"
    query = pipeline.start(subscribePattern=f"{prefix}.*")
    running(query)
    query.processAllAvailable()
    name = topic(prefix=prefix)
    produce(name, numbers(0, 4))
    pipeline.wait_for(4)
    assert pipeline.values() == numbers(0, 4)


@pytest.mark.long
def test_records_that_retention_took_before_they_were_read(kafka_broker, topic, produce, pipeline):
    """An error, or without failOnDataLoss what is left."""
    name = topic()
    produce(name, numbers(0, 4))
    pipeline.run(name, startingOffsets="earliest")
    produce(name, numbers(4, 10))
    delete_before(kafka_broker, name, 7)
    with pytest.raises(Exception, match="offsets 4 to 6 are gone from the log: set failOnDataLoss"):
        pipeline.run(name)
    pipeline.run(name, failOnDataLoss="false")
    assert pipeline.values() == numbers(0, 4) + numbers(7, 10)


@pytest.mark.parametrize(
    "records", [2, pytest.param(6, marks=pytest.mark.long)], ids=["shorter", "longer"]
)
def test_a_topic_recreated(kafka_broker, topic, produce, pipeline, records):
    """Told apart from the old one by its id, whatever its length: an error, or read anew."""
    name = topic()
    produce(name, numbers(0, 4))
    pipeline.run(name, startingOffsets="earliest")
    kafka_broker.delete_topic(name)
    kafka_broker.create_topic(name)
    produce(name, numbers(100, 100 + records))
    with pytest.raises(Exception, match=f"topic {name} was deleted and recreated"):
        pipeline.run(name, fetchOffset__retryIntervalMs="10")
    pipeline.run(name, failOnDataLoss="false", fetchOffset__retryIntervalMs="10")
    assert sorted(pipeline.values(), key=int) == numbers(0, 4) + numbers(100, 100 + records)


@pytest.mark.long
def test_a_topic_that_is_deleted(kafka_broker, topic, produce, pipeline):
    """An error that names its partition; without failOnDataLoss the others are read on."""
    gone, stays = topic(prefix="gone"), topic(prefix="stays")
    both = f"{gone},{stays}"
    produce(gone, ["a"])
    pipeline.run(both, startingOffsets="earliest")
    kafka_broker.delete_topic(gone)
    produce(stays, ["b"])
    quick = {"fetchOffset__retryIntervalMs": "10"}
    with pytest.raises(Exception, match=f"partition {gone}-0 is gone"):
        pipeline.run(both, **quick)
    pipeline.run(both, failOnDataLoss="false", **quick)
    assert pipeline.values() == ["a", "b"]


def test_too_few_records_wait_for_more(topic, produce, pipeline, running):
    """`minOffsetsPerTrigger` holds a batch back until enough has come, or its time is up."""
    name = topic()
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 5, "maxTriggerDelay": "1h"}
    produce(name, numbers(0, 1))
    query = pipeline.start(name, **options)
    running(query)
    pipeline.wait_for(1)  # The first batch of a run is never held back.
    produce(name, numbers(1, 5))
    produce(name, numbers(5, 6))
    pipeline.wait_for(6)
    assert pipeline.values() == numbers(0, 6)

    def rows() -> list[int]:
        return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]

    wait_for(lambda: sum(rows()) >= 6, 60)  # told when the batch is over, after its rows
    assert rows() == [1, 5]


@pytest.mark.long
def test_what_is_held_back_is_let_through_in_time(topic, produce, pipeline, running):
    """After `maxTriggerDelay` any number of records is enough."""
    name = topic()
    query = pipeline.start(
        name, startingOffsets="earliest", minOffsetsPerTrigger=100, maxTriggerDelay="2s"
    )
    running(query)
    produce(name, ["a"])
    pipeline.wait_for(1)  # The first batch of a run is never held back.
    produce(name, ["b"])
    pipeline.wait_for(2)
    assert pipeline.values() == ["a", "b"]


@pytest.mark.long
def test_a_checkpoint_of_another_source_is_reported(topic, produce, pipeline):
    """An offset that is not one of Kafka's cannot be gone on from."""
    name = topic()
    produce(name, ["a"])
    pipeline.run(name, startingOffsets="earliest")
    log = pipeline.folder / "checkpoint" / "offsets" / "0"
    (log.parent / ".0.crc").unlink(missing_ok=True)
    log.write_text("\n".join([*log.read_text().splitlines()[:2], '{"rows": 7}']))
    with pytest.raises(Exception, match="start with a new checkpointLocation"):
        pipeline.run(name)


def test_the_checkpoint_of_another_query_is_reported(pipeline, topic, produce):
    """A checkpoint that knows only other topics: one line that says whose it is."""
    first, second = topic(prefix="first"), topic(prefix="second")
    produce(first, ["a"])
    produce(second, ["b"])
    pipeline.run(first, startingOffsets="earliest")
    with pytest.raises(Exception, match=f"of another query, which read {first} and not {second}"):
        pipeline.run(second, startingOffsets="earliest")
    assert pipeline.values() == ["a"]
