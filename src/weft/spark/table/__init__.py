"""A fleet's results straight into a Parquet table, each row once."""

from weft.spark.table.sink import ParquetTable

__all__ = ["ParquetTable"]
