"""The clock of the runtime: the machine's, or one that a test controls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A steady clock."""

    @property
    def now(self) -> Callable[[], float]:
        """Reads it, in seconds from some point in the past."""

    def watch(self, under_way: Callable[[], int]) -> None:
        """Take the member's count of what it has under way: a test's clock skips dead time only."""


class RealClock:
    """The machine's. `now` is the C function itself: it is read on the hot path."""

    now = staticmethod(time.monotonic)

    def watch(self, under_way: Callable[[], int]) -> None:
        """Nothing: it goes its own way."""


REAL_CLOCK = RealClock()
