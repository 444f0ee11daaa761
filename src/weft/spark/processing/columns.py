"""What `process` reads from a DataFrame and what it gives back, column by column."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from weft.errors import ConfigError

#: Needed column -> (types it may have, what to call them, what the task gets).
NEEDED: dict[str, tuple[tuple[type[DataType], ...], str, str]] = {
    "topic": ((StringType,), "string", "string"),
    "partition": ((IntegralType,), "int", "int"),
    "offset": ((IntegralType,), "long", "long"),
    "key": ((BinaryType, StringType), "binary or string", "binary"),
    "value": ((BinaryType, StringType), "binary or string", "binary"),
}
#: The same for columns that become part of the record where they are there.
OPTIONAL: dict[str, tuple[tuple[type[DataType], ...], str, str]] = {
    "timestamp": ((TimestampType, TimestampNTZType), "timestamp", "timestamp"),
    "headers": ((ArrayType,), "array<struct<key: string, value: binary>>", ""),
}

_HEADERS = "array<struct<key: string, value: binary>>"
#: The result, one row for each record.
SPARK_SCHEMA = (
    "topic string, partition int, offset long, key binary, status string, attempts int,"
    " error string, outputs array<struct<topic: string, key: binary, value: binary,"
    f" headers: {_HEADERS}>>"
)
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))
OUTPUT = pa.struct(
    [
        pa.field("topic", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
#: The same for Arrow.
ARROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("status", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("error", pa.string()),
        pa.field("outputs", pa.list_(pa.field("element", OUTPUT))),
    ]
)


def input_columns(df: DataFrame, where: str) -> list[Column]:
    """The columns a task needs, cast; raises ConfigError that names what is missing or wrong."""
    if not isinstance(df, DataFrame):
        raise ConfigError(
            f"{where}: the first argument is {type(df).__name__}, not a DataFrame: pass what "
            'spark.read or spark.readStream with format("weft") loaded'
        )
    names = df.columns
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise ConfigError(
            f"{where}: the DataFrame has no column {' and no column '.join(missing)}: it needs "
            f"{', '.join(NEEDED)}, as Kafka sources give them"
        )
    wanted = {**NEEDED, **{name: kind for name, kind in OPTIONAL.items() if name in names}}
    return [_column(df.schema, name, *kind, where) for name, kind in wanted.items()]


def _column(
    schema: StructType,
    name: str,
    types: tuple[type[DataType], ...],
    wanted: str,
    cast_to: str,
    where: str,
) -> Column:
    found = [field.dataType for field in schema.fields if field.name == name]
    if len(found) > 1:
        raise ConfigError(f"{where}: two columns are named {name}: drop or rename one")
    if not isinstance(found[0], types) or (name == "headers" and not _are_headers(found[0])):
        raise ConfigError(
            f"{where}: column {name} is {found[0].simpleString()}, not {wanted}: cast or rename it"
        )
    column = F.col(f"`{name}`")
    return column.cast(cast_to).alias(name) if cast_to else column


def _are_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType):
        return False
    return [(f.name, f.dataType) for f in element.fields] == [
        ("key", StringType()),
        ("value", BinaryType()),
    ]


def lane_columns(ordering: str) -> list[Column]:
    """What decides where a record is handled: all of one lane have the same values here."""
    place = [F.col("topic"), F.col("partition")]
    if ordering == "partition":
        return place
    if ordering == "unordered":
        return [*place, F.col("offset")]
    # A null key orders with nothing: its record is a lane of its own.
    return [*place, F.col("key"), F.when(F.col("key").isNull(), F.col("offset"))]
