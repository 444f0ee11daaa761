"""Bad input to the source: one clear line that names the thing, before the job reads anything."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.spark

SECRET = "hunter2-very-secret"


def one_line(caught) -> str:
    """What the user sees first: no traceback of Python in it."""
    text = str(caught.value)
    assert "Traceback" not in text
    assert SECRET not in text
    first = text.splitlines()[0]
    assert "perkey" in first
    return first


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"kafka.security.protocol": SECRET}, "librdkafka refuses the kafka.* options"),
        *(
            pytest.param(*one, marks=pytest.mark.long)  # unit/spark/source/test_options.py has them
            for one in (
                ({"startingOffsets": "{bad"}, "startingOffsets: '{bad' is not valid"),
                ({"assign": '{"a":[0]}'}, "options subscribe and assign contradict each other"),
                ({"kafka.no.such.thing": SECRET}, "unknown option kafka.no.such.thing"),
                ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets=earliest or latest"),
                ({"kafka.sasl.jaas.config": f"X required p={SECRET};"}, "kafka.sasl.jaas.config"),
                ({"failOnDataLoss": "perhaps"}, "write true or false"),
            )
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options_are_reported_at_load(spark, kafka_broker, options, says):
    """`load()` itself refuses, for batches and for streams."""
    base = {"kafka.bootstrap.servers": kafka_broker.bootstrap, "subscribe": "t", **options}
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match="perkey") as caught:
            reader.format("perkey").options(**base).load()
        assert says in one_line(caught)


def test_a_schema_of_ones_own_is_refused(spark, kafka_broker, topic):
    """The columns are fixed, as in Spark's connector."""
    reader = spark.read.format("perkey").schema("value string")
    df = reader.options(
        **{"kafka.bootstrap.servers": kafka_broker.bootstrap, "subscribe": topic()}
    ).load()
    with pytest.raises(Exception, match="fixed schema") as caught:
        df.count()
    one_line(caught)


def test_an_unknown_topic_is_named(read, read_stream, tmp_path):
    """Neither a batch nor a stream waits for a topic that is not there."""
    options = {"fetchOffset__retryIntervalMs": "10"}
    with pytest.raises(Exception, match="topic 'no-such' does not exist") as caught:
        read("no-such", **options).count()
    one_line(caught)
    query = (
        read_stream("no-such", **options)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    with pytest.raises(Exception, match="topic 'no-such' does not exist"):
        query.awaitTermination(120)


def test_partitions_that_are_not_named_are_reported(topic, read):
    """Offsets must be given for exactly the partitions that are read."""
    name = topic(2)
    with pytest.raises(Exception, match=f"startingOffsets leaves out {name}-1") as caught:
        read(name, startingOffsets=json.dumps({name: {"0": 0}})).count()
    one_line(caught)
    with pytest.raises(Exception, match=f"partition {name}-7 does not exist"):
        read(assign=json.dumps({name: [0, 7]}), fetchOffset__retryIntervalMs="10").count()


def test_brokers_that_do_not_answer(spark):
    """The address and what to check; the wait is bounded, by Java's option if it is given."""
    reader = spark.read.format("perkey").option("kafka.bootstrap.servers", "127.0.0.1:1")
    reader = reader.option("subscribe", "t").option("kafka.request.timeout.ms", "1000")
    df = reader.option("kafka.sasl.password", SECRET).load()
    with pytest.raises(Exception, match=r"Kafka at 127\.0\.0\.1:1 did not answer") as caught:
        df.count()
    assert "check kafka.bootstrap.servers" in one_line(caught)


def test_streaming_options_in_a_batch_and_the_other_way_round(topic, read, read_stream, tmp_path):
    """An option that cannot hold for this kind of read is named."""
    name = topic()
    with pytest.raises(Exception, match="maxOffsetsPerTrigger is for streaming") as caught:
        read(name, maxOffsetsPerTrigger="5").count()
    one_line(caught)
    with pytest.raises(Exception, match="endingOffsets is for batch reads"):
        (
            read_stream(name, endingOffsets="latest")
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
            .awaitTermination(120)
        )


def test_secrets_are_not_in_plans(topic, read, capsys):
    """`explain` shows columns and no option."""
    read(topic(), kafka__sasl__password=SECRET).explain(extended=True)
    shown = capsys.readouterr().out
    assert "perkey" in shown
    assert SECRET not in shown
