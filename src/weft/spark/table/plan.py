"""The table as members get it; made by the driver once it has found the folder in order."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weft.errors import ConfigError
from weft.spark.processing.models import columns_of_model, is_model
from weft.spark.table.log import STAGING, linked, newest_of, sweep
from weft.spark.table.rows import columns_of
from weft.spark.table.sink import ParquetTable

#: Names the table, so that a member finds out whether it sees the same folder as the driver.
ABOUT = "_weft_table.json"


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a member must know of the table."""

    path: str
    table_id: str
    #: the columns, as Arrow writes a schema
    columns: bytes
    interval_s: float

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))

    def check_here(self) -> None:
        """On an executor: raise ConfigError where this is another folder than the driver's."""
        try:
            found = _about(Path(self.path) / ABOUT)
        except OSError:
            found = None
        if found is None or found["id"] != self.table_id:
            raise ConfigError(
                f"sink: {self.path} is not the driver's folder here: give a path that all machines "
                "share, or take a topic between (docs/results-to-tables.md)"
            )


def planned(sink: ParquetTable, spark: Any) -> TablePlan:
    """Check the folder, make it a table where it is none; raises ConfigError in one line."""
    sink.check_folder()
    columns = columns_of(_fields(sink.schema, spark))
    folder = sink.folder
    try:
        (folder / STAGING).mkdir(parents=True, exist_ok=True)
        _check_files(folder, columns)
        about = _made(folder, columns)
        sweep(folder)
    except OSError as error:
        raise ConfigError(f"sink: {folder} cannot be written: {error}") from error
    _check_same(folder, _schema(about["columns"]), columns)
    return TablePlan(str(folder), about["id"], columns.serialize().to_pybytes(), sink.interval_s)


def _fields(schema: Any, spark: Any) -> pa.Schema:
    """The user's columns as Arrow has them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if is_model(schema):
        schema = columns_of_model(schema)
    try:
        struct = spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema
        return to_arrow_schema(struct, timezone="UTC")
    except Exception as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        raise ConfigError(f"sink: schema={schema!r:.80} cannot be read: {said:.200}") from error


def _check_files(folder: Path, columns: pa.Schema) -> None:
    newest = newest_of(folder)
    if newest is not None:
        try:
            found = pq.read_schema(newest)
        except pa.ArrowException as error:
            raise ConfigError(f"sink: {newest} is no Parquet file: {error}") from error
        _check_same(folder, found, columns)


def _check_same(folder: Path, found: pa.Schema, columns: pa.Schema) -> None:
    theirs = [(field.name, str(field.type)) for field in found]
    ours = [(field.name, str(field.type)) for field in columns]
    if theirs == ours:
        return
    less = [f"{name} {kind}" for name, kind in theirs if (name, kind) not in ours]
    more = [f"{name} {kind}" for name, kind in ours if (name, kind) not in theirs]
    said = [f"it has {', '.join(less)}"] if less else []
    said += [f"this run has {', '.join(more)}"] if more else []
    raise ConfigError(
        f"sink: the table {folder} has another schema: {' and '.join(said) or 'another order'}: "
        "give its schema, or another folder"
    )


def _made(folder: Path, columns: pa.Schema) -> dict[str, str]:
    """The table's name and columns; of two drivers at once the first one's."""
    about = {
        "id": secrets.token_hex(8),
        "columns": base64.b64encode(columns.serialize().to_pybytes()).decode(),
    }
    staged = folder / STAGING / f"{about['id']}.json"
    staged.write_text(json.dumps(about))
    try:
        linked(staged, folder / ABOUT)
    finally:
        staged.unlink(missing_ok=True)
    return _about(folder / ABOUT)


def _about(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
        return {"id": str(found["id"]), "columns": str(found["columns"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"sink: {path} is not as Weft wrote it: remove it") from error


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
