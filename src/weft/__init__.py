"""One Python handler over many Kafka records concurrently: in key order, without loss."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft._version import __version__

if TYPE_CHECKING:
    from weft.app import App
    from weft.decoding import decoder
    from weft.errors import (
        ConfigError,
        FatalError,
        NotStarted,
        OutOfOrder,
        Reject,
        RetryAfter,
        WeftError,
    )
    from weft.kafka.schema import Schema
    from weft.ledger.policy import SqlLedger
    from weft.policies import (
        Batch,
        Brake,
        Budget,
        Commit,
        DeadLetter,
        Hold,
        Park,
        Retry,
        Skip,
        Stop,
    )
    from weft.runtime.calls.record_batch import RecordBatch
    from weft.types import Committed, ErrorInfo, Produce, Record, Result, RunReport, Sent

__all__ = [
    "App",
    "Batch",
    "Brake",
    "Budget",
    "Commit",
    "Committed",
    "ConfigError",
    "DeadLetter",
    "ErrorInfo",
    "FatalError",
    "Hold",
    "NotStarted",
    "OutOfOrder",
    "Park",
    "Produce",
    "Record",
    "RecordBatch",
    "Reject",
    "Result",
    "Retry",
    "RetryAfter",
    "RunReport",
    "Schema",
    "Sent",
    "Skip",
    "SqlLedger",
    "Stop",
    "WeftError",
    "__version__",
    "decoder",
]

_HOMES = {
    "weft.app": ("App",),
    "weft.decoding": ("decoder",),
    "weft.errors": (
        "ConfigError",
        "FatalError",
        "NotStarted",
        "OutOfOrder",
        "Reject",
        "RetryAfter",
        "WeftError",
    ),
    "weft.kafka.schema": ("Schema",),
    "weft.ledger.policy": ("SqlLedger",),
    "weft.policies": (
        "Batch",
        "Brake",
        "Budget",
        "Commit",
        "DeadLetter",
        "Hold",
        "Park",
        "Retry",
        "Skip",
        "Stop",
    ),
    "weft.runtime.calls.record_batch": ("RecordBatch",),
    "weft.types": ("Committed", "ErrorInfo", "Produce", "Record", "Result", "RunReport", "Sent"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # PEP 562: the pytest plugin is loaded in every project that has Weft installed, and must not
    # load librdkafka there.
    if name not in _HOME_OF:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
