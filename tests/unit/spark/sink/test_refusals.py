"""What the sink cannot write is named before a job starts."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from perkey.errors import ConfigError
from perkey.spark import openings

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:1"}
VALUE = {"value": StringType()}
TOPIC = {"topic": "t"}


def refused(columns: dict, options: dict) -> str:
    """The line with which a batch and a stream refuse."""
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ConfigError) as caught:
        openings.batch_writer({**BROKER, **options}, schema, overwrite=False)
    line = str(caught.value)
    assert "\n" not in line
    if "topic" in options:  # of a stream it is reported with the first batch
        with pytest.raises(ConfigError) as caught:
            openings.stream_writer({**BROKER, **options}, schema)
        assert str(caught.value) == line
    return line


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"v": StringType()}, "needs a column value"),
        ({"key": IntegerType(), **VALUE}, "column key is int, not binary or string"),
        ({"value": StructType()}, "column value is struct"),
        ({**VALUE, "partition": StringType()}, "column partition is string"),
        ({**VALUE, "headers": ArrayType(StringType())}, "column headers is array"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_column_that_is_no_part_of_a_message(columns, says):
    """Which one, what it is and what it must be."""
    assert says in refused(columns, TOPIC)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "the sink has no topic: give option topic"),
        ({"topic": "bad topic"}, "cannot be a topic of Kafka"),
        ({**TOPIC, "topics": "t"}, "did you mean topic?"),
        ({**TOPIC, "transactional": "yes"}, "write true or false"),
        ({**TOPIC, "transactionalIdPrefix": "p"}, "does nothing without"),
        ({**TOPIC, "kafka.nope": "1"}, "unknown option kafka.nope"),
        ({**TOPIC, "kafka.ssl.key.pem": "K"}, "a secret in clear"),
        ({**TOPIC, "kafka.transactional.id": "x"}, "use transactional=true"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_cannot_hold(options, says):
    """By name, with the cure."""
    assert says in refused(VALUE, options)
