"""Tasks of the operator without Spark: Arrow batches in, rows out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from perkey.spark.processing.payload import packed
from perkey.spark.processing.settings import TaskSettings, handler_options, lifespan_of
from perkey.spark.processing.task import run_task

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


def record_batch(rows):
    """A batch of (offset, key, value) or (topic, partition, offset, key, value)."""
    full = [row if len(row) == 5 else ("t", 0, *row) for row in rows]
    columns = list(zip(*full, strict=True)) or [[]] * 5
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@pytest.fixture
def task():
    """Start a task over batches of rows; iterate to get its Arrow batches."""

    def start(handler, batches, *, sort=False, lifespan=None, app=None, carry=None, **more):
        flags = {name: more.pop(name, False) for name in ("timed", "typed")}
        options, opened = handler_options(handler, more), lifespan_of(handler, lifespan)
        settings = TaskSettings(options, opened, app, sort, carry, **flags)
        return run_task(packed(settings), iter(batches))

    return start


@pytest.fixture
def rows(task):
    """All rows of a task as dictionaries, by offset."""

    def run(handler, records, **options):
        batches = task(handler, [record_batch(records)], **options)
        found = [row for batch in batches for row in batch.to_pylist()]
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    return run
