"""A fleet's results written directly to a Delta or an Iceberg table, each row once."""

from perkey.spark.table.sink import DeltaTable, IcebergTable

__all__ = ["DeltaTable", "IcebergTable"]
