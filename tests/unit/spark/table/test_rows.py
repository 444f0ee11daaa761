"""What handlers return becomes rows of the table's columns, or a reason why it cannot."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from perkey.errors import ConfigError
from perkey.kafka.ports import OutMessage
from perkey.spark.table.rows import as_rows, columns_of, row_of
from perkey.spark.table.sink import TABLE
from perkey.types import Record

FIELDS = pa.schema([("inside", pa.bool_()), ("day", pa.date32()), ("count", pa.int32())])
COLUMNS = columns_of(FIELDS)


def rows(*values: bytes | None) -> list:
    """One record for each value."""
    records = [Record("t", 1, 7 + n, 1_000, b"k", b"") for n in range(len(values))]
    pairs = zip(values, records, strict=True)
    return [row_of(OutMessage(TABLE, value, b"k"), record) for value, record in pairs]


def test_values_become_columns() -> None:
    """The record's place, and the value's fields with their types; what is left out is null."""
    table, bad = as_rows(rows(b'{"inside":true,"day":"2026-01-02"}', b'{"count":3}'), COLUMNS)
    assert bad == {}
    place = {"topic": "t", "partition": 1, "key": b"k"}
    place["timestamp"] = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    first = {"inside": True, "day": dt.date(2026, 1, 2), "count": None}
    second = {"inside": None, "day": None, "count": 3}
    assert table.to_pylist() == [{**place, "offset": 7, **first}, {**place, "offset": 8, **second}]


def test_no_rows_are_an_empty_table() -> None:
    """A transaction may hold nothing but records without results."""
    assert as_rows([], COLUMNS) == (COLUMNS.empty_table(), {})


@pytest.mark.parametrize(
    "value",
    [b'{"nope":1}', b'{"count":"many"}', b"[1]", b"7", b"", b"{}{}", None, b'{"count":3000000000}'],
)
def test_what_is_no_row_is_named(value) -> None:
    """The one that does not fit is found among others, and its reason does not quote it."""
    table, bad = as_rows(rows(b'{"count":1}', value, b'{"count":2}'), COLUMNS)
    assert table is None
    assert list(bad) == [1]
    assert "3000000000" not in bad[1]
    assert "many" not in bad[1]


def test_columns_that_cannot_be_are_refused() -> None:
    """A record's own name, and a type that JSON cannot give."""
    with pytest.raises(ConfigError, match="offset"):
        columns_of(pa.schema([("offset", pa.int64())]))
    with pytest.raises(ConfigError, match="map"):
        columns_of(pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))
