"""`KafkaSource`: the Spark data source with format name `perkey`.

This module is shipped by value and imports Perkey only when it is used: a Spark without Perkey,
such as a Connect server, must be able to report that.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class KafkaSource(DataSource):
    """Reads Kafka into DataFrames and writes them to it, batch and streaming, without a jar.

    Options and columns are those of Spark's own connector.

        spark.dataSource.register(KafkaSource)
        spark.readStream.format("perkey").option("kafka.bootstrap.servers", "…")...
        df.writeStream.format("perkey").option("topic", "alerts")...
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "perkey"

    def schema(self) -> StructType:
        """The columns; also the first place that reports wrong options."""
        columns: StructType = _openings().schema_of(self.options)
        return columns

    def reader(self, schema: StructType) -> Any:
        """The reader of a batch query."""
        return _openings().batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  # Spark's name
        """The reader of a streaming query."""
        return _openings().stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001  # Spark's signature
        """The writer of a batch query."""
        return _openings().batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001, N802  # Spark names it so
        """The writer of a micro-batch; a stream in output mode complete writes all its rows."""
        return _openings().stream_writer(self.options, schema)


def _openings() -> Any:
    """Import the rest of Perkey."""
    try:
        from perkey.spark import openings
        from perkey.spark.source.worker import settle_in
    except ModuleNotFoundError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the user's screen shows only the line
        raise ImportError(
            f"{sys.executable}, which plans this query, has no module {error.name}: install"
            " perkey[spark] there (the Connect server's environment, PYSPARK_PYTHON)"
        ) from None
    settle_in()
    return openings


register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # it has no types
