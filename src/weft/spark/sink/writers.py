"""The writers that Spark calls, for batches and for streams."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from weft.errors import ConfigError
from weft.spark.sink.columns import check_columns
from weft.spark.sink.options import SinkOptions, check_producer, sink_options
from weft.spark.sink.plain import SinkError, write_rows
from weft.spark.sink.transactions import Place, write_transaction
from weft.spark.source.errors import one_line_errors
from weft.spark.source.worker import settle_in

#: Spark's names for what a task of a stream belongs to.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    rows: int
    #: False where the batch was in Kafka already
    new: bool = True


def checked_options(raw: Mapping[str, str], schema: StructType) -> SinkOptions:
    """The options, for these rows; ConfigError for what can be seen before a task runs."""
    options = sink_options(raw)
    check_columns(schema, options.topic)
    check_producer(options)
    return options


def refuse_overwrite(*, overwrite: bool) -> None:
    """ConfigError for a batch; a stream in output mode complete writes all its rows each time."""
    if overwrite:
        raise ConfigError('a topic cannot be overwritten: write with mode("append")')


class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        #: Made on the driver: every attempt of a task writes under the same id.
        self._id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        return _written(iterator, self._options, self._id, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of a query; Spark makes a new one for each."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        if not self._options.transactional:
            return _written(iterator, self._options, "", 0)
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            with one_line_errors():
                raise SinkError("Spark does not say which query and batch this task belongs to")
        return _written(iterator, self._options, query, int(batch))


def _written(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, query: str, batch: int
) -> Written:
    settle_in()
    with one_line_errors():
        if not options.transactional:
            return Written(write_rows(batches, options))
        place = Place(f"{options.id_prefix}-{query}-{_context().partitionId()}", batch)
        return Written(*write_transaction(batches, options, place))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark runs writers in tasks"
    return context
