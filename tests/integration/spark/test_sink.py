"""The sink: rows of batches and streams in topics, as Spark's own connector writes them."""

from __future__ import annotations

import pytest
from tests.integration.spark.sink_kit import messages, values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def write(kafka_broker):
    """Write a DataFrame with the sink."""

    def save(df, mode="append", **options):
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        named = {"kafka.bootstrap.servers": kafka_broker.bootstrap, **named}
        df.write.format("perkey").options(**named).mode(mode).save()

    return save


def numbers(spark, count: int, *more: str):
    return spark.range(count).selectExpr(
        "concat('k', id % 7) as key", "cast(id as string) as value", *more
    )


@pytest.mark.parametrize("transactional", [pytest.param("false", marks=pytest.mark.long), "true"])
def test_every_column_arrives(spark, kafka_broker, topic, write, transactional):
    """Key, value, headers and partition; other columns are left out; nulls stay nulls."""
    name = topic(3)
    df = spark.range(6).selectExpr(
        "if(id = 0, null, cast(concat('k', id) as binary)) as key",
        "if(id = 1, null, cast(id as string)) as value",
        f"'{name}' as topic",
        "if(id < 3, cast(id as int), null) as partition",
        "if(id = 2, array(struct('h' as key, cast('x' as binary) as value),"
        " struct('n' as key, cast(null as binary) as value)), null) as headers",
        "current_timestamp() as timestamp",
    )
    write(df, transactional=transactional)
    found = {(m.value() or b"none").decode(): m for m in messages(kafka_broker, name)}
    assert sorted(found) == ["0", "2", "3", "4", "5", "none"]
    assert (found["0"].key(), found["0"].partition()) == (None, 0)
    assert (found["none"].key(), found["none"].partition()) == (b"k1", 1)
    assert (found["2"].headers(), found["2"].partition()) == ([("h", b"x"), ("n", None)], 2)
    assert found["5"].key() == b"k5"
    assert found["5"].headers() is None


def test_keys_go_where_java_sends_them(spark, kafka_broker, topic, write):
    """Murmur2, as Spark's own connector and every Java producer: partitions fit together."""
    name = topic(5)
    write(numbers(spark, 50), topic=name)
    partition_of = {m.key().decode(): m.partition() for m in messages(kafka_broker, name)}
    # Computed by org.apache.kafka.common.utils.Utils.murmur2 for five partitions.
    assert partition_of == {f"k{n}": murmur2(f"k{n}".encode()) % 5 for n in range(7)}


def murmur2(data: bytes) -> int:
    """Java's, made positive."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_the_option_wins_over_the_column_and_many_rows_arrive(spark, kafka_broker, topic, write):
    """More than one Arrow batch a task, into the topic of the option."""
    name = topic(2)
    write(numbers(spark, 30_000, "'no-such-topic' as topic"), topic=name)
    assert len(messages(kafka_broker, name)) == 30_000


def test_more_rows_than_the_queue_holds_wait_for_room(spark, kafka_broker, topic, write):
    """A full queue slows the task down; nothing is dropped."""
    name = topic()
    write(numbers(spark, 5_000), topic=name, kafka__queue__buffering__max__messages=100)
    assert len(values(kafka_broker, name)) == 5_000


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["1 as key", "'v' as value"], {"topic": "t"}, "column key is int, not binary or string"),
        (["'v' as value"], {"topic": "t", "topics": "t"}, "did you mean topic?"),
    ],
    ids=["column", "option"],
)
def test_bad_input_is_one_line_before_a_task_runs(spark, write, columns, options, says):
    """What cannot be written is told by name, without a traceback of Python."""
    with pytest.raises(Exception, match="perkey") as caught:
        write(spark.range(1).selectExpr(*columns), **options)
    assert says in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_overwriting_a_topic_is_refused(spark, topic, write):
    """A log only grows."""
    with pytest.raises(Exception, match="cannot be overwritten"):
        write(numbers(spark, 1), mode="overwrite", topic=topic())


def test_what_kafka_refuses_ends_the_task_with_one_line(spark, kafka_broker, topic, write):
    """A row that is too large for the topic, and a partition that is not there."""
    name = topic(1, config={"max.message.bytes": "2000"})
    with pytest.raises(Exception, match="rows could not be written to Kafka at") as caught:
        write(spark.range(1).selectExpr("repeat('x', 5000) as value"), topic=name)
    assert name in str(caught.value)
    with pytest.raises(Exception, match="rows could not be written"):
        write(spark.range(1).selectExpr("'v' as value", "7 as partition"), topic=topic())
    with pytest.raises(Exception, match="a row's topic is null"):
        write(spark.range(1).selectExpr("'v' as value", "cast(null as string) as topic"))


def test_brokers_that_do_not_answer_are_reported_before_a_task_runs(spark, write):
    """Within a question's time-out, not after the minutes that a row may wait."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": 1000}
    with pytest.raises(Exception, match=r"Kafka at 127\.0\.0\.1:1 did not answer") as caught:
        write(numbers(spark, 1), topic="t", **options)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("transactional", [pytest.param("false", marks=pytest.mark.long), "true"])
def test_a_stream_writes_each_batch(
    spark, kafka_broker, topic, produce, read_stream, tmp_path, transactional
):
    """Topic to topic in several batches, across a restart: every record, in its partition's order."""
    source, target = topic(2), topic(2)

    def run():
        df = read_stream(source, startingOffsets="earliest", maxOffsetsPerTrigger=60)
        rows = df.select("key", "value", "partition")
        writer = rows.writeStream.format("perkey").trigger(availableNow=True)
        writer = writer.option("kafka.bootstrap.servers", kafka_broker.bootstrap)
        writer = writer.option("topic", target).option("transactional", transactional)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
        assert query.awaitTermination(120)

    for first in (0, 100):
        for partition in (0, 1):
            written = range(first + partition, first + 100, 2)
            produce(source, map(str, written), partition, key=b"k")
        run()
    of_partition = {0: [], 1: []}
    for message in messages(kafka_broker, target):
        of_partition[message.partition() or 0].append(int(message.value() or b""))
    assert of_partition == {0: list(range(0, 200, 2)), 1: list(range(1, 200, 2))}


def test_a_stream_without_a_topic_is_reported_with_its_first_batch(
    spark, topic, produce, read_stream, kafka_broker, tmp_path
):
    """One line with the cure."""
    source = topic()
    produce(source, ["a"])
    writer = read_stream(source, startingOffsets="earliest").select("value").writeStream
    writer = writer.format("perkey").option("kafka.bootstrap.servers", kafka_broker.bootstrap)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="the sink has no topic: give option topic") as caught:
        query.awaitTermination(120)
    assert "Traceback" not in str(caught.value)
