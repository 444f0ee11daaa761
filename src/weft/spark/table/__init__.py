"""A fleet's results straight into a Delta or an Iceberg table, each row once."""

from weft.spark.table.sink import DeltaTable

__all__ = ["DeltaTable"]
