"""The same reads by Spark's own connector and by Perkey's source give the same rows."""

from __future__ import annotations

import json
import random
import shutil
import uuid

import pytest
from benchmarks.spark_source import connector_jars
from confluent_kafka import Producer
from tests.support.exactness import read_committed

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.java,
    pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven fetches Spark's connector"),
]

SEED, PARTITIONS = 20_261_120, 3
#: Bounds are filled in with the topic's name.
READS = {
    "all": {},
    "headers": {"includeHeaders": "true"},
    "committed": {"kafka.isolation.level": "read_committed"},
    "split": {"minPartitions": "8"},
    "small": {"maxRecordsPerPartition": "17"},
    "times": {"startingTimestamp": "5000000", "endingTimestamp": "700000000"},
    "offsets": {"startingOffsets": (5, -2, 7), "endingOffsets": (100, 90, -1)},
}


@pytest.fixture(scope="module")
def both(spark):
    """The session with Spark's connector added; fetched by Maven once."""
    for jar in connector_jars():
        spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.fixture(scope="module")
def mixed_topic(kafka_broker):
    """Records of every shape: nulls, headers, any timestamp, transactions both ways."""
    name, chance = f"mixed-{uuid.uuid4().hex[:8]}", random.Random(SEED)
    kafka_broker.create_topic(name, partitions=PARTITIONS)
    plain = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    for _ in range(400):
        plain.produce(name, **record(chance))
    assert plain.flush(60) == 0
    config = {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": name}
    producer = Producer(config)
    producer.init_transactions(60)
    for _ in range(6):
        producer.begin_transaction()
        for _ in range(20):
            producer.produce(name, **record(chance))
        producer.flush(60)
        end = producer.commit_transaction if chance.random() < 0.5 else producer.abort_transaction
        end(60)
    read_committed(kafka_broker.bootstrap, name)  # its markers are there
    return name


def record(chance: random.Random) -> dict:
    """One record with anything in it."""
    headers = [
        (chance.choice(["a", "é"]), chance.choice([None, b"", b"x"]))
        for _ in range(chance.randrange(4))
    ]
    return {
        "value": None if chance.random() < 0.1 else chance.randbytes(chance.randrange(50)),
        "key": None if chance.random() < 0.3 else chance.randbytes(chance.randrange(5)),
        "partition": chance.randrange(PARTITIONS),
        "timestamp": 1_000 + chance.randrange(10**9),
        "headers": headers or None,
    }


@pytest.mark.parametrize("options", READS.values(), ids=READS.keys())
def test_rows_and_schema_are_the_same(both, kafka_broker, mixed_topic, options):
    """Column for column and row for row, with the same options under both names."""
    named = {
        name: json.dumps({mixed_topic: dict(enumerate(value))})
        if isinstance(value, tuple)
        else value
        for name, value in options.items()
    }

    def rows(form: str):
        reader = both.read.format(form).option("kafka.bootstrap.servers", kafka_broker.bootstrap)
        df = reader.option("subscribe", mixed_topic).options(**named).load()
        return df.schema, sorted(str(tuple(row)) for row in df.collect())

    schema, expected = rows("kafka")
    assert rows("perkey") == (schema, expected)
    assert expected
