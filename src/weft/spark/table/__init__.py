"""A fleet's results straight into a Delta or an Iceberg table, each row once."""

from weft.spark.table.sink import DeltaTable, IcebergTable

__all__ = ["DeltaTable", "IcebergTable"]
