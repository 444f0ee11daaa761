"""Errors of the Kafka source, and how they reach the user as one line.

WeftError
├── ConfigError     an option is wrong (raised while the job is planned)
└── SourceError     the brokers did not return the requested data
    └── DataLoss    records of the range are gone, and `failOnDataLoss` is true
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import WeftError


class SourceError(WeftError):
    """Kafka could not be read; the message names the part, and what to check."""


class DataLoss(SourceError):
    """Unread records are gone. `failOnDataLoss=false` continues without them."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Make Weft's own errors leave a Spark worker as one line instead of a traceback.

    PySpark formats a worker's exception with its traceback unless SPARK_HIDE_TRACEBACK is set at
    that moment, and ends that worker process afterwards, so setting it here hides the traceback of
    this error only. Outside a Spark worker nothing changes.
    """
    try:
        yield
    except WeftError:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and str(spec.name).startswith("pyspark."):  # a worker of Spark's
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
