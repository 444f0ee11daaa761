"""A Delta table, without a JVM: rows, offsets and claims in one transaction of its log.

Each commit has an application transaction per partition, whose version is the offset from which the
table has nothing yet, or not all; one for the group, whose version is that commit's own; and in its
commit info everything that the group has in the table, exactly. A commit is made for one version of
the table and fails if another writer has taken it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake import DeltaTable as Table
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    SchemaMismatchError,
    TableNotFoundError,
)

from perkey.errors import ConfigError
from perkey.spark.table.progress import Done, Entry, Progress, Source
from perkey.spark.table.rows import check_same, in_order, mapped, plain
from perkey.spark.table.store import Moved, Unavailable, Unfit, first_line, try_out

_KEY = "perkey"
#: commits that others may have added since
_MORE = 20
_BROKEN = "Invalid data found"


class DeltaStore:
    """A Delta table, for one group."""

    def __init__(self, table: Table, group: str) -> None:
        self.name = f"Delta table {table.table_uri}"
        self._table, self._group = table, group
        self.columns = mapped(pa.schema(table.schema().to_arrow()), plain)
        #: the version of the group's last commit, and its content
        self._known: tuple[int | None, Progress] = (None, Progress())

    def read(self, wanted: Collection[Source]) -> Progress:
        """What the table has now."""
        try:
            self._table.update_incremental()
            version = self._table.transaction_version(self._app())
            if version != self._known[0]:
                self._known = version, self._found(version)
            progress, more = self._known[1], dict[Source, Entry]()
            for source in wanted:
                # For partitions that the commit does not mention, what the log keeps forever.
                if progress.get(source) is None:
                    frontier = self._table.transaction_version(self._app(source))
                    if frontier is not None:
                        more[source] = Entry(0, Done(frontier, frontier - 1))
            return progress.with_done(more) if more else progress
        except (DeltaError, OSError) as error:
            raise Unavailable(first_line(error)) from error

    def append(self, rows: pa.Table, progress: Progress, changed: Mapping[Source, Entry]) -> int:
        """Add these; see Store."""
        version = self._table.version() + 1
        marks = {self._app(source): entry.done.frontier for source, entry in changed.items()}
        marks[self._app()] = version
        stamp = int(time.time() * 1_000)
        properties = CommitProperties(
            custom_metadata={
                _KEY: {"group": self._group, "version": version, "progress": progress.to_json()}
            },
            max_commit_retries=0,
            app_transactions=[Transaction(app, at, stamp) for app, at in marks.items()],
        )
        try:
            ours = in_order(rows, self.columns)
            write_deltalake(self._table, ours, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            raise Moved(first_line(error)) from error
        except SchemaMismatchError as error:
            raise Unfit(first_line(error)) from error
        except (DeltaError, OSError) as error:
            if _BROKEN in str(error):  # the rest of the message contains values
                raise Unfit("a constraint of the table, such as NOT NULL, refuses rows") from None
            raise Unavailable(first_line(error)) from error
        self._known = version, progress
        return version

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _app(self, source: Source | None = None) -> str:
        """The id of an application transaction, readable in the log."""
        parts = [] if source is None else [source.topic, source.topic_id, str(source.number)]
        return "/".join([_KEY, self._group, *parts])

    def _found(self, version: int | None) -> Progress:
        """The content of this version's commit; empty if the log no longer has it.

        Searched among the newest commits, since the library cannot read a single one.
        """
        if version is None:
            return Progress()
        ours = {"group": self._group, "version": version}.items()
        for info in self._table.history(self._table.version() - version + _MORE):
            entry = info.get(_KEY)
            if isinstance(entry, dict) and ours <= entry.items():
                try:
                    return Progress.from_json(entry["progress"])
                except (KeyError, ValueError) as error:
                    raise Unavailable(f"commit {version} is not as Perkey wrote it") from error
        return Progress()


def opened(
    uri: str, options: Mapping[str, str], columns: pa.Schema | None, group: str
) -> DeltaStore:
    """The table at this place, created if missing; raises ConfigError in one line."""
    try:
        store = DeltaStore(_table(uri, dict(options) or None, columns), group)
        if columns is not None:
            check_same(f"the Delta table {uri}", store.columns, columns)
        try_out(store)
    except (DeltaError, OSError, Unavailable, Unfit) as error:
        reason = first_line(error)
        raise ConfigError(f"sink: the Delta table {uri} cannot be used: {reason}") from error
    return store


def _table(uri: str, options: dict[str, str] | None, columns: pa.Schema | None) -> Table:
    try:
        return Table(uri, storage_options=options)
    except TableNotFoundError:
        if columns is None:
            raise ConfigError(
                f"sink: there is no Delta table at {uri}: give schema=, and it is made"
            ) from None
        return Table.create(uri, columns, storage_options=options, mode="ignore")
