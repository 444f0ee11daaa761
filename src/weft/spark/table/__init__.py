"""A fleet's results written directly to a Delta or an Iceberg table, each row once."""

from weft.spark.table.sink import DeltaTable, IcebergTable

__all__ = ["DeltaTable", "IcebergTable"]
