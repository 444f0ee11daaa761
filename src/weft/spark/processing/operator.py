"""`process`: the handler as a step of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from weft.app import app_of
from weft.policies import OnExhausted, Retry
from weft.spark.processing.columns import SPARK_SCHEMA, input_columns, lane_columns
from weft.spark.processing.payload import packed
from weft.spark.processing.settings import (
    UNSET,
    LeftOut,
    TaskSettings,
    checked_slots,
    handler_options,
    lifespan_of,
    name_of,
)
from weft.spark.processing.task import run_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def process(
    df: DataFrame,
    handler: Callable[..., Any],
    *,
    ordering: str | LeftOut = UNSET,
    concurrency: int | LeftOut = UNSET,
    retry: Retry | LeftOut = UNSET,
    timeout_s: float | LeftOut | None = UNSET,
    on_exhausted: OnExhausted | LeftOut = UNSET,
    value: Any = UNSET,
    slots: int | None = None,
    lifespan: Callable[..., Any] | None = None,
) -> DataFrame:
    """Call the handler for every record of a DataFrame; one row for each in the result.

    `df`: batch or streaming, with the columns topic, partition, offset, key, value (and timestamp
    and headers where they are there). The options are those of `@app.consume`; what is left out is
    as decorated, else as there by default. `concurrency` is that of one slot.
    `slots`: tasks over which the lanes are spread; None is one for each core Spark has.

    The result: topic, partition, offset, key, status ("done" or "failed"), attempts, error and
    outputs.
    It is lazy like every DataFrame: two actions on it call the handler twice.
    Raises ConfigError, before any job starts, for what can be seen here.
    """
    given = {
        "ordering": ordering,
        "concurrency": concurrency,
        "retry": retry,
        "timeout_s": timeout_s,
        "on_exhausted": on_exhausted,
        "value": value,
    }
    options = handler_options(handler, given)
    checked_slots(handler, slots)
    columns = input_columns(df, f"process({name_of(handler)})")
    settings = TaskSettings(
        options, lifespan_of(handler, lifespan), app_of(handler), sort=df.isStreaming
    )
    payload = packed(settings)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(payload, batches)

    lanes = df.select(*columns).repartition(
        slots or default_slots(df.sparkSession), *lane_columns(options.ordering)
    )
    if not df.isStreaming:
        lanes = lanes.sortWithinPartitions("offset")  # spills to disk where it does not fit
    return lanes.mapInArrow(run, SPARK_SCHEMA)


def default_slots(spark: SparkSession) -> int:
    """One for each core; where the session cannot say (Spark Connect), the shuffle's partitions."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except (AttributeError, PySparkException):
        return int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)
