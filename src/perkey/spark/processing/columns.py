"""The columns that `process` reads from a DataFrame and returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
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

from perkey.errors import ConfigError
from perkey.runtime.histogram import Latency
from perkey.spark.processing.intake import OTHER
from perkey.spark.processing.settings import TaskSettings
from perkey.spark.processing.stretches import HASH
from perkey.spark.processing.typed import columns_of_model, ddl, is_model, quoted, typed_value
from perkey.spark.sink.columns import are_headers

#: (a column's types, their names, the type that the task gets)
Wanted = tuple[tuple[type[DataType], ...], str, str]
#: Required columns.
NEEDED: dict[str, Wanted] = {
    "topic": ((StringType,), "string", "string"),
    "partition": ((IntegralType,), "int", "int"),
    "offset": ((IntegralType,), "long", "long"),
    "key": ((BinaryType, StringType), "binary or string", "binary"),
    "value": ((BinaryType, StringType), "binary or string", "binary"),
}
#: Optional columns that become part of the record.
OPTIONAL: dict[str, Wanted] = {
    "timestamp": ((TimestampType, TimestampNTZType), "timestamp", "timestamp"),
    "headers": ((ArrayType,), "array<struct<key: string, value: binary>>", ""),
}

_HEADERS = OPTIONAL["headers"][1]
#: The result, one row for each record.
SPARK_SCHEMA = (
    "topic string, partition int, offset long, key binary, status string, attempts int,"
    " error string, outputs array<struct<topic: string, key: binary, value: binary,"
    f" headers: {_HEADERS}>>"
)
#: Columns of the result that come from the record.
RECORD_ROW = frozenset({"topic", "partition", "offset", "key"})
#: Columns that `carry="failed"` and `"all"` add after the value.
CARRIED_SCHEMA = (
    f", timestamp timestamp, headers {_HEADERS}, story array<struct<at: timestamp, what: string>>"
)
_HEADER = pa.struct({"key": pa.string(), "value": pa.binary()})
HEADERS = pa.list_(pa.field("element", _HEADER))
OUTPUT = pa.struct(
    {"topic": pa.string(), "key": pa.binary(), "value": pa.binary(), "headers": HEADERS}
)
#: The same for Arrow.
ARROW_SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "key": pa.binary(),
        "status": pa.string(),
        "attempts": pa.int32(),
        "error": pa.string(),
        "outputs": pa.list_(pa.field("element", OUTPUT)),
    }
)

MICROSECONDS = pa.timestamp("us", tz="UTC")
STORY = pa.list_(pa.field("element", pa.struct({"at": MICROSECONDS, "what": pa.string()})))
CARRIED = pa.schema({"timestamp": MICROSECONDS, "headers": HEADERS, "story": STORY})


# -- call times ------------------------------------------------------------------------------------
# Call durations: counted by each task in narrow buckets, merged by Spark as it sees rows.
#
# Observed metrics are sums over rows. So a task with counted calls ends with extra rows, one per
# non-empty bucket, which `process` removes after the observation.

#: Upper bounds in seconds: eight per doubling, from 10 µs to an hour and a half, so that the middle
#: of a bucket is within 5 % of every value in it.
BOUNDS = tuple(1e-5 * 2 ** (step / 8) for step in range(29 * 8 + 1))

#: Extra columns of the rows; null in rows of records.
TOOK_MS, CALLS = f"{OTHER}took_ms", f"{OTHER}calls"  # no name of a carried column
TOOK_SCHEMA = f", {TOOK_MS} double, {CALLS} long"
TOOK = pa.schema({TOOK_MS: pa.float64(), CALLS: pa.int64()})


def with_call_times(
    batches: Iterable[pa.RecordBatch], latency: Latency
) -> Iterator[pa.RecordBatch]:
    """The batches with the two extra columns, followed by the durations counted meanwhile."""
    schema = None
    for batch in batches:
        schema = pa.schema([*batch.schema, *TOOK])
        nulls = [pa.nulls(batch.num_rows, field.type) for field in TOOK]
        yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=schema)
        latency.fold()
    if schema is not None:
        found = [(at, count) for at, count in enumerate(latency.buckets()["counts"]) if count]
        # The middle of a bucket; for the two open ones their bound.
        bounds = [(BOUNDS[max(0, at - 1)], BOUNDS[min(at, len(BOUNDS) - 1)]) for at, _ in found]
        took_ms = [round(sqrt(lower * upper) * 1e3, 4) for lower, upper in bounds]
        columns = {
            TOOK_MS: pa.array(took_ms, pa.float64()),
            CALLS: pa.array([count for _, count in found], pa.int64()),
        }
        arrays = [columns.get(f.name, pa.nulls(len(found), f.type)) for f in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def observed_rows(rows: DataFrame, metrics: str | Observation) -> DataFrame:
    """The records' rows, observed; rows that only count calls are removed after it."""
    status = F.col("status")
    counted = rows.observe(
        metrics,
        F.count_if(status == "done").alias("done"),
        F.count_if(status == "failed").alias("failed"),
        F.coalesce(F.sum("attempts"), F.lit(0)).alias("attempts"),
        F.percentile(TOOK_MS, 0.5, F.col(CALLS)).alias("p50_ms"),
        F.percentile(TOOK_MS, 0.99, F.col(CALLS)).alias("p99_ms"),
    )
    return counted.where(F.col(CALLS).isNull()).drop(TOOK_MS, CALLS)


