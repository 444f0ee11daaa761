"""The writers that Spark calls, for batches and for streams."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from perkey.errors import ConfigError
from perkey.spark.sink.columns import check_columns
from perkey.spark.sink.options import SinkOptions, check_producer, sink_options
from perkey.spark.sink.plain import write_rows
from perkey.spark.sink.protocol import SinkError, Task
from perkey.spark.sink.protocol import Written as Done
from perkey.spark.sink.transactions import finish_batch, write_transaction
from perkey.spark.source.worker import BATCH_ID, QUERY_ID, one_line_errors, settle_in

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamBase

    GIVES_ARROW = True
except ImportError:  # before PySpark 4.1 a streaming writer gets rows
    from pyspark.sql.datasource import (  # type: ignore[assignment]  # the base of the other
        DataSourceStreamWriter as _StreamBase,
    )

    GIVES_ARROW = False

#: rows per batch
BATCH_ROWS = 10_000
#: Spark's name for the query run of a task
RUN_ID = "spark.jobGroup.id"
#: length of a run's id in the marker
SESSION_CHARS = 13


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    rows: int
    #: for a transaction in a stream: the query's id in Kafka, and the data to finish the batch
    query: str = ""
    done: Done | None = None


def checked_options(raw: Mapping[str, str], schema: StructType) -> SinkOptions:
    """The options for these rows; ConfigError for what can be checked before a task runs."""
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
        #: Created on the driver: every attempt of a task writes under the same id.
        self._id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        settle_in()
        with one_line_errors():
            if not self._options.transactional:
                return Written(write_rows(iterator, self._options))
            query = f"{self._options.id_prefix}-{self._id}"
            task = Task(_context().partitionId(), 0, None)
            return Written(write_transaction(iterator, self._options, query, task).rows)


class StreamWriter(_StreamBase):
    """One micro-batch of a query; Spark creates a new one for each."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        #: the schema for rows; None if Spark passes batches
        self._schema = None if GIVES_ARROW else to_arrow_schema(schema)
        #: used if Spark does not name the run: then each batch counts as one
        self._session = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task."""
        settle_in()
        if self._schema is not None:
            iterator = batches_of(iterator, self._schema)
        with one_line_errors():
            if not self._options.transactional:
                return Written(write_rows(iterator, self._options))
            context = _context()
            query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
            if query is None or batch is None:
                raise SinkError("Spark does not report the query and batch of this task")
            session = context.getLocalProperty(RUN_ID) or self._session
            task = Task(context.partitionId(), int(batch), session[:SESSION_CHARS])
            name = f"{self._options.id_prefix}-{query}"
            done = write_transaction(iterator, self._options, name, task)
            return Written(done.rows, name, done)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """On the driver, after all tasks."""
        done = [m for m in messages if isinstance(m, Written) and m.done is not None]
        if done:
            with one_line_errors():
                tasks = [message.done for message in done if message.done is not None]
                finish_batch(self._options, done[0].query, batchId, tasks)


def batches_of(rows: Iterator[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Spark's rows as Arrow batches."""
    while some := list(islice(rows, BATCH_ROWS)):
        columns = zip(*some, strict=True)
        arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark runs writers in tasks"
    return context
