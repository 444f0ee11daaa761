"""The time of calls, counted in a task's own rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from perkey.runtime.histogram import Latency
from perkey.spark.processing.columns import BOUNDS, CALLS, TOOK_MS, with_call_times


def counted(seconds):
    """(took_ms, calls) of the rows that come after those of the records."""
    latency = Latency(BOUNDS)
    for one in seconds:
        latency.add(one)
    batch = pa.record_batch({"offset": pa.array([7, 8], pa.int64())})
    first, last = with_call_times([batch], latency)
    assert first.to_pydict() == {"offset": [7, 8], TOOK_MS: [None] * 2, CALLS: [None] * 2}
    assert last.column("offset").null_count == last.num_rows
    return [(row[TOOK_MS], row[CALLS]) for row in last.to_pylist()]


@pytest.mark.parametrize("seconds", [0.0001, 0.0123, 0.05, 1.0, 333.0])
def test_a_call_is_counted_within_5_percent(seconds):
    """Whatever its length, the middle of its bucket is near."""
    [(took_ms, calls)] = counted([seconds])
    assert took_ms == pytest.approx(seconds * 1e3, rel=0.05)
    assert calls == 1


def test_calls_of_one_length_are_one_row():
    """So a task adds a few rows, however many calls it made."""
    rows = counted([0.01] * 900 + [0.5] * 100)
    assert [calls for _, calls in rows] == [900, 100]


def test_what_is_outside_of_all_buckets_is_counted_too():
    """At their ends: nothing is shorter than the first or longer than the last."""
    rows = counted([0.0, 1e6])
    assert [calls for _, calls in rows] == [1, 1]
    assert rows[1][0] == pytest.approx(BOUNDS[-1] * 1e3)


def test_a_task_without_records_adds_no_row():
    """There was no call."""
    assert list(with_call_times([], Latency(BOUNDS))) == []


def test_a_task_counts_its_calls(task):
    """As many as were made, retries among them, behind the rows of its records."""
    from tests.unit.spark.processing.conftest import record_batch

    def handler(record):
        if record.offset == 1 and record.attempt == 1:
            raise ValueError

    batches = list(task(handler, [record_batch([(o, b"k", b"") for o in range(3)])], timed=True))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows if row[CALLS] is None] == [0, 1, 2]
    assert sum(row[CALLS] or 0 for row in rows) == 4
