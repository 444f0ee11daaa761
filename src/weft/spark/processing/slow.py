"""Calls that take very long: a line in the executor's log, since a task that waits says nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from weft.core.partition import Partition
from weft.core.states import RUNNING
from weft.core.work import Work
from weft.runtime.logs import event

_log = logging.getLogger("weft.spark")

#: A call that has run so long is told, and again as often.
SLOW_S = 60.0
#: Between two looks; a call is known to run only once two looks have seen it.
LOOK_EVERY_S = 15.0


class SlowCalls:
    """Looks at the calls that run, now and then, and remembers since when each was seen."""

    def __init__(self) -> None:
        self._next_look = time.monotonic() + LOOK_EVERY_S
        self._next_line = 0.0
        #: call (record and failed attempts so far) -> when it was first seen
        self._seen: dict[tuple[Work, int], float] = {}

    def is_due(self) -> bool:
        """Whether it is time for a look."""
        return time.monotonic() >= self._next_look

    def look(self, partitions: Iterable[Partition], now: float) -> None:
        """See which calls run. Inside the door."""
        self._next_look = now + LOOK_EVERY_S
        running = [
            (work, work.attempts)
            for partition in partitions
            for work in partition.works()
            if work.state == RUNNING
        ]
        self._seen = {call: self._seen.get(call, now) for call in running}

    def tell(self, name: str) -> None:
        """One line about the oldest call, if it is slow."""
        now = time.monotonic()
        slow = sorted(since for since in self._seen.values() if now - since >= SLOW_S)
        if not slow or now < self._next_line:
            return
        self._next_line = now + SLOW_S
        (work, attempts), since = min(self._seen.items(), key=lambda item: item[1])
        event(
            _log, "warning", "slow call", handler=name, record=repr(work.record),
            attempt=attempts + 1, running_s=round(now - since), slow_calls=len(slow),
            next="timeout_s= ends such calls",
        )  # fmt: skip
