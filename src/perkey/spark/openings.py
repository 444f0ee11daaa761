"""Readers and writers of the format `perkey`, from Spark's options."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from perkey.errors import ConfigError
from perkey.spark.requirements import check_spark
from perkey.spark.sink.plain import check_brokers, check_topic
from perkey.spark.sink.writers import BatchWriter, StreamWriter, checked_options, refuse_overwrite
from perkey.spark.source.arrow import spark_schema
from perkey.spark.source.batch import BatchReader
from perkey.spark.source.fetch import FetchSettings, check_consumer
from perkey.spark.source.options import (
    BATCH_GROUP_PREFIX,
    STREAM_GROUP_PREFIX,
    SourceOptions,
    source_options,
)
from perkey.spark.source.stream import RefusedStream, StreamReader
from perkey.spark.source.worker import one_line_errors

#: The options that bound a micro-batch, and the behaviour before PySpark 4.2.
BOUNDS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
UNBOUNDED = (
    "before it Spark does not let a Python source bound its batches; without the option a batch is"
    " all there is, which maxRecordsPerPartition cuts into tasks"
)


def schema_of(raw: Mapping[str, str]) -> StructType:
    """The columns; also the first place that reports wrong options."""
    with one_line_errors():
        options = source_options(raw)
        for name in BOUNDS:
            if name in options.given:
                check_spark((4, 2), f"option {name}", UNBOUNDED)
        check_consumer(fetch_settings(options, BATCH_GROUP_PREFIX))
        return spark_schema(options.columns)


def batch_reader(raw: Mapping[str, str], schema: StructType) -> BatchReader:
    """The reader of a batch query."""
    with one_line_errors():
        options = source_options(raw).for_batch()
        check_schema(schema, options)
        return BatchReader(options, fetch_settings(options, BATCH_GROUP_PREFIX))


def stream_reader(raw: Mapping[str, str], schema: StructType) -> StreamReader | RefusedStream:
    """The reader of a streaming query."""
    try:
        options = source_options(raw).for_stream()
        check_schema(schema, options)
    except ConfigError as error:
        return RefusedStream(error)
    return StreamReader(options, fetch_settings(options, STREAM_GROUP_PREFIX))


def batch_writer(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """The writer of a batch query."""
    with one_line_errors():
        refuse_overwrite(overwrite=overwrite)
        options = checked_options(raw, schema)
        check_brokers(options)
        check_topic(options)
        return BatchWriter(options)


def stream_writer(raw: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The writer of a micro-batch."""
    with one_line_errors():
        options = checked_options(raw, schema)
        check_topic(options)
        return StreamWriter(options, schema)


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """ConfigError if the user gave a schema."""
    fixed = spark_schema(options.columns)
    if schema != fixed:
        raise ConfigError(
            "the Kafka source has a fixed schema: remove schema(...), choose columns with the"
            " options columns and includeHeaders, and cast them with DataFrame operations"
        )


def fetch_settings(options: SourceOptions, group_prefix: str) -> FetchSettings:
    """The settings for the tasks."""
    return FetchSettings(
        kafka=options.kafka,
        group_prefix=options.group_prefix or group_prefix,
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout_s=options.poll_timeout_s,
        poll_records=options.poll_records,
    )
