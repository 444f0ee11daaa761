"""Perkey on Spark.

    from perkey.spark import KafkaSource, process
    spark.dataSource.register(KafkaSource)      # format "perkey"
    results = process(positions, check)         # the handler over a DataFrame

The names are loaded at first use, so `import perkey` and `import perkey.spark` work without
PySpark; accessing a name then raises `perkey.ConfigError` with the fix.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perkey.spark.datasource import KafkaSource
    from perkey.spark.processing import once, process, replay
    from perkey.spark.table import DeltaTable, IcebergTable

__all__ = ["DeltaTable", "IcebergTable", "KafkaSource", "once", "process", "replay"]

#: Public name -> its module.
_HOMES = {
    "DeltaTable": "perkey.spark.table",
    "IcebergTable": "perkey.spark.table",
    "KafkaSource": "perkey.spark.datasource",
    "once": "perkey.spark.processing",
    "process": "perkey.spark.processing",
    "replay": "perkey.spark.processing",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perkey.spark.requirements import check_spark, check_spark_packages, use_this_python

    check_spark_packages()
    if name == "KafkaSource":
        check_spark(
            (4, 0),
            "KafkaSource",
            "data sources in Python came with it; process and fleets do without",
        )
    use_this_python()
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
