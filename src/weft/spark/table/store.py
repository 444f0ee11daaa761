"""A table as the committer needs it, of whichever format."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Protocol

import pyarrow as pa

from weft.spark.table.progress import Entry, Progress, Source

#: so often a writer tries again at once where others were first
MOVED_MAX = 20


class Moved(Exception):
    """Another writer was first: read, and try again."""


class Unavailable(Exception):
    """The store refused or did not answer. Whether the rows were added must be read."""


class Unfit(Exception):
    """The table does not take these rows, and never will."""


class Store(Protocol):
    """One table, for one group; of one thread. All raise Unavailable."""

    #: how messages call it
    name: str

    @property
    def columns(self) -> pa.Schema:
        """The table's."""

    def read(self, wanted: Collection[Source]) -> Progress:
        """What the table has now; of `wanted` also where only its frontier is known."""

    def append(self, rows: pa.Table, progress: Progress, changed: Mapping[Source, Entry]) -> int:
        """Add these in one transaction with what the table has by then; the table's version.

        Raises Moved where another has written since `read`, and Unfit.
        """


def try_out(store: Store) -> None:
    """Write once without a row: who may not write, or cannot, is told before anything starts."""
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
    """What a store's error says, in one line."""
    text = _COLOUR.sub("", str(error)).replace("↳", "")
    parts = [words for line in text.splitlines() if (words := " ".join(line.split()))]
    return ": ".join(parts)[:400] or type(error).__name__
