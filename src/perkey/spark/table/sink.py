"""`sink=` of a fleet: the table for the rows, its columns, and the interval."""

from __future__ import annotations

import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perkey.errors import ConfigError
from perkey.numeric import is_number
from perkey.options import HandlerOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from perkey.spark.table.store import Store

#: Instead of a topic, for outputs that are rows; no topic can have this name.
TABLE = "<table>"
INTERVAL_MAX_S = 60.0
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://.+")
_OTHERS = {
    "_spark_metadata": "of a streaming query, whose readers go by its log and would not see rows",
    "metadata": "an Iceberg table",
}


class TableSink(ABC):
    """The common options of all tables.

    `schema` are the columns of the values that handlers return: `"inside boolean, zone string"`, a
    StructType or a pydantic model; None for an existing table. Before them come `topic`,
    `partition`, `offset`, `key` and `timestamp` of the record. The fleet's rows are added
    together, every `interval_s` seconds while there are any, from 0 to 60.
    """

    __slots__ = ()
    schema: Any
    interval_s: float

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid options."""
        kind = type(self).__name__
        schema = self.schema
        known = hasattr(schema, "fieldNames") or hasattr(schema, "model_fields")
        if isinstance(schema, str):
            known = bool(schema.strip())
        if schema is not None and not known:
            raise ConfigError(
                f"{kind}: schema={self.schema!r:.80}: give the columns of what handlers "
                'return, such as "inside boolean, zone string", a StructType or a pydantic model'
            )
        seconds = self.interval_s
        if not is_number(seconds) or not 0 <= seconds <= INTERVAL_MAX_S:
            raise ConfigError(
                f"{kind}: interval_s={seconds!r}: give seconds from 0 to {INTERVAL_MAX_S:.0f}"
            )

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError if the place cannot hold such a table."""

    @abstractmethod
    def opened(self, columns: pa.Schema | None, group: str) -> Store:
        """The table, created if missing; raises ConfigError."""


@dataclass(frozen=True, slots=True)
class DeltaTable(TableSink):
    """A Delta table on a local disk or in an object store, which only the driver must reach.

    `uri`: a folder, `s3://…`, `gs://…`, `abfss://…`; `storage_options` as in deltalake.
    Raises ConfigError for invalid options.
    """

    uri: str | Path
    schema: Any = None
    _: KW_ONLY
    interval_s: float = 10.0
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)  # secrets

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid options; makes a folder's path absolute."""
        given: object = self.uri
        uri = re.sub(r"^file:(//)?(?=/[^/])", "", str(given))  # Spark writes file:/a
        is_folder = not _SCHEME.fullmatch(uri)
        if not isinstance(given, str | Path) or not uri or (is_folder and "://" in uri):
            raise ConfigError(f"DeltaTable({given!r:.80}): give a folder, or s3://BUCKET/TABLE")
        object.__setattr__(self, "uri", str(Path(uri).absolute()) if is_folder else uri)
        if self.storage_options and not _is_texts(self.storage_options):
            raise ConfigError(
                "DeltaTable: storage_options must be a dict of text, such as "
                '{"AWS_REGION": "eu-central-1"}'
            )
        TableSink.__post_init__(self)

    def check(self) -> None:
        """Raise ConfigError if the place cannot hold such a table."""
        _check_installed("DeltaTable", "deltalake", "delta")
        folder = Path(self.uri)
        if _SCHEME.fullmatch(str(self.uri)) or (folder / "_delta_log").is_dir():
            return
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"sink: {folder} is a file: give a folder")
        for name, what in _OTHERS.items():
            if (folder / name).exists():
                raise ConfigError(f"sink: {folder} is {what}: give another folder")
        if folder.is_dir() and next(folder.iterdir(), None) is not None:
            raise ConfigError(
                f"sink: {folder} has files and is no Delta table: give an empty or new folder"
            )

    def opened(self, columns: pa.Schema | None, group: str) -> Store:
        """The table, created if missing; raises ConfigError."""
        from perkey.spark.table.delta import opened

        return opened(str(self.uri), self.storage_options or {}, columns, group)


_NAME = re.compile(r"[^.\s]+(\.[^.\s]+)+")


@dataclass(frozen=True, slots=True)
class IcebergTable(TableSink):
    """A table of an Iceberg catalog, which only the driver must reach.

    `catalog`: a name in PyIceberg's configuration, or the catalog's properties, such as
    `{"type": "rest", "uri": "https://…"}`, with its `name` if it has one; `name`:
    `NAMESPACE.TABLE`.
    Raises ConfigError for invalid options.
    """

    catalog: str | Mapping[str, str] = field(repr=False)  # its properties hold secrets
    name: str
    schema: Any = None
    _: KW_ONLY
    interval_s: float = 10.0

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid options."""
        given: object = self.catalog
        if not (isinstance(given, str) and given) and not _is_texts(given):
            raise ConfigError(
                "IcebergTable: catalog must be a name in PyIceberg's configuration, or a dict of "
                'text, such as {"type": "rest", "uri": "https://…"}'
            )
        name: object = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"IcebergTable: name={name!r:.80}: give NAMESPACE.TABLE")
        TableSink.__post_init__(self)

    def check(self) -> None:
        """Raise ConfigError if there cannot be such a table."""
        _check_installed("IcebergTable", "pyiceberg", "iceberg")

    def opened(self, columns: pa.Schema | None, group: str) -> Store:
        """The table, created if missing; raises ConfigError."""
        from perkey.spark.table.iceberg import opened

        return opened(self.catalog, self.name, columns, group)


def _is_texts(given: object) -> bool:
    """Whether it is a non-empty dict of text."""
    return (
        isinstance(given, Mapping)
        and bool(given)
        and all(isinstance(one, str) for pair in given.items() for one in pair)
    )


def _check_installed(kind: str, package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"perkey.spark.{kind} needs {package}, which is not installed on the driver: "
            f"pip install 'perkey[{extra}]'"
        )


# -- handlers --------------------------------------------------------------------------------------
# The app's handlers in a fleet with a table: their results are rows.


def with_table(app: Any) -> Any:
    """The app as it is shipped; raises ConfigError for a handler that cannot feed a table."""
    handlers = [_feeding(handler) for handler in app.handlers]
    copy = object.__new__(type(app))
    copy.__setstate__({**app.__getstate__(), "handlers": handlers})
    return copy


def without_table(handlers: Sequence[HandlerOptions]) -> list[HandlerOptions]:
    """The same handlers for the check whether the topics of outputs exist."""
    return [replace(one, output=None) if one.output == TABLE else one for one in handlers]


def _feeding(handler: HandlerOptions) -> HandlerOptions:
    """One transaction holds offsets and rows: the protocol of exactly_once, whatever was given."""
    where = f"sink: @app.consume on {handler.name}:"
    if handler.delivery == "at_most_once":
        raise ConfigError(f'{where} delivery="at_most_once" cannot feed a table: leave it out')
    if handler.ledger is not None:
        raise ConfigError(f"{where} a handler with a ledger has no outputs: leave sink= out")
    if handler.batch is not None:
        raise ConfigError(
            f"{where} what a batch handler returns belongs to no single record, so its rows could "
            "not be recognised: leave batch= out, or take a topic between"
        )
    if handler.commit.each:
        raise ConfigError(
            f"{where} Commit(each=True) would add to the table for each record: leave it out; "
            "interval_s= of the table sets how often"
        )
    return replace(handler, delivery="exactly_once", output=TABLE)
