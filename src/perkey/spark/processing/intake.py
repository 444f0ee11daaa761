"""From Spark's Arrow batches to the core's records, by partition and in offset order.

By whole columns: a Python loop over rows would cost more than the core does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from perkey.errors import ConfigError
from perkey.types import Headers, Record, TopicPartition

CHUNK_ROWS_MAX = 10_000
CHUNK_BYTES_MAX = 4 * 2**20
NO_TIMESTAMP_MS = -1
#: The columns that name a record.
PLACE = ["topic", "partition", "offset"]
#: Names of the task's columns besides those of the records.
OTHER = "__perkey_"


class RowGroup(NamedTuple):
    """Records of one partition, ascending, with their sizes in bytes."""

    topic: str
    partition: int
    records: list[Record]
    sizes: list[int]
    #: whether no offset occurs twice
    strict: bool
    #: the source rows, with all other columns
    rows: pa.RecordBatch


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in pieces of bounded size."""
    for batch in batches:
        rows = rows_each(batch.num_rows, batch.nbytes)
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def sorted_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows in offset order; holds all of them, as a streaming DataFrame requires."""
    table = whole(batches)
    if table is None:
        return
    rows = rows_each(table.num_rows, table.nbytes)
    order = pc.sort_indices(table.column("offset"))
    for start in range(0, table.num_rows, rows):
        yield from table.take(order.slice(start, rows)).combine_chunks().to_batches()


def whole(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    """All rows, in whole columns: selecting rows from chunked ones would join them each time."""
    held = list(batches)
    return pa.Table.from_batches(held).combine_chunks() if held else None


def rows_each(rows: int, size_bytes: int) -> int:
    """How many rows a piece may have to stay within both limits on average."""
    per_row = max(1, size_bytes // max(1, rows))
    return max(1, min(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX // per_row))


def groups(chunk: pa.RecordBatch) -> Iterator[RowGroup]:
    """The records of each partition in the chunk; the chunk is in offset order."""
    for (topic, number), rows in by_place(chunk):
        here = chunk if len(rows) == chunk.num_rows else chunk.take(pa.array(rows))
        offsets = here.column("offset").to_numpy()
        keys, values = here.column("key"), here.column("value")
        # The approximate bytes per row of columns that records do not have.
        more = sum(here.column(n).nbytes for n in here.schema.names if n.startswith(OTHER))
        sizes = np.add(_lengths(keys), _lengths(values)) + int(more // max(1, here.num_rows))
        strict = bool((offsets[1:] > offsets[:-1]).all())
        records = list(records_of(here, repeat(topic), repeat(number)))
        yield RowGroup(topic, number, records, sizes.tolist(), strict, here)


def records_of(
    rows: pa.RecordBatch, topics: Iterable[str], partitions: Iterable[int]
) -> Iterator[Record]:
    """The records of these rows, each created when it is taken."""
    timestamps: Iterable[int] = repeat(NO_TIMESTAMP_MS)
    if "timestamp" in rows.schema.names:
        microseconds = rows.column("timestamp").cast(pa.int64())
        micros = pc.fill_null(microseconds, NO_TIMESTAMP_MS * 1000).to_numpy()
        timestamps = (micros // 1000).tolist()
    values = rows.column("value")
    # Only for structs: with this argument Arrow takes forty times as long.
    strict = {"maps_as_pydicts": "strict"} if pa.types.is_struct(values.type) else {}
    columns = zip(
        topics,
        partitions,
        rows.column("offset").to_numpy().tolist(),
        timestamps,
        rows.column("key").to_pylist(),
        values.to_pylist(**strict),
        _headers(rows),
        repeat(1),
        repeat(None),
        repeat(None),
    )
    return map(tuple.__new__, repeat(Record), columns)


def by_place(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, NDArray[np.int64]]]:
    """The rows of each partition in a batch, in their order."""
    if not batch.num_rows:
        return
    for name in PLACE:
        if batch.column(name).null_count:
            raise ConfigError(f"process: {name} is null in a row: filter such rows out first")
    topics = batch.column("topic").dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64) << 32
    codes |= batch.column("partition").to_numpy().astype(np.uint32)
    order = np.argsort(codes, kind="stable")
    starts = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), len(order)]
    for start, end in pairwise(starts):
        row = int(order[start])
        # Interned: rows are made per column, and topics that are one object compare fast.
        place = (sys.intern(topics[row].as_py()), batch.column("partition")[row].as_py())
        yield place, order[start:end]


def _lengths(column: pa.Array) -> Any:
    if pa.types.is_struct(column.type):  # a struct value: approximate
        return np.full(len(column), column.nbytes // max(1, len(column)))
    lengths = pc.binary_length(column)
    return (pc.fill_null(lengths, 0) if lengths.null_count else lengths).to_numpy()


def _headers(rows: pa.RecordBatch) -> Iterable[Headers]:
    if "headers" not in rows.schema.names:
        return repeat(())
    column = rows.column("headers")
    if column.null_count == len(column):
        return repeat(())
    return [
        tuple((one["key"] or "", one["value"]) for one in headers or () if one is not None)
        for headers in column.to_pylist()
    ]


class InOrder(NamedTuple):
    """A chunk without duplicates, and which of its rows are of each partition."""

    chunk: pa.RecordBatch
    places: list[tuple[TopicPartition, NDArray[np.int64]]]

    def records(self) -> Iterator[Record]:
        """The records in the chunk's order."""
        if len(self.places) == 1:
            (topic, number), _ = self.places[0]
            return records_of(self.chunk, repeat(topic), repeat(number))
        topics = np.empty(self.chunk.num_rows, object)
        for (topic, _), rows in self.places:
            topics[rows] = topic
        numbers = self.chunk.column("partition").to_numpy().tolist()
        return records_of(self.chunk, topics.tolist(), numbers)


class Intake:
    """Remembers the last offset of each partition, to detect duplicate rows."""

    def __init__(self) -> None:
        self._last: dict[TopicPartition, Record] = {}

    def in_order(self, chunk: pa.RecordBatch) -> InOrder | None:
        """The records of a chunk in its order; None if two rows name one record."""
        places = list(by_place(chunk))
        offsets = chunk.column("offset").to_numpy()
        for place, rows in places:
            here, last = offsets[rows], self._last.get(place)
            if (last is not None and here[0] <= last.offset) or (here[1:] <= here[:-1]).any():
                return None
        return InOrder(chunk, places)

    def passed(self, taken: InOrder, count: int) -> None:
        """This many records of the chunk are done."""
        for place, rows in taken.places:
            below = int(np.searchsorted(rows, count))
            if below:
                row = taken.chunk.slice(int(rows[below - 1]), 1)
                (self._last[place],) = records_of(row, [place[0]], [place[1]])

    def new_rows(self, group: RowGroup) -> RowGroup:
        """The group; ConfigError if two rows name one record: none is dropped silently."""
        where = (group.topic, group.partition)
        last = self._last.get(where)
        self._last[where] = group.records[-1]
        if group.strict and (last is None or group.records[0].offset > last.offset):
            return group
        for record in group.records:
            if last is not None and record.offset <= last.offset:
                raise ConfigError(
                    f"process: two rows are {record.topic}[{record.partition}]@{record.offset} and"
                    f" {'are equal' if record[:6] == last[:6] else 'differ'}: topic, partition and"
                    " offset must name one record: dropDuplicates"
                    '(["topic", "partition", "offset"]), or give each row a separate offset'
                )
            last = record
        return group
