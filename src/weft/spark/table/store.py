"""A table as the committer needs it, of whichever format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import pyarrow as pa

from weft.spark.table.progress import Entry, Progress, Source


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

    def read(self, wanted: Collection[Source]) -> Progress:
        """What the table has now; of `wanted` also where only its frontier is known."""

    def append(self, rows: pa.Table, progress: Progress, changed: Mapping[Source, Entry]) -> int:
        """Add these in one transaction with what the table has by then; the table's version.

        Raises Moved where another has written since `read`, and Unfit.
        """
