"""Run Python's garbage collector less often while records flow.

Every record in flight is a few objects that the cyclic collector checks repeatedly, though none of
them is ever part of a cycle: with 100,000 of them it takes more than half of the time (24.6 µs per
record with Python's defaults, 10.5 with these, 9.9 with none; benchmarks/run.py wide).
"""

from __future__ import annotations

import gc
import threading

DEFAULT = (700, 10, 10)
PACE = (100_000, 50, 1_000)

_lock = threading.Lock()
_users = 0


def slow_down() -> None:
    """Collect less often, unless the program has set its own thresholds."""
    global _users  # noqa: PLW0603  # the collector is one for the whole process
    with _lock:
        _users += 1
        if _users == 1 and gc.get_threshold()[:2] == DEFAULT[:2]:
            gc.set_threshold(*PACE)


def restore() -> None:
    """When the last run ends: restore Python's defaults."""
    global _users  # noqa: PLW0603  # see above
    with _lock:
        _users -= 1
        if _users == 0 and gc.get_threshold() == PACE:
            gc.set_threshold(*DEFAULT)
