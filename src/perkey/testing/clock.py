"""A clock that skips the time in which nothing happens.

While a handler runs or an output is in flight, real time passes. While every member only waits (for
a retry's delay, for the next commit), the clock jumps to the next event: thirty seconds between two
attempts cost a test nothing. So time-outs of handlers that really take time happen as in
production, and no test hangs because time has stopped.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class VirtualClock:
    """For `perkey.testing.run(clock=)` or `MemoryKafka(clock=)`. Thread-safe."""

    def __init__(self) -> None:
        #: skipped seconds so far
        self.skipped_s = 0.0
        self._began_s = time.monotonic()
        self._changed = threading.Condition()
        self._members: list[Callable[[], int]] = []
        #: handlers that wait on this clock -> until when, and how to wake them
        self._sleepers: dict[object, tuple[float, Callable[[], None]]] = {}

    def now(self) -> float:
        """Seconds from some point in the past."""
        return time.monotonic() + self.skipped_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was created, with skipped ones."""
        return self.now() - self._began_s

    # -- for handlers ------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Wait in a `def` handler; costs no real time while nothing else happens."""
        with self._changed, self._sleeping(seconds, self._changed.notify_all) as until:
            while (left_s := until - self.now()) > 0:
                self._changed.wait(left_s)

    async def sleep_async(self, seconds: float) -> None:
        """The same in an `async def` handler."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        timer = loop.call_later(max(0.0, seconds), end)

        def wake() -> None:
            loop.call_soon_threadsafe(end)

        try:
            with self._sleeping(seconds, wake):
                await over
        finally:
            timer.cancel()

    @contextmanager
    def _sleeping(self, seconds: float, wake: Callable[[], None]) -> Iterator[float]:
        until, token = self.now() + seconds, object()
        with self._changed:
            self._sleepers[token] = (until, wake)
        try:
            yield until
        finally:
            with self._changed:
                self._sleepers.pop(token, None)

    # -- for the runtime and the broker ------------------------------------------------------------

    def watch(self, under_way: Callable[[], int]) -> None:
        """Register a member's count of its work in progress."""
        self._members.append(under_way)

    def quiet(self) -> bool:
        """Whether nothing runs except handlers that wait on this clock.

        It enters the members' doors: do not call it with a lock that a thread inside a door may
        need.
        """
        under_way = sum(count() for count in tuple(self._members))
        with self._changed:
            return under_way <= len(self._sleepers)

    def skip_to(self, when: float) -> None:
        """Skip to this time, or to the time of the first sleeper if that is earlier."""
        with self._changed:
            first = min((until for until, _ in self._sleepers.values()), default=when)
            self.skipped_s += max(0.0, min(when, first) - self.now())
            # Woken here, they count as in progress again before any check.
            now = self.now()
            for token, (until, wake) in list(self._sleepers.items()):
                if until <= now:
                    del self._sleepers[token]
                    wake()
