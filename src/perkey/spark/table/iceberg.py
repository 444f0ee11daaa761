"""An Iceberg table, without a JVM: rows, offsets and claims in one commit of its catalog.

What the group has in the table is a table property, which outlives snapshots; each snapshot's
summary names its purpose. A commit is made for one snapshot of the table and fails if another
writer has replaced it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Mapping

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.table import Table

from perkey.errors import ConfigError
from perkey.spark.table.progress import Entry, Progress, Source
from perkey.spark.table.rows import check_same, in_order, mapped, plain
from perkey.spark.table.store import Moved, Unavailable, Unfit, first_line, try_out

#: Several groups may write one table: each has a separate property.
_PROPERTY = "perkey.progress."
_RETRIES = "commit.retry.num-retries"


class IcebergStore:
    """An Iceberg table, for one group."""

    def __init__(self, table: Table, group: str) -> None:
        self.name = f"Iceberg table {'.'.join(table.name())}"
        self._table, self._group = table, group
        self.columns = mapped(table.schema().as_arrow(), small)

    def read(self, wanted: Collection[Source]) -> Progress:
        """What the table has now."""
        try:
            self._table.refresh()
        except Exception as error:
            raise Unavailable(first_line(error)) from error
        packed = self._table.properties.get(_PROPERTY + self._group)
        if packed is None:
            return Progress()
        try:
            return Progress.from_json(zlib.decompress(base64.b64decode(packed)))
        except (ValueError, zlib.error) as error:
            reason = f"its property {_PROPERTY}… is not as Perkey wrote it: {error}"
            raise Unavailable(reason) from error

    def append(self, rows: pa.Table, progress: Progress, changed: Mapping[Source, Entry]) -> int:
        """Add these; see Store."""
        metadata = self._table.metadata
        # In the local copy only: a retry by the library would put them after rows not seen yet.
        once = {**metadata.properties, _RETRIES: "0"}
        self._table.metadata = metadata.model_copy(update={"properties": once})
        frontiers = [[*source, entry.done.frontier] for source, entry in changed.items()]
        summary = {"perkey.group": self._group, "perkey.offsets": json.dumps(frontiers)}
        try:
            with self._table.transaction() as transaction:
                if rows.num_rows:
                    ours = in_order(rows, self.columns)
                    transaction.append(ours, snapshot_properties=summary)
                packed = base64.b64encode(zlib.compress(progress.to_json().encode())).decode()
                transaction.set_properties({_PROPERTY + self._group: packed})
        except CommitFailedException as error:
            raise Moved(first_line(error)) from error
        except (ValueError, ValidationException) as error:
            raise Unfit(first_line(error)) from error
        except Exception as error:
            raise Unavailable(first_line(error)) from error
        snapshot = self._table.current_snapshot()
        return 0 if snapshot is None else snapshot.snapshot_id

    def close(self) -> None:
        """Close the catalog: one in a database has a pool of connections."""
        self._table.catalog.close()


def small(kind: pa.DataType) -> pa.DataType:
    """Iceberg's smallest whole number has 32 bits."""
    return pa.int32() if kind in (pa.int8(), pa.int16()) else plain(kind)


def opened(
    catalog: str | Mapping[str, str], name: str, columns: pa.Schema | None, group: str
) -> IcebergStore:
    """The table of this name, created if missing; raises ConfigError in one line."""
    held: Catalog | None = None
    try:
        given = {"name": catalog} if isinstance(catalog, str) else catalog
        # A catalog in a database separates tables by the name under which it is opened.
        held = load_catalog(**{"name": None, **given})
        store = IcebergStore(_table(held, name, columns), group)
        if columns is not None:
            check_same(f"the Iceberg table {name}", store.columns, mapped(columns, small))
        try_out(store)
    except Exception as error:  # of the catalog's own library, whichever that is
        if held is not None:
            held.close()
        if isinstance(error, ConfigError):
            raise
        reason = first_line(error)
        raise ConfigError(f"sink: the Iceberg table {name} cannot be used: {reason}") from error
    return store


def _table(catalog: Catalog, name: str, columns: pa.Schema | None) -> Table:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        if columns is None:
            raise ConfigError(
                f"sink: there is no Iceberg table {name}: give schema=, and it is made"
            ) from None
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    return catalog.create_table_if_not_exists(name, mapped(columns, small))
