"""Results as a stream, in order, on threads of the reader.

A reader that is slow slows the intake: nothing is dropped and nothing grows without bound.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from weft import guard
from weft.errors import ConfigError
from weft.runtime.member.callbacks import Callbacks
from weft.types import Result

_log = logging.getLogger("weft")

RESULTS_MAX = 2_000
_LOOK_S = 0.2
_TAKE_MAX = 256


class ResultStream:
    """The results of one app, for one reader: `for result in stream` or `async for`."""

    def __init__(self) -> None:
        #: called with True when it is full, with False when half of it has been read
        self.on_level: Callable[[bool], None] = lambda _: None
        #: called when its reader has gone
        self.on_close: Callable[[], None] = lambda: None
        #: what the reader gets in place of a result; None: the result as it is
        self.as_handled: Callable[[Result], Result] | None = None
        self._results: deque[Result] = deque()
        self._changed = threading.Condition()
        self._full = False
        self._ended = False
        self.closed = False
        #: its reader went before the end: what came since is gone
        self._left = False

    # -- for the app -------------------------------------------------------------------------------

    def put(self, results: Sequence[Result]) -> None:
        """Add results; never blocks."""
        if self.closed:
            return
        with self._changed:
            self._results.extend(results)
            full = not self._full and len(self._results) >= RESULTS_MAX
            self._full = self._full or full
            self._changed.notify()
        if full:
            self.on_level(True)

    def end(self) -> None:
        """The app has ended: the reader gets what is left and then the end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- for the reader ----------------------------------------------------------------------------

    def close(self) -> None:
        """Read no more; the app goes on without this reader."""
        if self.closed:
            return
        self._left = not self.over
        self.closed = True
        with self._changed:
            self._results.clear()
        self.on_level(False)
        self.on_close()

    def take(self, timeout_s: float | None = None) -> list[Result]:
        """The next results, at most 256; empty at the end, or when none came within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._ended, timeout_s)
            count = min(len(self._results), _TAKE_MAX)
            taken = [self._results.popleft() for _ in range(count)]
            relieved = self._full and len(self._results) <= RESULTS_MAX // 2
            self._full = self._full and not relieved
        if relieved:
            self.on_level(False)
        return taken if self.as_handled is None else list(map(self.as_handled, taken))

    @property
    def over(self) -> bool:
        """The app has ended and everything has been read."""
        return self._ended and not self._results

    def _check_readable(self) -> None:
        if self._left:
            raise ConfigError(
                "these results are closed: their loop was left before the app ended. Call "
                "app.results() again for those from now on"
            )

    def __iter__(self) -> Iterator[Result]:
        self._check_readable()
        try:
            while not self.over:
                yield from self.take(_LOOK_S)
        finally:
            self.close()  # also when the reader leaves its loop early

    async def __aiter__(self) -> AsyncIterator[Result]:
        self._check_readable()
        try:
            while not self.over:
                for result in await asyncio.to_thread(self.take, _LOOK_S):
                    yield result
        finally:
            self.close()


def forward(
    stream: ResultStream, function: Callable[[Result], Any], callbacks: Callbacks
) -> threading.Thread:
    """Serve `on_result`: read the stream on a thread of its own and call the function."""

    def run() -> None:
        for result in stream:
            try:
                function(result)
            except (Exception, SystemExit):
                callbacks.errors += 1
                _log.exception("on_result failed")

    thread = guard.thread("weft-on-result", run, callbacks.died)
    thread.start()
    return thread
