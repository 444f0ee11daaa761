"""Arrow batches into records: every column, every partition, pieces of bounded size."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from tests.unit.spark.processing.conftest import record_batch

from perkey.errors import ConfigError
from perkey.spark.processing import intake
from perkey.spark.processing.columns import HEADERS
from perkey.spark.processing.intake import chunks, groups, rows_each, sorted_chunks
from perkey.types import Record


def test_all_columns_become_the_record():
    """Timestamp in milliseconds and headers as pairs, where the DataFrame has them."""
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=dt.UTC)
    batch = record_batch([(7, b"k", b"value")])
    batch = batch.append_column("timestamp", pa.array([at], pa.timestamp("us", "UTC")))
    batch = batch.append_column("headers", pa.array([[("a", b"b"), ("c", None)]], HEADERS))
    (group,) = groups(batch)
    milliseconds = int(at.timestamp() * 1000)
    headers = (("a", b"b"), ("c", None))
    assert group.records == [Record("t", 0, 7, milliseconds, b"k", b"value", headers)]
    assert group.sizes == [6]


def test_what_a_dataframe_does_not_have_is_as_kafka_reports_it():
    """No timestamp is -1; no headers are none; nulls stay None."""
    (group,) = groups(record_batch([(7, None, None)]))
    assert group.records == [Record("t", 0, 7, -1, None, None, ())]
    assert group.sizes == [0]


def test_null_timestamps_and_headers():
    """A null in these columns is the same as no column."""
    batch = record_batch([(7, b"", b""), (8, b"", b"")])
    batch = batch.append_column("timestamp", pa.array([None, None], pa.timestamp("us", "UTC")))
    batch = batch.append_column("headers", pa.array([None, [("a", b"")]], HEADERS))
    (group,) = groups(batch)
    assert [r.timestamp_ms for r in group.records] == [-1, -1]
    assert [r.headers for r in group.records] == [(), (("a", b""),)]


def test_partitions_of_a_chunk_are_reported_apart():
    """Topics and partitions mixed in offset order: each group ascending, none lost."""
    rows = [(t, p, o, b"", b"") for o in range(3) for p in (1, 0, 2**31 - 1) for t in ("b", "a")]
    found = {
        (g.topic, g.partition): [r.offset for r in g.records] for g in groups(record_batch(rows))
    }
    assert found == {(t, p): [0, 1, 2] for t in "ab" for p in (0, 1, 2**31 - 1)}


@pytest.mark.parametrize("column", ["topic", "partition", "offset"])
def test_a_record_without_a_place_is_refused(column):
    """Null topic, partition or offset: the line names the column."""
    row = {"topic": "t", "partition": 0, "offset": 0} | {column: None}
    batch = record_batch([(row["topic"], row["partition"], row["offset"], b"", b"")])
    with pytest.raises(ConfigError, match=f"{column} is null"):
        list(groups(batch))


@pytest.mark.parametrize(("rows", "pieces"), [(4, [4]), (5, [5]), (6, [5, 1])])
def test_pieces_at_the_limit_of_rows(monkeypatch, rows, pieces):
    """One below, at, and above the limit."""
    monkeypatch.setattr(intake, "CHUNK_ROWS_MAX", 5)
    batch = record_batch([(o, b"", b"") for o in range(rows)])
    assert [piece.num_rows for piece in chunks([batch])] == pieces


def test_pieces_of_large_rows_stay_within_the_bytes():
    """Rows of a megabyte come a few at a time; a row above the limit comes alone."""
    assert rows_each(100, 100 * 2**20) == intake.CHUNK_BYTES_MAX // 2**20
    assert rows_each(2, 2**40) == 1
    assert rows_each(0, 0) == intake.CHUNK_ROWS_MAX


def test_sorted_pieces(monkeypatch):
    """All rows of a share in offset order, in pieces."""
    monkeypatch.setattr(intake, "CHUNK_ROWS_MAX", 4)
    batches = [record_batch([(o, b"", b"") for o in offsets]) for offsets in ([5, 1, 3], [4, 0, 2])]
    pieces = list(sorted_chunks(batches))
    assert [piece.num_rows for piece in pieces] == [4, 2]
    assert [o for piece in pieces for o in piece.column("offset").to_pylist()] == list(range(6))


def test_nothing_to_sort():
    """A share without rows."""
    assert list(sorted_chunks([])) == []
