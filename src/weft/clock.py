"""The clock of the runtime: the machine's, or one that a test controls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A steady clock."""

    @property
    def now(self) -> Callable[[], float]:
        """A function that reads it, in seconds from some point in the past."""

    def watch(self, under_way: Callable[[], int]) -> None:
        """Register the member's count of work in progress: a test's clock skips idle time only."""


class RealClock:
    """The machine's clock. `now` is the C function itself: it is called on the hot path."""

    now = staticmethod(time.monotonic)

    def watch(self, under_way: Callable[[], int]) -> None:
        """A no-op: real time needs no count."""


REAL_CLOCK = RealClock()
