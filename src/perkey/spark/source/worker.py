"""The Python worker process in which Spark runs tasks and plans, one after another."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from perkey.errors import PerkeyError

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
    Perkey, Arrow and Spark takes 20 ms every time.
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


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Make Perkey's own errors leave a Spark worker as one line instead of a traceback.

    PySpark formats a worker's exception with its traceback unless SPARK_HIDE_TRACEBACK is set at
    that moment, and ends that worker process afterwards, so setting it here hides the traceback of
    this error only. Outside a Spark worker nothing changes.
    """
    try:
        yield
    except PerkeyError:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and str(spec.name).startswith("pyspark."):  # a worker of Spark's
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
