"""The Python worker process that Spark runs tasks and plans in, one after the other."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

#: Spark's names for what a task of a stream belongs to: the query, and its batch.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
#: Set by Spark where it uses workers again.
REUSED = "SPARK_REUSE_WORKER"


def is_reused() -> bool:
    """Whether this process will have another task."""
    return REUSED in os.environ


@cache
def settle_in() -> None:
    """Let the garbage collector leave alone what is loaded by now; once in a process.

    Spark collects all garbage after each task and each step of a plan. To walk over the modules of
    Weft, Arrow and Spark for it takes 20 ms every time.
    """
    if is_reused():
        gc.freeze()


@contextmanager
def without_collection() -> Iterator[None]:
    """For ten thousand objects at a time that live for a moment and hold no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
