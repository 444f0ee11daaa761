"""The columns of the rows to write, and their conversion to arguments of `produce`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from weft.errors import ConfigError
from weft.kafka.clib_rows import places_in, rows_in
from weft.spark.sink.options import SinkOptions

#: Column -> its allowed types; other columns are ignored, as in Spark's connector.
TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": ((BinaryType, StringType), "binary or string"),
    "value": ((BinaryType, StringType), "binary or string"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "headers": ((ArrayType,), "array<struct<key: string, value: binary>>"),
}
#: values of more bytes are hashed one by one
LONG_BYTES = 256
_FACTOR, _ALL, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(2**64 - 1), np.uint64(33)
_FINAL = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
#: librdkafka's value for "let the partitioner choose".
ANY_PARTITION = -1


class Rows(NamedTuple):
    """The columns of one Arrow batch to write."""

    topics: Sequence[str]
    values: list[bytes | None]
    keys: list[bytes | None]
    partitions: list[int] | None
    headers: list[Any] | None

    def calls(self) -> Iterator[tuple[Any, ...]]:
        """The arguments of `produce` for each row, by position."""
        start = (self.topics, self.values, self.keys)
        count = len(self.topics)
        if self.headers is None:
            more = [] if self.partitions is None else [self.partitions]
            return zip(*start, *more, strict=True)
        partitions = self.partitions or [ANY_PARTITION] * count
        no_call, now = [None] * count, [0] * count
        return zip(*start, partitions, no_call, no_call, now, self.headers, strict=True)


class Packed(NamedTuple):
    """Rows of keys and values for one topic, as librdkafka takes many at a time."""

    topic: str
    #: an array of `clib_rows.Row`, and the columns to whose memory it points
    rows: Any
    columns: Mapping[str, pa.Array]


def check_columns(schema: StructType, topic: str | None) -> None:
    """ConfigError if the rows cannot be written: no value, no topic, a column's type."""
    found = {field.name: field.dataType for field in schema.fields}
    if "value" not in found:
        raise ConfigError(
            "the sink needs a column value (binary or string), and may take key, topic, partition"
            f" and headers; the rows have {', '.join(found) or 'no columns'}:"
            " selectExpr(...) them under these names"
        )
    for name, (types, wanted) in TYPES.items():
        if name in found and not (
            isinstance(found[name], types) and (name != "headers" or are_headers(found[name]))
        ):
            raise ConfigError(
                f"the sink's column {name} is {found[name].simpleString()}, not {wanted}: cast it,"
                " for values of structs with to_json"
            )
    if topic is None and "topic" not in found:
        raise ConfigError("the sink has no topic: give option topic, or a column topic")


def are_headers(kind: DataType) -> bool:
    """Whether a column's type is that of headers."""
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType):
        return False
    names = [field.name for field in element.fields]
    types = [type(field.dataType) for field in element.fields]
    return names == ["key", "value"] and types == [StringType, BinaryType]


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Rows:
    """The columns of a batch as `produce` takes them; `topic` wins over the column."""
    names = set(batch.schema.names)
    count = batch.num_rows
    keys: list[bytes | None] = [None] * count
    if "key" in names:
        keys = _bytes(batch.column("key"))
    partitions = None
    if "partition" in names:
        column = pc.fill_null(batch.column("partition"), ANY_PARTITION)
        partitions = column.to_pylist()
        if count and pc.min(column).as_py() < ANY_PARTITION:
            raise ConfigError("a row's partition is below 0: null lets the key decide")
    headers = None
    if "headers" in names and (given := batch.column("headers")).null_count < len(given):
        headers = [
            None if pairs is None else [(one["key"] or "", one["value"]) for one in pairs if one]
            for pairs in given.to_pylist()
        ]
    if topic is None and batch.column("topic").null_count:
        raise ConfigError(
            "a row's topic is null: filter such rows out, or give option topic for all of them"
        )
    topics = [topic] * count if topic is not None else batch.column("topic").to_pylist()
    return Rows(topics, _bytes(batch.column("value")), keys, partitions, headers)


def packed_of(batch: pa.RecordBatch, options: SinkOptions) -> Packed | None:
    """The keys and values of a batch; None if each row needs a call."""
    names = set(batch.schema.names)
    if options.topic is None or not options.packs or names & {"partition", "headers"}:
        return None
    columns = {name: _binary(batch.column(name)) for name in names & {"key", "value"}}
    return Packed(options.topic, rows_in(columns, batch.num_rows), columns)


def hashes_of(column: pa.Array, seeds: Any) -> Any:
    """A hash of each value, of its bytes and its seed alone; uint64, like `seeds`. Not of none.

    Eight bytes at a time, for all rows that have as many: a multiplication and a shift each, and
    Murmur3's finalizer (Appleby, public domain). In zlib.crc32 a row of 100 bytes takes twice the
    processor time, most of it to begin. Where it is fast, above `LONG_BYTES`, it is used.
    """
    buffer, starts, sizes = places_in(_binary(column))
    count, long, first = len(starts), sizes > LONG_BYTES, starts[0]
    data = memoryview(buffer)[first : (starts + sizes).max()]
    starts -= first
    # Aligned words; a value's own are put together from two. One more may be read than there are.
    words = np.zeros(len(data) // 8 + 3, "<u8")
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    lengths = np.where(long, 0, (sizes + 7) // 8).astype(np.uint8)
    order = np.argsort(lengths, kind="stable")[::-1]  # the longest first
    at, size = starts[order], sizes[order].astype(np.int64)
    hashes = (seeds[order] + size.astype(np.uint64)) * _FACTOR
    down = ((at & 7) * 8).astype(np.uint64)
    up = 64 - down
    at >>= 3
    low = words[at]
    # How many rows have a word of this number, and a next one.
    having = count - np.searchsorted(lengths[order[::-1]], np.arange(lengths.max() + 1), "right")
    for number, (rows, more) in enumerate(pairwise(having.tolist())):
        at[:rows] += 1
        high = words[at[:rows]]
        word = low[:rows] >> down[:rows]
        word |= high << up[:rows]
        spare = ((number + 1) * 8 - size[more:rows]) * 8
        word[more:] &= _ALL >> spare.astype(np.uint64)
        word ^= hashes[:rows]
        word *= _FACTOR
        word ^= word >> _HALF
        hashes[:rows], low = word, high
    found = np.empty(count, np.uint64)
    found[order] = hashes
    for row in np.flatnonzero(long).tolist():
        found[row] ^= np.uint64(crc32(data[starts[row] : starts[row] + sizes[row]]))
    for factor in _FINAL:
        found ^= found >> _HALF
        found *= factor
    return found ^ (found >> _HALF)


def _bytes(column: pa.Array) -> list[bytes | None]:
    return list(_binary(column).to_pylist())


def _binary(column: pa.Array) -> pa.Array:
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    return column
