"""`process`: the handler as a step of a DataFrame, and what comes after it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it
from pyspark.sql.types import StructType

from perkey.app import app_of
from perkey.errors import ConfigError
from perkey.policies import OnExhausted, Retry
from perkey.spark.processing.columns import (
    OWN,
    RESULTS,
    TOOK_SCHEMA,
    checked_schema,
    hash_column,
    input_columns,
    lane_columns,
    observed_rows,
    other_columns,
    result_schema,
    results_column,
)
from perkey.spark.processing.intake import PLACE
from perkey.spark.processing.payload import packed
from perkey.spark.processing.settings import (
    UNSET,
    LeftOut,
    TaskSettings,
    check_arguments,
    handler_options,
    lifespan_of,
    name_of,
    where_of,
)
from perkey.spark.processing.stretches import HASH, pinned
from perkey.spark.processing.typed import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

#: most cores that can be counted through Spark Connect
CORES_MAX = 100_000


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
    carry: str | Sequence[str] | None = None,
    progress: str | None = None,
    deadline_s: float | None = None,
    schema: Any = None,
    metrics: str | Observation | None = None,
) -> DataFrame:
    """Call the handler for every record of a DataFrame; one row for each in the result.

    `df`: batch or streaming, with the columns topic, partition, offset, key, value (and optionally
    timestamp and headers). With `value=Model` (pydantic) the value may be a struct column, or the
    model's fields may be separate columns: then no JSON is involved. Other options are as in
    `@app.consume`; omitted ones are taken from the decorator. `concurrency` applies to one slot.
    `slots`: tasks over which the lanes are spread; None is one per core of Spark. `carry`: "failed"
    or "all" adds value, timestamp, headers and story to those rows, for a table of dead letters
    that `replay` can read; "*", or a list of names, adds the DataFrame's other columns to all rows,
    unchanged.

    `progress`: a folder (a path or URI that this process and all executors reach) where tasks keep
    their finished rows: the same job with the same folder resumes where another one ended, and
    returns all rows. For a stream: where rows wait that were not finished by the deadline.

    `deadline_s`: for a stream: so long after a task of a micro-batch has started, no call starts in
    it; unfinished rows wait for the next batch, in order. Running calls are awaited.

    `schema`: adds results, an array of the outputs' values of a record that is done, parsed as JSON
    with these fields (a DDL text, a StructType or a pydantic model); a value that does not fit ends
    the job.

    `metrics`: observes done, failed, attempts, p50_ms and p99_ms (of the calls, sampled) under this
    name, which a streaming query shows in its progress as observedMetrics; an Observation has them
    after a batch.
    The result: topic, partition, offset, key, status ("done", "failed"), attempts, error, outputs.
    It is lazy like every DataFrame: two actions on it call the handler twice.
    Raises ConfigError, before any job starts, for what can be checked here.
    """
    given = {
        "ordering": ordering, "concurrency": concurrency, "retry": retry,
        "timeout_s": timeout_s, "on_exhausted": on_exhausted, "value": value,
    }  # fmt: skip
    options, where = handler_options(handler, given), where_of(handler)
    streaming = getattr(df, "isStreaming", False)
    check_arguments(
        where, streaming=streaming, slots=slots, carry=carry, progress=progress,
        deadline_s=deadline_s, metrics=metrics,
    )  # fmt: skip
    fields = None if schema is None else checked_schema(where, schema)
    columns = input_columns(df, options.value, where)
    others = other_columns(df, carry, where, OWN if fields is None else OWN | {RESULTS})
    more = (F.col(quoted(called)).alias(name) for name, called in others.items())
    records = df.select(*columns, *more)
    if progress is not None and not streaming:
        others[HASH] = HASH
        records = records.withColumn(HASH, hash_column(records))
    settings = TaskSettings(
        options,
        lifespan_of(handler, lifespan),
        app_of(handler),
        sort=streaming,
        carry=carry if carry in ("failed", "all") else None,
        others=others,
        progress=progress,
        deadline_s=deadline_s,
        timed=metrics is not None,
        typed=isinstance(records.schema["value"].dataType, StructType),
    )
    rows = _handled(records, settings, slots)
    rows = rows if metrics is None else observed_rows(rows, metrics)
    return rows if fields is None else rows.withColumn(RESULTS, results_column(fields))


def _handled(records: DataFrame, settings: TaskSettings, slots: int | None) -> DataFrame:
    """The rows of the tasks; a repeated job has the same number of tasks as the first."""
    options, spark = settings.options, records.sparkSession
    check_workers(spark)
    row_schema = result_schema(settings, records.schema)
    if settings.progress is None:
        count = slots or default_slots(spark)
    else:
        job = {"ordering": options.ordering, "columns": row_schema}
        count = pinned(settings.progress, slots, lambda: default_slots(spark), job)
    run = task_function(packed(settings), name_of(options.function))
    if settings.timed:
        row_schema += TOOK_SCHEMA
    lanes = records.repartition(count, *lane_columns(options.ordering))
    if not settings.sort:
        lanes = lanes.sortWithinPartitions("offset")  # spills to disk if it does not fit
    return lanes.mapInArrow(run, row_schema)


def task_function(payload: bytes, name: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What Spark calls in each task; `name` is its name in the plan and in Spark's UI.

    It is shipped by value and imports Perkey lazily: an executor without Perkey must be able to
    report that.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            from perkey.spark.processing.task import run_task
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{sys.executable} on an executor has no module {error.name}: install "
                "perkey[spark] there (its image, PYSPARK_PYTHON, or the Connect server's "
                "environment)"
            ) from None
        return run_task(payload, batches)

    run.__name__ = name
    return run


_LOOKED_AT: set[str] = set()


def check_workers(spark: SparkSession) -> None:
    """ConfigError if the workers use another Python than this one, without Perkey.

    Checked by a separate task, which does not fail: a failing one is retried, with `local[2,1000]`
    a thousand times.
    """
    try:
        context = spark.sparkContext
    except (AttributeError, PySparkException):
        _check_workers_of_server(spark)
        return
    python = context.pythonExec
    if python == sys.executable or python in _LOOKED_AT:
        return

    def lacks(_: Iterable[int]) -> list[bool]:
        from importlib.util import find_spec

        return [find_spec("perkey") is None]

    if any(context.parallelize([0], 1).mapPartitions(lacks).collect()):
        raise ConfigError(
            f"process: {python}, the Python of this Spark's workers, has no module perkey: install"
            " perkey[spark] there, or set PYSPARK_PYTHON to one that has it"
        )
    _LOOKED_AT.add(python)


def _check_workers_of_server(spark: SparkSession) -> None:
    """The same through Spark Connect, where a query has to check; once per session."""
    session = str(getattr(spark, "session_id", ""))
    if session in _LOOKED_AT:
        return

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        import sys
        from importlib.util import find_spec

        import pyarrow as pa

        for _ in batches:  # otherwise the socket stays full of it
            pass
        without = sys.executable if find_spec("perkey") is None else ""
        yield pa.RecordBatch.from_pydict({"without": [without]})

    for row in spark.range(0, 1, 1, 1).mapInArrow(look, "without string").collect():
        if row.without:
            raise ConfigError(
                f"process: {row.without}, the Python of this Connect server's workers, has no"
                " module perkey: install perkey[spark] in the server's environment"
            )
    _LOOKED_AT.add(session)


def default_slots(spark: SparkSession) -> int:
    """One per core."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except (AttributeError, PySparkException):
        # Spark Connect does not report it: a range has one partition per core. A small job per
        # call of `process`.
        pieces = spark.range(CORES_MAX).select(F.spark_partition_id().alias("piece"))
        return max(1, pieces.distinct().count())


