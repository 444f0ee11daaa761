"""The Python worker process in which Spark runs tasks and plans, one after another."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

#: Spark's names for the query and batch of a streaming task.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
#: Set by Spark if it reuses workers.
REUSED = "SPARK_REUSE_WORKER"


def is_reused() -> bool:
    """Whether this process will run another task."""
    return REUSED in os.environ


@cache
def settle_in() -> None:
    """Exclude everything loaded by now from garbage collection; once per process.

    Spark collects all garbage after each task and each step of a plan. Walking over the modules of
    Weft, Arrow and Spark takes 20 ms every time.
    """
    if is_reused():
        gc.freeze()


@contextmanager
def without_collection() -> Iterator[None]:
    """For ten thousand short-lived objects at a time that have no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
