"""What comes after `process`: several tables from one run of the handler, and failed rows again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it

from weft.errors import ConfigError
from weft.spark.processing.operator import process
from weft.spark.processing.settings import name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD = ("topic", "partition", "offset")
LANE = ("topic", "partition", "key")
#: What a table of failed rows must have to be handled again.
NEEDED = (*LANE, "offset", "status", "value")


def once(write: Callable[[DataFrame, int], Any]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` whose `write(rows, batch_id)` may use the rows many times.

        results.writeStream.foreachBatch(once(write)).start()

    The handler runs once for each try of a batch: its rows are kept on the executors before
    `write` is called. Rows that are lost with an executor end that try instead of calling the
    handler again behind your back; Spark then repeats the batch.
    """

    def write_kept(rows: DataFrame, batch_id: int) -> None:
        write(rows.localCheckpoint(eager=True), batch_id)

    return write_kept


def replay(
    dead: DataFrame, handler: Callable[..., Any], results: DataFrame | None = None, **options: Any
) -> DataFrame:
    """Handle failed rows again, each key's in the order of their offsets; batch only.

    `dead`: rows of `process(..., carry="failed")` (or "all"); of those with status "failed" each
    record is handled once, however often it failed. `results`: all rows so far, if they are kept;
    records that are done there are left out, so a replay can be repeated.
    `options`: those of `process`.

    The result: the rows of `process` and `overtaken_by long`: the highest offset of the same key
    that was done before this replay although it came later, null where there is none. Without
    `results` nothing is known of that and it is always null.
    Raises ConfigError for a stream and for missing columns.
    """
    where = f"replay({name_of(handler)})"
    for given in (dead, *([] if results is None else [results])):
        if given.isStreaming:
            raise ConfigError(f"{where}: a stream has no end to replay: read the table as a batch")
    missing = [name for name in NEEDED if name not in dead.columns]
    if missing:
        raise ConfigError(
            f"{where}: the failed rows have no column {' and no column '.join(missing)}: write "
            'them from process(..., carry="failed")'
        )
    again = dead.where("status = 'failed'").dropDuplicates(list(RECORD))
    if results is None:
        handled = process(again, handler, **options)
        return handled.withColumn("overtaken_by", F.lit(None).cast("long"))
    done = results.where("status = 'done'")
    again = again.join(done.select(*RECORD), list(RECORD), "left_anti")
    return _with_overtakers(process(again, handler, **options), done)


def _with_overtakers(handled: DataFrame, done: DataFrame) -> DataFrame:
    """The rows with the highest offset of their lane that was done already."""
    names = handled.columns
    last = done.groupBy(*LANE).agg(F.max("offset").alias("overtaken_by"))
    joined = handled.join(last, list(LANE), "left")
    later = F.when(F.col("overtaken_by") > F.col("offset"), F.col("overtaken_by"))
    return joined.withColumn("overtaken_by", later).select(*names, "overtaken_by")
