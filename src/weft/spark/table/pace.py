"""When a member hands its rows over: every so often, sooner where much waits or it must end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: After a partition was taken away its last transaction, and others', must not wait.
_HURRY_S = 10.0
_LOOK_S = 0.05


class Pace:
    """Any thread hurries; the transactions' thread waits."""

    def __init__(self, interval_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._now = interval_s, now
        self._due = now() + interval_s
        self._hurried_until = 0.0
        self._woken = threading.Event()

    def hurry(self, seconds: float = _HURRY_S) -> None:
        """Do not wait from now on, for so long."""
        self._hurried_until = max(self._hurried_until, self._now() + seconds)
        self._woken.set()

    @property
    def hurried(self) -> bool:
        """Somebody is in a hurry now."""
        return self._now() < self._hurried_until

    def wait(self, due: Callable[[], bool]) -> None:
        """Until the interval is over, somebody is in a hurry, or it is due for another reason."""
        while self._now() < self._due and not self.hurried and not due():
            self._woken.wait(_LOOK_S)
            self._woken.clear()

    def answered(self) -> None:
        """Begin the next interval: all whose rows were added together begin it together."""
        self._due = self._now() + self._interval_s
