"""A fleet's results written directly to a Delta or an Iceberg table, each row once.

`sink` is the user's `DeltaTable` or `IcebergTable`; members send `rows`, and the `committer` in
the driver adds them to the `store`, which `delta` and `iceberg` implement.
"""

from perkey.spark.table.sink import DeltaTable, IcebergTable

__all__ = ["DeltaTable", "IcebergTable"]