# -- in and out ------------------------------------------------------------------------------------


def result_schema(settings: TaskSettings, records: StructType) -> str:
    """The columns of a task's rows, as a Spark schema; `records`: of its input."""
    schema = SPARK_SCHEMA
    if settings.carry is not None:
        schema += f", value {ddl(records['value'].dataType)}{CARRIED_SCHEMA}"
    for name, called in settings.others.items():
        if name != HASH:  # for the task only
            schema += f", {quoted(called)} {ddl(records[name].dataType)}"
    return schema


#: Columns of every row, so a carried column cannot have their names. Spark ignores their case.
OWN = frozenset(field.name for field in ARROW_SCHEMA)
#: The column that `schema=` adds.
RESULTS = "results"


def other_columns(df: DataFrame, carry: object, where: str, own: frozenset[str]) -> dict[str, str]:
    """Columns that all rows carry: their names in the task -> their names in the DataFrame.

    `own`: names that the rows have already.
    """
    if carry == "*":
        names = [name for name in df.columns if name not in RECORD_ROW]
    elif isinstance(carry, list | tuple):
        names = list(carry)
    else:
        return {}
    for name in names:
        if name.lower() in own:
            raise ConfigError(
                f"{where}: carry: the rows have their own column {name.lower()}: rename the"
                " DataFrame's, or leave it out of carry=[…]"
            )
        if df.columns.count(name) != 1 or names.count(name) != 1:
            what = "two columns" if name in df.columns else "no column"
            raise ConfigError(
                f"{where}: carry: the DataFrame has {what} {name}: it has {', '.join(df.columns)}"
            )
    return {f"{OTHER}{number}": name for number, name in enumerate(names)}


def checked_schema(where: str, schema: object) -> StructType | str:
    """The schema of outputs; ConfigError for an invalid one."""
    if is_model(schema):
        return columns_of_model(schema)
    if isinstance(schema, StructType) or (isinstance(schema, str) and schema.strip()):
        return schema
    raise ConfigError(
        f"{where}: schema={schema!r}: give the fields of the outputs' values,"
        ' such as "ride long, cost double", a StructType or a pydantic model'
    )


def results_column(fields: StructType | str) -> Column:
    """The outputs' values with these fields; null if the record is not done."""

    def read(output: Column) -> Column:
        text = output.getField("value").cast("string")
        return F.from_json(text, fields, {"mode": "FAILFAST"})

    return F.when(F.col("status") == "done", F.transform("outputs", read))


def input_columns(df: DataFrame, kind: Any, where: str) -> list[Column]:
    """The columns a task needs, cast; raises ConfigError that names missing or wrong ones.

    `kind` is the option `value=`.
    """
    if not isinstance(df, DataFrame):
        raise ConfigError(
            f"{where}: the first argument is {type(df).__name__}, not a DataFrame: pass what "
            'spark.read or spark.readStream with format("perkey") loaded'
        )
    names, typed = df.columns, typed_value(df.schema, kind, where)
    needed = {n: what for n, what in NEEDED.items() if n != "value" or typed is None}
    missing = [name for name in needed if name not in names]
    if missing:
        raise ConfigError(
            f"{where}: the DataFrame has no column {' and no column '.join(missing)}: it needs "
            f"{', '.join(NEEDED)}, as Kafka sources give them"
        )
    wanted = {**needed, **{name: what for name, what in OPTIONAL.items() if name in names}}
    columns = []
    for name, (types, called, cast_to) in wanted.items():
        found = [field.dataType for field in df.schema.fields if field.name == name]
        if len(found) > 1:
            raise ConfigError(f"{where}: two columns are named {name}: drop or rename one")
        if not isinstance(found[0], types) or (name == "headers" and not are_headers(found[0])):
            raise ConfigError(
                f"{where}: column {name} is {found[0].simpleString()}, not {called}: cast or "
                "rename it"
            )
        column = F.col(f"`{name}`")
        columns.append(column.cast(cast_to).alias(name) if cast_to else column)
    return columns if typed is None else [*columns, typed]


def hash_column(records: DataFrame) -> Column:
    """A hash that distinguishes a record from another one at its place."""
    value = F.col("value")
    if "map<" in records.schema["value"].dataType.simpleString():  # Spark hashes no maps
        value = F.to_json(value)
    return F.xxhash64(F.col("key"), value)


def lane_columns(ordering: str) -> list[Column]:
    """The columns that define the lanes: equal for all records of one lane."""
    place = [F.col("topic"), F.col("partition")]
    if ordering == "partition":
        return place
    if ordering == "unordered":
        return [*place, F.col("offset")]
    # A null key orders with nothing: its record is a separate lane.
    return [*place, F.col("key"), F.when(F.col("key").isNull(), F.col("offset"))]
