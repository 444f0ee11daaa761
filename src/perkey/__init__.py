"""One Python handler over many Kafka records concurrently: in key order, without loss.

Users import from here, from `perkey.spark` and from `perkey.testing`; all else is inside. Names
are loaded when first used, so that a command does not wait for what it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perkey._version import __version__

if TYPE_CHECKING:
    from perkey.app import App
    from perkey.decoding import decoder
    from perkey.errors import (
        ConfigError,
        FatalError,
        NotNow,
        NotStarted,
        OutOfOrder,
        PerkeyError,
        Reject,
        RetryAfter,
    )
    from perkey.kafka.schema import Schema
    from perkey.ledger.policy import SqlLedger
    from perkey.policies import (
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
    from perkey.runtime.calls.record_batch import RecordBatch
    from perkey.types import Committed, ErrorInfo, Produce, Record, Result, RunReport, Sent

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
    "NotNow",
    "NotStarted",
    "OutOfOrder",
    "Park",
    "PerkeyError",
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
    "__version__",
    "decoder",
]

_HOMES = {
    "perkey.app": ("App",),
    "perkey.decoding": ("decoder",),
    "perkey.errors": (
        "ConfigError",
        "FatalError",
        "NotNow",
        "NotStarted",
        "OutOfOrder",
        "Reject",
        "RetryAfter",
        "PerkeyError",
    ),
    "perkey.kafka.schema": ("Schema",),
    "perkey.ledger.policy": ("SqlLedger",),
    "perkey.policies": (
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
    "perkey.runtime.calls.record_batch": ("RecordBatch",),
    "perkey.types": ("Committed", "ErrorInfo", "Produce", "Record", "Result", "RunReport", "Sent"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # PEP 562: the pytest plugin is loaded in every project that has Perkey installed, and must not
    # load librdkafka there.
    if name not in _HOME_OF:
        raise AttributeError(f"module 'perkey' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
