"""Weft on Spark.

    from weft.spark import KafkaSource, process
    spark.dataSource.register(KafkaSource)      # format "weft"
    results = process(positions, check)         # the handler over a DataFrame

The names are loaded at first use, so `import weft` and `import weft.spark` work where PySpark is
not installed; asking for a name there raises `weft.ConfigError` with the cure.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.spark.processing import process
    from weft.spark.source import KafkaSource

__all__ = ["KafkaSource", "process"]

#: Public name -> the module that holds it.
_HOMES = {"KafkaSource": "weft.spark.source", "process": "weft.spark.processing"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from weft.spark.requirements import check_spark_packages

    check_spark_packages()
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
