"""`KafkaSource`: the Spark data source with format name `weft`."""

from __future__ import annotations

import uuid

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from weft.errors import ConfigError
from weft.spark.sink.plain import check_brokers
from weft.spark.sink.writers import BatchWriter, StreamWriter, checked_options, refuse_overwrite
from weft.spark.source.arrow import spark_schema
from weft.spark.source.batch import BatchReader
from weft.spark.source.errors import one_line_errors
from weft.spark.source.fetch import FetchSettings, check_consumer
from weft.spark.source.options import (
    BATCH_GROUP_PREFIX,
    STREAM_GROUP_PREFIX,
    SourceOptions,
    source_options,
)
from weft.spark.source.stream import RefusedStream, StreamReader


class KafkaSource(DataSource):
    """Reads Kafka into DataFrames and writes them to it, batch and streaming, without a jar.

    Options and columns are those of Spark's own connector.

        spark.dataSource.register(KafkaSource)
        spark.readStream.format("weft").option("kafka.bootstrap.servers", "…")...
        df.writeStream.format("weft").option("topic", "alerts")...
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "weft"

    def schema(self) -> StructType:
        """The columns; also the first place where wrong options are told."""
        with one_line_errors():
            options = source_options(self.options)
            check_consumer(fetch_settings(options, BATCH_GROUP_PREFIX))
            return spark_schema(options.columns)

    def reader(self, schema: StructType) -> BatchReader:
        """The reader of a batch query."""
        with one_line_errors():
            options = source_options(self.options).for_batch()
            check_schema(schema, options)
            return BatchReader(options, fetch_settings(options, BATCH_GROUP_PREFIX))

    def streamReader(  # noqa: N802  # Spark's name
        self, schema: StructType
    ) -> StreamReader | RefusedStream:
        """The reader of a streaming query."""
        try:
            options = source_options(self.options).for_stream()
            check_schema(schema, options)
        except ConfigError as error:
            return RefusedStream(error)
        return StreamReader(options, fetch_settings(options, STREAM_GROUP_PREFIX))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001  # Spark's signature
        """The writer of a batch query."""
        with one_line_errors():
            refuse_overwrite(overwrite=overwrite)
            options = checked_options(self.options, schema)
            check_brokers(options)
            return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802  # Spark names it so
        """The writer of a micro-batch."""
        with one_line_errors():
            return StreamWriter(checked_options(self.options, schema))


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """ConfigError where the user gave a schema of their own."""
    fixed = spark_schema(options.columns)
    if schema != fixed:
        raise ConfigError(
            "the Kafka source has a fixed schema: remove schema(...), choose columns with the"
            " options columns and includeHeaders, and cast them with DataFrame operations"
        )


def fetch_settings(options: SourceOptions, group_prefix: str) -> FetchSettings:
    """What the tasks need.

    The group id is new for each query: no group is joined, but brokers with access control look
    at the name.
    """
    return FetchSettings(
        kafka=options.kafka,
        group_id=f"{options.group_prefix or group_prefix}-{uuid.uuid4()}-executor",
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout_s=options.poll_timeout_s,
        poll_records=options.poll_records,
    )
