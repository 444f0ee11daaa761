"""The test kit: test apps and handlers on a broker in memory, or on a real one.

`run(app, records)` is the short way. `MemoryKafka` is a broker for experiments: rebalances, gaps,
faults, crash points. `VirtualClock` skips waits. The pytest fixtures `memory_broker` and
`kafka_broker` (a real Kafka) come with the package. docs/testing.md has examples.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perkey.testing.clock import VirtualClock
    from perkey.testing.crash import Crashed, CrashPoint
    from perkey.testing.memory_connection import MemoryKafka
    from perkey.testing.runner import run

__all__ = ["CrashPoint", "Crashed", "MemoryKafka", "VirtualClock", "run"]

_HOME_OF = {
    "CrashPoint": "perkey.testing.crash",
    "Crashed": "perkey.testing.crash",
    "MemoryKafka": "perkey.testing.memory_connection",
    "VirtualClock": "perkey.testing.clock",
    "run": "perkey.testing.runner",
}


def __getattr__(name: str) -> Any:
    # PEP 562: pytest loads the plugin, and so this package, in every project that has Perkey
    # installed, and must not load librdkafka there.
    if name not in _HOME_OF:
        raise AttributeError(f"module 'perkey.testing' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
