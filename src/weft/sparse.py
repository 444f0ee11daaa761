"""The limit on log lines: one of each kind passes per interval, the others are counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

#: without a broker, librdkafka logs one line twenty times per second
ALIKE_EVERY_S = 10.0
KINDS_MAX = 100


class Sparse:
    """Lets one line of a kind pass per interval and counts the others."""

    def __init__(
        self, every_s: float = ALIKE_EVERY_S, clock: Callable[[], float] | None = None
    ) -> None:
        self._every_s, self._clock = every_s, clock
        #: kind of line -> when one last passed, and how many were omitted since
        self._alike: dict[Hashable, tuple[float, int]] = {}

    def left_out(self, kind: Hashable = None) -> int | None:
        """How many of this kind were omitted before; None if this one must be omitted, too."""
        now = time.monotonic() if self._clock is None else self._clock()
        at, count = self._alike.get(kind, (float("-inf"), 0))
        if now - at < self._every_s:
            self._alike[kind] = at, count + 1
            return None
        if len(self._alike) >= KINDS_MAX:
            self._alike.clear()
        self._alike[kind] = now, 0
        return count
