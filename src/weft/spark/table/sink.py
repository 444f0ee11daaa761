"""`sink=` of a fleet: which folder the rows go into, what their columns are, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import ConfigError
from weft.numeric import is_number

#: What stands in the place of a topic for outputs that are rows; no topic can be called so.
TABLE = "<table>"
INTERVAL_MAX_S = 60.0
_OTHERS = {
    "_spark_metadata": "of a streaming query, whose readers go by its log and would not see rows",
    "_delta_log": "a Delta table",
    "metadata": "an Iceberg table",
}


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """A folder of Parquet files that the driver and all executors reach by the same path.

    `schema` are the columns of the values that handlers return: `"inside boolean, zone string"`, a
    StructType or a pydantic model. Before them stand `topic`, `partition`, `offset`, `key` and
    `timestamp` of the record. Each member adds one file every `interval_s` seconds while it has
    rows, from 0 to 60.
    Raises ConfigError for what cannot be a table.
    """

    path: str | Path
    schema: Any
    interval_s: float = 10.0

    def __post_init__(self) -> None:
        text = str(self.path).removeprefix("file://")
        if "://" in text or not text:
            raise ConfigError(
                f"ParquetTable({str(self.path)!r}): give a folder that the driver and all "
                "executors have under one path; for an object store take a topic between "
                "(docs/results-to-tables.md)"
            )
        object.__setattr__(self, "path", str(Path(text).absolute()))
        if not _is_schema(self.schema):
            raise ConfigError(
                f"ParquetTable: schema={self.schema!r:.80}: give the columns of what handlers "
                'return, such as "inside boolean, zone string", a StructType or a pydantic model'
            )
        seconds = self.interval_s
        if not is_number(seconds) or not 0 <= seconds <= INTERVAL_MAX_S:
            raise ConfigError(
                f"ParquetTable: interval_s={seconds!r}: give seconds from 0 to {INTERVAL_MAX_S:.0f}"
            )

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return Path(self.path)

    def check_folder(self) -> None:
        """Raise ConfigError where it cannot be a table of Weft's, as far as a look shows."""
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"sink: {folder} is a file: give a folder")
        for name, what in _OTHERS.items():
            if (folder / name).is_dir():
                raise ConfigError(f"sink: {folder} is {what}: give another folder")


def _is_schema(schema: object) -> bool:
    if isinstance(schema, str):
        return bool(schema.strip())
    return hasattr(schema, "fieldNames") or hasattr(schema, "model_fields")
