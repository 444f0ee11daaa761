"""The columns of the rows to write, and their conversion to arguments of `produce`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from perkey.errors import ConfigError
from perkey.kafka.clib_rows import places_in, rows_in
from perkey.spark.sink.options import SinkOptions

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
_BLOCK_ROWS = 16_384
_FACTOR, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(33)
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

    Multilinear: the sum of the value's 32-bit words times random numbers of 64 bits, modulo 2**64
    (Lemire and Kaser, "Strongly universal string hashing is fast", 2014), then `_mixed`. Arrow pads
    the values to equal sizes, so that all of a block are one matrix. In zlib.crc32 a row of 100
    bytes takes four times the processor time, most of it to begin. Where it is fast, above
    `LONG_BYTES`, it is used.
    """
    column, found = _binary(column), np.empty(len(column), np.uint64)
    for at in range(0, len(column), _BLOCK_ROWS):
        block = column.slice(at, _BLOCK_ROWS)
        sizes = places_in(block)[2].astype(np.int64)
        is_large = pa.types.is_large_binary(block.type)
        buffers, blank = block.buffers(), sizes > LONG_BYTES
        # The same bytes under a type that Arrow pads; it does not read them as text.
        text = pa.large_string() if is_large else pa.string()
        view = pa.Array.from_buffers(text, len(block), buffers, block.null_count, block.offset)
        if block.null_count:
            nulls = block.is_null().to_numpy(zero_copy_only=False)
            sizes[nulls], blank = -1, blank | nulls
        if blank.any():
            view = pc.if_else(pa.array(~blank), view, "")
        words = -(-int(np.where(blank, 0, sizes).max()) // 4)
        hashes = seeds[at : at + _BLOCK_ROWS] + sizes.astype(np.uint64) * _FACTOR
        if words:
            padded = pc.ascii_rpad(view, words * 4, "\0").buffers()[2]
            matrix = np.frombuffer(padded, "<u4", len(block) * words).reshape(-1, words)
            hashes += np.einsum("ij,j->i", matrix, _WEIGHTS[:words], casting="unsafe")
        for row in np.flatnonzero(sizes > LONG_BYTES).tolist():
            hashes[row] += np.uint64(crc32(block[row].as_buffer()))
        found[at : at + len(block)] = _mixed(hashes)
    return found


def _mixed(numbers: Any) -> Any:
    """Murmur3's finalizer (Appleby, public domain), of many numbers."""
    for factor in _FINAL:
        numbers = (numbers ^ (numbers >> _HALF)) * factor
    return numbers ^ (numbers >> _HALF)


def _bytes(column: pa.Array) -> list[bytes | None]:
    return list(_binary(column).to_pylist())


def _binary(column: pa.Array) -> pa.Array:
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    return column


#: one for each word of a value; random, and the same in every version
_WEIGHTS = _mixed(np.arange(1, LONG_BYTES // 4 + 1, dtype=np.uint64) * _FACTOR)