# -- after process ---------------------------------------------------------------------------------
# Several tables from one run of the handler, and replays of failed rows.

LANE = ["topic", "partition", "key"]
#: Required columns of a table of failed rows.
FAILED_ROW = (*LANE, "offset", "status", "value")


def once(write: Callable[[DataFrame, int], Any]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` whose `write(rows, batch_id)` may use the rows many times.

            results.writeStream.foreachBatch(once(write)).start()

    The handler runs once per try of a batch: its rows are persisted on the executors before `write`
    is called. Rows that are lost with an executor end that try instead of silently calling the
    handler again; Spark then repeats the batch.
    """

    def write_kept(rows: DataFrame, batch_id: int) -> None:
        write(rows.localCheckpoint(eager=True), batch_id)

    return write_kept


def replay(
    dead: DataFrame, handler: Callable[..., Any], results: DataFrame | None = None, **options: Any
) -> DataFrame:
    """Handle failed rows again, each key's in offset order; batch only.

    `dead`: rows of `process(..., carry="failed")` (or "all"); of those with status "failed" each
    record is handled once, however often it failed. `results`: all rows so far, if they are kept;
    records that are done there are left out, so a replay can be repeated.
    `options`: those of `process`.

    The result: the rows of `process` and `overtaken_by long`: the highest offset of the same key
    that was done before this replay although it came later; null if there is none, and always
    null without `results`.
    Raises ConfigError for a stream and for missing columns.
    """
    where = f"replay({name_of(handler)})"
    for given in (dead, results):
        if given is not None and given.isStreaming:
            raise ConfigError(f"{where}: a stream has no end to replay: read the table as a batch")
    missing = [name for name in FAILED_ROW if name not in dead.columns]
    if missing:
        raise ConfigError(
            f"{where}: the failed rows have no column {' and no column '.join(missing)}: write "
            'them from process(..., carry="failed")'
        )
    again = dead.where("status = 'failed'").dropDuplicates(PLACE)
    if results is None:
        handled = process(again, handler, **options)
        return handled.withColumn("overtaken_by", F.lit(None).cast("long"))
    done = results.where("status = 'done'")
    again = again.join(done.select(*PLACE), PLACE, "left_anti")
    handled = process(again, handler, **options)
    last = done.groupBy(*LANE).agg(F.max("offset").alias("overtaken_by"))
    joined = handled.join(last, LANE, "left")
    later = F.when(F.col("overtaken_by") > F.col("offset"), F.col("overtaken_by"))
    return joined.withColumn("overtaken_by", later).select(*handled.columns, "overtaken_by")
