"""How long calls take: counted by each task in narrow buckets, merged by Spark as it sees rows.

Observed metrics are sums over rows. So a task whose calls are counted ends with some rows more,
one for each bucket that is not empty, which `process` takes out again behind the observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import sqrt

import pyarrow as pa

from weft.runtime.histogram import Latency

#: Upper bounds in seconds: eight to each doubling, from 10 µs to an hour and a half, so that the
#: middle of a bucket is less than 5 % away from whatever was counted there.
BOUNDS = tuple(1e-5 * 2 ** (step / 8) for step in range(29 * 8 + 1))

#: What the rows have beside the columns of the result; null in all that are records.
TOOK_SCHEMA = ", took_ms double, calls long"
TOOK = [pa.field("took_ms", pa.float64()), pa.field("calls", pa.int64())]


def with_no_call_times(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with the two columns more."""
    for batch in batches:
        schema = pa.schema([*batch.schema, *TOOK])
        nulls = [pa.nulls(batch.num_rows, field.type) for field in TOOK]
        yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=schema)


def with_call_times(
    batches: Iterable[pa.RecordBatch], latency: Latency
) -> Iterator[pa.RecordBatch]:
    """The same, and at their end what was counted meanwhile."""
    schema = None
    for batch in with_no_call_times(batches):
        schema = batch.schema
        yield batch
        latency.fold()
    if schema is not None:
        yield _counted(schema, latency.buckets()["counts"])


def _counted(schema: pa.Schema, counts: Sequence[int]) -> pa.RecordBatch:
    found = [(_middle_ms(place), count) for place, count in enumerate(counts) if count]
    columns = {
        "took_ms": pa.array([middle for middle, _ in found], pa.float64()),
        "calls": pa.array([count for _, count in found], pa.int64()),
    }
    arrays = [columns.get(f.name, pa.nulls(len(found), f.type)) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _middle_ms(place: int) -> float:
    """What a call of this bucket took, about; in the two that are open it is their bound."""
    lower = BOUNDS[max(0, place - 1)]
    upper = BOUNDS[min(place, len(BOUNDS) - 1)]
    return round(sqrt(lower * upper) * 1e3, 4)
