"""Batch reads of the source from a real broker."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.functions import spark_partition_id
from tests.support.exactness import read_committed

from perkey.spark.source.arrow import spark_schema
from perkey.spark.source.options import COLUMNS

pytestmark = pytest.mark.spark


def values(df) -> list[str]:
    """The values in order of topic, partition and offset."""
    rows = sorted(df.collect(), key=lambda row: (row.topic, row.partition, row.offset))
    return [bytes(row.value).decode() for row in rows]


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last)]


def each(topic: str, *of_partition: int) -> str:
    """Spark's JSON of one number for each partition."""
    return json.dumps({topic: {str(n): value for n, value in enumerate(of_partition)}})


def delete_before(broker, topic: str, offset: int) -> None:
    """Move the start of the log of partition 0."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(60)


def transactions(broker, topic: str, *committed: bool, size: int = 10) -> None:
    """One transaction of `size` records after another, each committed or aborted."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(60)
    for number, commit in enumerate(committed):
        producer.begin_transaction()
        for i in range(size):
            producer.produce(topic, f"{number}-{i}", partition=0)
        producer.flush(60)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
    read_committed(broker.bootstrap, topic)  # its markers are there


def test_a_topic_recreated_between_two_queries_is_read_as_it_is_now(
    kafka_broker, topic, produce, read
):
    """The second query has the consumers that the first left, and they knew the former topic."""
    name = topic(2)
    for partition in (0, 1):
        produce(name, numbers(0, 1_000), partition)
    for _ in range(2):
        assert values(read(name)) == numbers(0, 1_000) * 2
    kafka_broker.delete_topic(name)
    kafka_broker.create_topic(name, partitions=2)
    for partition in (0, 1):
        produce(name, numbers(5_000, 5_900), partition)
    for _ in range(2):
        assert values(read(name)) == numbers(5_000, 5_900) * 2


def test_rows_are_those_of_sparks_connector(topic, produce, read):
    """All columns and their types, with nulls, headers and the producer's time."""
    name = topic(2)
    produce(
        name, ["v"], 1, key="k", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("n", None)]
    )
    produce(name, [None], 0)
    df = read(name, includeHeaders="true")
    assert df.schema == spark_schema((*COLUMNS, "headers"))
    bare, full = sorted(df.collect(), key=lambda row: row.partition)
    assert (bare.key, bare.value, bare.headers, bare.offset) == (None, None, None, 0)
    assert (bytes(full.key), bytes(full.value), full.topic) == (b"k", b"v", name)
    assert (full.partition, full.timestampType) == (1, 0)
    assert [(h.key, h.value and bytes(h.value)) for h in full.headers] == [("h", b"1"), ("n", None)]
    moment = dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC)
    assert full.timestamp.astimezone(dt.UTC) == moment


def test_a_topic_with_the_brokers_time(topic, produce, read):
    """`timestampType` 1 is the time at which the broker appended the record."""
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    produce(name, ["v"], timestamp=5)
    row = read(name).first()
    assert row.timestampType == 1
    assert row.timestamp.year >= 2024


def test_an_empty_topic_has_no_rows(topic, read):
    """Nothing to read is no error."""
    assert read(topic(3)).count() == 0


def test_the_range_of_a_dataframe_is_decided_once(topic, produce, read):
    """Two actions on one DataFrame see the same records; `load()` again sees what came since."""
    name = topic()
    df = read(name)
    produce(name, numbers(0, 3))
    assert df.count() == 3
    produce(name, numbers(3, 5))
    assert values(df) == numbers(0, 3)
    assert read(name).count() == 5


def test_offsets_bound_a_read(topic, produce, read):
    """Offsets for each partition, with -2 for the start and -1 for the end of the log."""
    name = topic(2)
    produce(name, numbers(0, 10), 0)
    produce(name, numbers(10, 20), 1)
    df = read(name, startingOffsets=each(name, 3, -2), endingOffsets=each(name, 5, -1))
    assert values(df) == numbers(3, 5) + numbers(10, 20)


def test_timestamps_bound_a_read(topic, produce, read):
    """The first record at or after a time; an end without a match is the end of the log."""
    name = topic(2)
    for n in range(10):
        produce(name, [str(n)], 0, timestamp=1_000 + n)
        produce(name, [str(n + 10)], 1, timestamp=2_000 + n)
    df = read(name, startingTimestamp=1_005, endingTimestamp=2_002)
    assert values(df) == numbers(5, 10) + numbers(10, 12)
    start = {"startingOffsetsByTimestamp": each(name, 1_008, 2_001)}
    df = read(name, **start, endingOffsetsByTimestamp=each(name, 1_009, 2_003))
    assert values(df) == ["8", *numbers(11, 13)]


def test_a_start_after_the_last_record(topic, produce, read):
    """An error that names the strategy; with it, the end of the log."""
    name = topic()
    produce(name, ["old"], timestamp=1_000)
    with pytest.raises(Exception, match="set startingOffsetsByTimestampStrategy=latest"):
        read(name, startingTimestamp=5_000).count()
    late = read(name, startingTimestamp=5_000, startingOffsetsByTimestampStrategy="latest")
    assert late.count() == 0


def test_topics_by_list_pattern_and_assignment(topic, produce, read):
    """The three ways to say what is read."""
    one, two = topic(2, prefix="multi.a"), topic(2, prefix="multi.b")
    for partition in (0, 1):
        produce(one, [f"a{partition}"], partition)
        produce(two, [f"b{partition}"], partition)
    assert values(read(f"{one}, {two}")) == ["a0", "a1", "b0", "b1"]
    assert values(read(subscribePattern=f"{two}|nothing.*")) == ["b0", "b1"]
    assert values(read(assign=json.dumps({one: [1], two: [0]}))) == ["a1", "b0"]
    assert read(subscribePattern="multi.none.*").count() == 0


