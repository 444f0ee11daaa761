"""An event loop in virtual time, whose ready callbacks run in an order chosen by the seed."""

from __future__ import annotations

import asyncio
import heapq
from typing import Any

from simulators.runtime.scheduler import Scheduler, Task


class SimLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, but for time, waiting and order."""

    def __init__(self, scheduler: Scheduler, *, shuffle: bool) -> None:
        """`shuffle`: asyncio promises first come, first served; uvloop and eager tasks bend it."""
        super().__init__()
        self._sim = scheduler
        self._shuffle = shuffle
        self._waiter: Task | None = None
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        """Virtual seconds."""
        return self._sim.now

    def run_forever(self) -> None:
        """Run until `stop`."""
        this: Any = self
        self._check_closed()  # type: ignore[attr-defined]  # asyncio's own, not in its stubs
        this._thread_id = self._sim.running
        asyncio.events._set_running_loop(self)
        try:
            while not this._stopping:
                self._run_once()
        finally:
            this._stopping = False
            this._thread_id = None
            asyncio.events._set_running_loop(None)

    def _run_once(self) -> None:
        this: Any = self
        ready, scheduled = this._ready, this._scheduled
        if not ready and not this._stopping:
            self._waiter = self._sim.running
            self._sim.block(scheduled[0]._when if scheduled else None)
            self._waiter = None
        while scheduled and scheduled[0]._when <= self._sim.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        batch = [ready.popleft() for _ in range(len(ready))]
        if self._shuffle:
            self._sim.rng.shuffle(batch)
        for handle in batch:
            if not handle.cancelled():
                handle._run()
            self._sim.point()

    def _write_to_self(self) -> None:
        """Another thread has left a callback."""
        if self._waiter is not None:
            self._sim.wake(self._waiter)
        self._sim.point()

    def _process_events(self, event_list: Any) -> None:
        """There are no sockets here."""
