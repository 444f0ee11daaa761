"""The committer's interface to a table, of either format."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol

import pyarrow as pa

from perkey.spark.table.progress import Entry, Progress, Source

#: how often a writer immediately retries after others were first
MOVED_MAX = 20


class Moved(Exception):
    """Another writer was first: read again and retry."""


class Unavailable(Exception):
    """The store refused or did not answer. Read it to find out whether the rows were added."""


class Unfit(Exception):
    """The table will never accept these rows."""


class Store(Protocol):
    """One table, for one group. Not thread-safe. All methods raise Unavailable."""

    #: its name in messages
    name: str
    #: the table's columns
    columns: pa.Schema

    def read(self, wanted: Collection[Source]) -> Progress:
        """What the table has now; for `wanted` also if only the frontier is known."""

    def append(self, rows: pa.Table, progress: Progress, changed: Mapping[Source, Entry]) -> int:
        """Add these in one transaction with the content after it; returns the table's version.

        Raises Moved if another writer has written since `read`, and Unfit.
        """

    def close(self) -> None:
        """Close its connections."""


def try_out(store: Store) -> None:
    """Write once without a row: missing permissions are reported before anything starts."""
    for _ in range(MOVED_MAX):
        progress = store.read(())
        try:
            store.append(store.columns.empty_table(), progress, {})
        except Moved:
            continue
        return
    raise Unavailable(f"other writers were first {MOVED_MAX} times in a row")


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def first_line(error: Exception) -> str:
    """A store's error in one line."""
    text = _COLOUR.sub("", str(error)).replace("↳", "")
    parts = [words for line in text.splitlines() if (words := " ".join(line.split()))]
    return ": ".join(parts)[:400] or type(error).__name__