def test_one_partition_is_spread_over_tasks(topic, produce, read):
    """`minPartitions` and `maxRecordsPerPartition` cut ranges; every record comes once."""
    name = topic()
    produce(name, numbers(0, 100))
    for option, tasks in (({"minPartitions": 4}, 4), ({"maxRecordsPerPartition": 30}, 4)):
        df = read(name, **option)
        assert values(df) == numbers(0, 100)
        assert df.select(spark_partition_id()).distinct().count() == tasks


def test_columns_are_read_as_asked(topic, produce, read):
    """`columns` chooses and orders."""
    name = topic()
    produce(name, ["v"])
    df = read(name, columns="offset,value")
    assert df.columns == ["offset", "value"]
    assert tuple(df.first()) == (0, bytearray(b"v"))


def test_large_records_come_in_bounded_batches(topic, produce, read):
    """Records near the broker's limit, more of them than one batch may hold."""
    name = topic()
    produce(name, [b"x" * 900_000] * 30)
    rows = read(name).selectExpr("length(value) as size").collect()
    assert [row.size for row in rows] == [900_000] * 30


@pytest.mark.parametrize("isolation", [None, "read_committed"])
def test_gaps_of_transactions(kafka_broker, topic, read, isolation):
    """Aborted records are read unless `read_committed` is asked for.

    Markers leave gaps, also at the very end, and cost no waiting.
    """
    name = topic()
    transactions(kafka_broker, name, True, False, True, False)
    options = {"kafka__isolation__level": isolation} if isolation else {}
    began = time.monotonic()
    found = values(read(name, **options))
    kept = (0, 2) if isolation else (0, 1, 2, 3)
    assert found == [f"{n}-{i}" for n in kept for i in range(10)]
    assert time.monotonic() - began < 110  # a task that waits does so for 120 s


def test_a_range_of_aborted_records_alone_is_empty(kafka_broker, topic, read):
    """A read that has nothing to deliver still finds its end."""
    name = topic()
    transactions(kafka_broker, name, False, True)
    df = read(name, kafka__isolation__level="read_committed", endingOffsets=each(name, 5))
    assert df.count() == 0


def test_an_open_transaction_ends_a_committed_read(kafka_broker, topic, read):
    """Under `read_committed` the log ends before the oldest open transaction."""
    name = topic()
    transactions(kafka_broker, name, True)
    producer = Producer(
        {
            "bootstrap.servers": kafka_broker.bootstrap,
            "transactional.id": uuid.uuid4().hex,
            "transaction.timeout.ms": 600_000,  # it is open as long as we look
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(name, "open", partition=0)
    producer.flush(60)
    assert read(name, kafka__isolation__level="read_committed").count() == 10
    assert read(name).count() == 11
    producer.abort_transaction(60)


def _first_round(found):
    return [value for value in found if value.startswith("0-")]


def test_gaps_of_compaction(kafka_broker, topic, produce, read):
    """What compaction left is read; the holes are no loss."""
    name = topic(
        config={"cleanup.policy": "compact", "segment.ms": 100, "min.cleanable.dirty.ratio": 0.001}
    )
    for round_number in range(3):
        keys = [b"%d" % key for key in range(20)]
        produce(name, [f"{round_number}-{key}" for key in range(20)], keys=keys)
    deadline = time.monotonic() + 200
    while _first_round(found := values(read(name))) and time.monotonic() < deadline:
        produce(name, ["tick"], key=str(uuid.uuid4()))  # Rolls the segment.
    assert not _first_round(found)
    assert [f"2-{key}" for key in range(20)] == [v for v in found if v.startswith("2-")]


def test_records_that_retention_took(kafka_broker, topic, produce, read):
    """A start before the log is an error or, without failOnDataLoss, the start of the log."""
    name = topic()
    produce(name, numbers(0, 10))
    delete_before(kafka_broker, name, 4)
    assert values(read(name)) == numbers(4, 10)
    with pytest.raises(Exception, match="has 2, but its log holds 4 to 10: set failOnDataLoss"):
        read(name, startingOffsets=each(name, 2)).count()
    df = read(name, startingOffsets=each(name, 2), failOnDataLoss="false")
    assert values(df) == numbers(4, 10)


def test_an_end_past_the_log(topic, produce, read):
    """An end that the log does not have is lost data, or cut without failOnDataLoss."""
    name = topic()
    produce(name, numbers(0, 5))
    with pytest.raises(Exception, match="has 9, but its log holds 0 to 5"):
        read(name, endingOffsets=each(name, 9)).count()
    assert read(name, endingOffsets=each(name, 9), failOnDataLoss="false").count() == 5


def test_no_consumer_group_appears_at_the_broker(kafka_broker, topic, produce, read):
    """Partitions are assigned: nothing joins, nothing is committed."""
    name = topic()
    produce(name, ["v"])
    prefix = f"grp-{uuid.uuid4().hex}"
    assert read(name, groupIdPrefix=prefix).count() == 1
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0})
    groups = admin.list_consumer_groups(request_timeout=60).result(70).valid
    assert not [g for g in groups if g.group_id.startswith(("spark-kafka", prefix))]


def test_javas_names_work(topic, produce, read):
    """A job that comes from Spark's connector keeps its kafka.* options."""
    name = topic()
    produce(name, ["v"])
    df = read(name, kafka__fetch__max__wait__ms="10", kafka__max__poll__records="2")
    assert values(df) == ["v"]
