"""Rows as Arrow: exactly the types and nulls of Spark's own connector."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from perkey.spark.source import arrow
from perkey.spark.source.arrow import ARROW_TYPES, batch_builder, spark_schema
from perkey.spark.source.options import COLUMNS
from perkey.spark.source.ranges import OffsetRange

EVERY = (*COLUMNS, "headers")
SPAN = OffsetRange("gps", 3, 0, 10)


class FakeMessage:
    """The part of a Kafka message that becomes columns."""

    def __init__(self, offset, key=b"k", value=b"v", kind=1, ms=1_000, headers=None):
        self._of = (offset, key, value, (kind, ms), headers)

    def offset(self):
        return self._of[0]

    def key(self):
        return self._of[1]

    def value(self):
        return self._of[2]

    def timestamp(self):
        return self._of[3]

    def headers(self):
        return self._of[4]


@pytest.fixture(autouse=True)
def fake_messages(monkeypatch):
    """Messages cannot be made by hand, so the builder maps over the fake class instead."""
    monkeypatch.setattr(arrow, "Message", FakeMessage)


def rows(columns, *messages):
    return batch_builder(columns, SPAN)(messages).to_pylist()


def test_the_types_are_what_spark_demands():
    """Spark compares the first batch of a task with its own schema, types and nulls."""
    wanted = to_arrow_schema(spark_schema(EVERY), timezone="UTC")
    assert wanted.equals(pa.schema([pa.field(name, ARROW_TYPES[name]) for name in EVERY]))
    assert batch_builder(EVERY, SPAN)([FakeMessage(1)]).schema.equals(wanted)


def test_a_row_has_what_the_record_has():
    """All columns of one record."""
    message = FakeMessage(7, ms=1_700_000_000_123, headers=[("h", b"1"), ("h", None)])
    when = dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC)
    assert rows(EVERY, message) == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "gps",
            "partition": 3,
            "offset": 7,
            "timestamp": when,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        }
    ]


def test_null_and_empty_stay_different():
    """A tombstone is null; an empty value is empty; no headers is null, as in Spark."""
    found = rows(EVERY, FakeMessage(0, None, None), FakeMessage(1, b"", b"", headers=[]))
    assert [(r["key"], r["value"], r["headers"]) for r in found] == [
        (None, None, None),
        (b"", b"", None),
    ]


def test_types_of_time_may_change_inside_a_batch():
    """A topic may switch from the producer's time to the broker's; -1 is no time at all."""
    found = rows(COLUMNS, FakeMessage(0), FakeMessage(1, kind=2), FakeMessage(2, kind=0, ms=-1))
    assert [r["timestampType"] for r in found] == [0, 1, -1]
    assert found[2]["timestamp"] == dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)


def test_only_the_columns_asked_for_are_built():
    """`columns` leaves out work as well as data, and orders what is left."""
    assert rows(("offset", "value"), FakeMessage(4)) == [{"offset": 4, "value": b"v"}]


@pytest.mark.parametrize("found", [[4], [4, 5, 6], [4, 6], [4, 5, 7, 9], [0, 1, 2**62]])
def test_offsets_are_those_of_the_records(found):
    """With and without gaps, which compaction and transactions leave."""
    assert [r["offset"] for r in rows(["offset"], *map(FakeMessage, found))] == found


def test_a_timestamp_that_spark_cannot_hold_is_null(caplog):
    """Nanoseconds taken for milliseconds: the row is there without its time, and a line says so."""
    limit = arrow.MILLISECONDS_MAX
    made = rows(
        ["timestamp", "timestampType", "offset"],
        *(FakeMessage(n, ms=ms) for n, ms in enumerate([1_700_000_000_000_000_000, 1_000])),
    )
    assert [row["timestamp"] is None for row in made] == [True, False]
    assert [row["offset"] for row in made] == [0, 1]
    assert "1 records have a timestamp" in caplog.text
    edges = arrow.timestamps([(1, limit), (1, limit + 1), (1, -limit), (1, -limit - 1)])
    assert edges.is_null().to_pylist() == [False, True, False, True]
